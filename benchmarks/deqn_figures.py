"""The residual learner's figures: errors against known answers, every seed, with the untrained policy beside them.

Growth's rows stand beside other residual solvers' published ones in docs/deqn.md.

    python benchmarks/deqn_figures.py [row ...] [--seeds 3]
"""

import argparse
import time
from typing import Any

import jax
import numpy as np

import equimorph
from equimorph.training import trainer
from equimorph.training.config import resolve
from equimorph.training.report import align, log10

NEWTON = {
    "agent": {"stepper": "lm", "batch_size": 512, "widths": [32, 32]},
    "rollout": {"num_envs": 128, "num_steps": 4},
}

# name: environment, settings on top of the pair's preset, whether in float64
ROWS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "annual_log": ("Growth-v0", {"env": {"calibration": "annual_log"}, "agent": {"widths": [50, 50]}}, False),
    "annual_log, lm": (
        "Growth-v0",
        {**NEWTON, "env": {"calibration": "annual_log"}, "training": {"iterations": 400}},
        True,
    ),
    "ak": ("StochasticAK-v0", {}, False),
    "ak stress": ("StochasticAK-v0", {"env": {"calibration": "stress"}}, False),
    "ak all in one": ("StochasticAK-v0", {"agent": {"expectation": "all_in_one"}}, False),
    "growth": ("Growth-v0", {}, False),
    "growth, lm": ("Growth-v0", {**NEWTON, "training": {"iterations": 200}}, True),
    "irreversible": ("Irreversible-v0", {}, False),
    "buffer": ("BufferStock-v0", {}, False),
    "olg": ("OLG-v0", {}, False),
    "irbc": ("IRBC-v0", {}, False),
    "fish 2": ("FishWar-v0", {}, False),
    "fish 5": ("FishWar-v0", {"env": {"num_players": 5}}, False),
    "fish 2 team": ("FishWar-v0", {"env": {"concept": "cooperative"}}, False),
}
HEAD = ["row", "seed", "CPU s", "Euler mean", "p99", "max", "policy error", "binding", "untrained mean", "policy error"]


def row(name: str, seed: int) -> list[str]:
    """Train and score one seed; a line of the table. Errors are log10 of absolute ones."""
    env_id, settings, double = ROWS[name]
    with jax.enable_x64(double):
        training = {**settings.get("training", {}), "seed": seed}
        config = resolve(env_id, "deqn", {**settings, "training": training, "logging": {"progress": False}})
        started = time.process_time()
        run = trainer._train(config)[2]
        seconds = time.process_time() - started
    found = equimorph.evaluate(run)
    cells = [name, str(seed), f"{seconds:.0f}"]
    errors = [report.get("euler") or next(iter(report["residuals"].values())) for report in (found, found["untrained"])]
    cells += [log10(errors[0][level]) for level in ("mean", "p99", "max")]
    shares = [f"{limit['share']:.3f}" for limit in found.get("binding", {}).values()]
    policy_errors = [f"{report.get('policy_error', np.nan):.2e}" for report in (found, found["untrained"])]
    return [*cells, policy_errors[0], " ".join(shares) or "-", log10(errors[1]["mean"]), policy_errors[1]]


def main() -> None:
    """Print a line for each seed of each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="all unless named")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    lines = [HEAD]
    for name in arguments.rows or ROWS:
        for seed in range(arguments.seeds):
            lines.append(row(name, seed))
            print("  ".join(lines[-1]), flush=True)
    print("\n" + align(lines))


if __name__ == "__main__":
    main()
