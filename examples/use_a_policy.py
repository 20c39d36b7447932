"""Train a policy, export it, and act by it in a fresh process, through Gymnasium and without any code of training."""

import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium

import equimorph

ELSEWHERE = """
import sys, gymnasium, equimorph
policy = equimorph.load_policy(sys.argv[1])
env = gymnasium.make("equimorph/BrockMirman-v0")
observation, _ = env.reset(seed=0)
for _ in range(5):
    action = policy(observation)
    observation, *_ = env.step(action)
    print(float(action[0]))
assert not any(name.startswith("equimorph.training") for name in sys.modules)
"""


def main() -> None:
    """Print the shares saved in five periods, here and there."""
    run = equimorph.train("BrockMirman-v0", "reinforce", iterations=100)
    env = gymnasium.make("equimorph/BrockMirman-v0")
    observation, _ = env.reset(seed=0)
    here = []
    for _ in range(5):
        action = run.policy(observation)
        observation, *_ = env.step(action)
        here.append(float(action[0]))
    with tempfile.TemporaryDirectory() as folder:
        path = equimorph.export(run, Path(folder, "saver.eqx"))
        print(f"{path.name}: {path.stat().st_size} bytes")
        done = subprocess.run([sys.executable, "-c", ELSEWHERE, path], check=True, capture_output=True, text=True)
    there = [float(line) for line in done.stdout.split()]
    print("saved here: ", *(f"{share:.6f}" for share in here))
    print("saved there:", *(f"{share:.6f}" for share in there))
    print("the same:   ", here == there)


if __name__ == "__main__":
    main()
