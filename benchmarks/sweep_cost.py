"""What training side by side saves: eight combinations of a sweep in one compiled call, and one after another.

Both are done in turns in one process. CPU and wall-clock seconds are of the whole sweep but its final scoring: the
first pair with compilation (without the persistent cache), the others without.

    python benchmarks/sweep_cost.py [--pairs 4]
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import jax
import numpy as np

from equimorph.training import sweep as sweeps

RATES = [1e-4, 3e-4, 1e-3, 3e-3]
CASES = {
    "BrockMirman-v0 mappo": ({}, {"agent.learning_rate": RATES, "env.params.beta": [0.9, 0.95]}, 100),
    "BrockMirman-v0 deqn": ({}, {"agent.learning_rate": RATES, "env.params.beta": [0.9, 0.95]}, 400),
    "CellCount-v0 mappo": ({"num_envs": 8}, {"agent.learning_rate": RATES, "training.seed": [0, 1]}, 20),
    "CartPole-v1 mappo": ({}, {"agent.learning_rate": RATES, "training.seed": [0, 1]}, 100),
}


def seconds(pair: str, at_once: int) -> tuple[float, float]:
    """CPU and wall-clock seconds of one sweep."""
    rollout, over, iterations = CASES[pair]
    settings = {"rollout": rollout, "training": {"iterations": iterations}, "logging": {"progress": False}}
    with tempfile.TemporaryDirectory() as folder:
        cpu, wall = time.process_time(), time.perf_counter()
        sweeps.sweep(*pair.split(), settings, over=over, out=Path(folder, "sweep"), at_once=at_once)
        return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    """Print a line a pair of environment and learner."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--pairs", type=int, default=4)
    arguments.add_argument("--only", choices=CASES)
    given = arguments.parse_args()
    sweeps._score = lambda one: None  # the same work either way
    print(f"{jax.devices()[0].platform}, {os.cpu_count()} cores; side by side / one after another")
    for pair in [given.only] if given.only else CASES:
        found = np.array([[seconds(pair, 32), seconds(pair, 1)] for _ in range(given.pairs)])
        (cpu, _), (alone, _) = found[0]
        ratios = found[1:, 0] / found[1:, 1]
        middle, low, high = np.median(ratios, 0), ratios.min(0), ratios.max(0)
        print(
            f"{pair}: with compilation {cpu:.1f} / {alone:.1f} CPU s; without {np.median(found[1:, 0, 0]):.1f} / "
            f"{np.median(found[1:, 1, 0]):.1f} CPU s, ratio {middle[0]:.2f} ({low[0]:.2f} to {high[0]:.2f}), wall "
            f"{middle[1]:.2f} ({low[1]:.2f} to {high[1]:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
