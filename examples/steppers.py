"""One learner, one economy, every stepper: what each makes of ten to fifty seconds of the CPU.

Growth-v0 with risk aversion 2 has no closed form; errors are unit-free Euler errors on visited states, against true
conditional expectations. It has one condition, so there is nothing for "pcgrad" and "mao" to balance: their rows are
Adam's, and show what they cost. Second-order steppers need float64 for what they can do.

    python examples/steppers.py [adam lm ...]
"""

import sys
import time

import jax

import equimorph
from equimorph.training.report import align, log10

# Each has the settings that suit it: a first-order stepper takes many cheap steps on 128 states, a second-order one few
# dear ones, and a line search wants all states of a rollout at once.
MANY = {"iterations": 400, "rollout": {"num_envs": 128, "num_steps": 16}, "batch_size": 128}
FEW = {"iterations": 30, "rollout": {"num_envs": 128, "num_steps": 4}, "batch_size": 128}
WHOLE = {"iterations": 150, "rollout": {"num_envs": 128, "num_steps": 8}, "batch_size": 1024}
STEPPERS = {
    "adam": MANY,
    "adamw": MANY,
    "lion": {**MANY, "learning_rate": 1e-4},
    "muon": MANY,
    "pcgrad": MANY,
    "mao": MANY,
    "lbfgs": WHOLE,
    "gn": FEW,
    "ign": FEW,
    "lm": FEW,
}


def row(name: str, settings: dict) -> list[list[str]]:
    """Train with one stepper; its line of the table, and the untrained policy's."""
    sizes = settings["rollout"]
    steps = settings["iterations"] * sizes["num_envs"] * sizes["num_steps"] // settings["batch_size"]
    started = time.process_time()
    run = equimorph.train("Growth-v0", "deqn", stepper=name, progress=False, **settings)
    seconds = time.process_time() - started
    found = equimorph.evaluate(run)
    errors, before = found["euler"], found["untrained"]["euler"]
    cells = [name, f"{seconds:.0f}", str(steps), log10(errors["mean"]), log10(errors["max"])]
    print(f"{name}: {seconds:.0f} CPU seconds, log10 Euler mean {log10(errors['mean'])}", flush=True)
    return [cells, ["untrained", "0", "0", log10(before["mean"]), log10(before["max"])]]


def main(*names: str) -> None:
    """Train with every stepper, or those named, and print one table."""
    jax.config.update("jax_enable_x64", True)
    rows = [row(name, STEPPERS[name]) for name in names or STEPPERS]
    head = ["stepper", "CPU s, compiling included", "steps", "log10 Euler mean", "log10 Euler max"]
    print("\n" + align([head, rows[0][1], *(cells for cells, _ in rows)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
