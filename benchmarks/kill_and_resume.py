"""Runs that are killed at random moments (SIGKILL), again and again, and resumed until they end.

For each learner the final policy, the best policy and the history are compared with those of a run that was left alone:
the number of runs that end bit for bit the same is printed. DEQN has a replay ring, a target network, a stepper switch,
a schedule and shrinking rates on.

    python benchmarks/kill_and_resume.py [--runs 20]
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import equimorph

PROGRAM = (sys.executable, "-c", "from equimorph.training.cli import main; raise SystemExit(main())")
COMMON = ("rollout.num_envs=64", "rollout.num_steps=32", "evaluation.num_episodes=32", "evaluation.horizon=50")
CASES = {
    "mappo": (),
    "reinforce": ("agent.unscored_tail=8",),
    "deqn": (
        "agent.replay_size=4096",
        "agent.next_policy=target",
        "agent.schedule=cosine",
        "training.switch=[{at: 250, stepper: rmsprop, learning_rate: 0.0001, schedule: linear}]",
        "plateau.patience=3",
    ),
}


def command(agent: str, out: Path) -> list[str]:
    """The first start of a run."""
    sets = [*COMMON, *CASES[agent], "training.iterations=400", "checkpoint.every=20", "evaluation.every=40"]
    flags = [word for one in sets for word in ("--set", one)]
    return [*PROGRAM, "train", "BrockMirman-v0", "--agent", agent, "--out", str(out), *flags]


def checkpoints(out: Path) -> int:
    """How many whole checkpoints there are."""
    return len(list(out.glob("checkpoints/*/_CHECKPOINT_METADATA")))


def killed(agent: str, out: Path, longest: float, rng: random.Random) -> int:
    """Start a run, and kill and resume it until it has ended; how often it was killed."""
    kills = 0
    while True:
        fresh = not (out / "config.yaml").exists()
        words = command(agent, out) if fresh else [*PROGRAM, "train", "--resume", str(out)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if fresh or kills < 3:
            started, moment = time.monotonic(), rng.uniform(0, longest)
            there = checkpoints(out)
            while process.poll() is None and checkpoints(out) <= there and time.monotonic() - started < 300:
                time.sleep(0.01)  # nothing could be lost before
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            if process.poll() is None:
                process.kill()
                process.communicate()
                kills += 1
                continue
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{' '.join(words)}: {errors}")
        return kills


def same(a: Path, b: Path) -> bool:
    """Whether two runs left the same policies and the same metrics, but for times."""

    def leaves(path: Path) -> list:
        return jax.tree.leaves([equimorph.load(path, best=best).state for best in (False, True)])

    def metrics(path: Path) -> list:
        found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key not in ("seconds", "time")} for line in found]

    equal = all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))
    return equal and metrics(a) == metrics(b)


def main() -> None:
    """Print a row a learner."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=20)
    runs = arguments.parse_args().runs
    rng = random.Random(0)
    print(f"{'learner':<12}{'runs':>6}{'kills':>7}{'the same':>10}")
    for agent in CASES:
        with tempfile.TemporaryDirectory() as folder:
            alone = Path(folder, "alone")
            subprocess.run(command(agent, alone), check=True, stdout=subprocess.DEVNULL)
            lines = [json.loads(line) for line in (alone / "metrics.jsonl").read_text().splitlines()]
            longest = lines[-1]["seconds"] - lines[0]["seconds"]
            kills = equal = 0
            for index in range(runs):
                out = Path(folder, str(index))
                kills += killed(agent, out, longest / 2, rng)
                equal += same(alone, out)
            print(f"{agent:<12}{runs:>6}{kills:>7}{equal:>10}", flush=True)


if __name__ == "__main__":
    main()
