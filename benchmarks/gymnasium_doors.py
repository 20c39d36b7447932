"""What our doors to Gymnasium cost, beside gymnax's own wrappers and Gymnasium's own CartPole.

CartPole-v1 everywhere, random actions drawn beforehand, episodes restarted as the interface asks. Steps per CPU second
of this process, measured in turns; the median of the paired ratios is printed. gymnax's wrappers return JAX arrays, so
observation, reward and both flags are turned into NumPy's (without a copy), as a user of NumPy needs them; ours are.
CPU seconds count every thread: on a machine that others use they are what a step costs, and wall time is not.

    python benchmarks/gymnasium_doors.py
"""

import importlib.metadata
import statistics
import sys
import time

import gymnasium
import gymnax
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnax.wrappers.gym import GymnaxToGymWrapper, GymnaxToVectorGymWrapper

import equimorph

SIZES = (1, 256, 2048)
PAIRS = 31
SECONDS = 0.15
TABLE = 64  # different batches of actions


def as_numpy(observation, reward, terminated, truncated, info):
    """What a learner in NumPy reads of a step."""
    return np.asarray(observation), np.asarray(reward), np.asarray(terminated), np.asarray(truncated)


def single(env, convert):
    """A run of so many steps of one environment. gymnax's wrapper resets by itself, at no call of ours."""
    actions = [int(a) for a in np.random.default_rng(0).integers(0, 2, TABLE)]
    resets = not convert
    env.reset(seed=0)

    def run(steps):
        for t in range(steps):
            shown = env.step(actions[t % TABLE])
            if convert:
                shown = as_numpy(*shown)
            if resets and (shown[2] or shown[3]):
                env.reset()

    return run


def vector(envs, num_envs, convert):
    """A run of so many steps of all environments, which reset themselves."""
    actions = np.random.default_rng(0).integers(0, 2, (TABLE, num_envs))
    envs.reset(seed=0)

    def run(steps):
        for t in range(steps):
            shown = envs.step(actions[t % TABLE])
            if convert:
                as_numpy(*shown)

    return run


def cpu_seconds(run, steps):
    """CPU seconds of the process for so many steps."""
    started = time.process_time()
    run(steps)
    return time.process_time() - started


def compare(runs):
    """Median CPU seconds a step of each, and of the first's paired speed-ups over the others."""
    steps = {}
    for name, run in runs.items():
        cpu_seconds(run, 100)
        steps[name] = max(5, round(SECONDS / (cpu_seconds(run, 100) / 100)))
    took = {name: [] for name in runs}
    names = list(runs)
    for pair in range(PAIRS):
        for name in names[pair % len(names) :] + names[: pair % len(names)]:
            took[name].append(cpu_seconds(runs[name], steps[name]) / steps[name])
    ours = took[names[0]]
    ratios = {
        name: statistics.median(theirs / mine for mine, theirs in zip(ours, took[name], strict=True))
        for name in names[1:]
    }
    return {name: statistics.median(took[name]) for name in names}, ratios


def singles():
    """One environment, ours first."""
    env, params = gymnax.make("CartPole-v1")
    return {
        "ours": single(equimorph.make("CartPole-v1", api="gymnasium"), convert=False),
        "gymnax's wrapper": single(GymnaxToGymWrapper(env, params), convert=True),
        "Gymnasium's own": single(gymnasium.make("CartPole-v1").unwrapped, convert=False),
    }


def vectors(num_envs):
    """N environments, ours first, in each of the modes."""
    env, params = gymnax.make("CartPole-v1")
    make = lambda mode: equimorph.make("CartPole-v1", api="gymnasium", num_envs=num_envs, autoreset_mode=mode)  # noqa: E731
    runs = {
        "ours": vector(make(AutoresetMode.NEXT_STEP), num_envs, convert=False),
        "ours, SAME_STEP": vector(make(AutoresetMode.SAME_STEP), num_envs, convert=False),
        "gymnax's wrapper": vector(GymnaxToVectorGymWrapper(env, num_envs, params), num_envs, convert=True),
    }
    theirs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(num_envs)])
    return runs | {"SyncVectorEnv": vector(theirs, num_envs, convert=False)}


def show(title, num_envs, runs):
    """Print a row for each run."""
    seconds, ratios = compare(runs)
    for name, each in seconds.items():
        ratio = f"{ratios[name]:>20.2f}" if name in ratios else f"{'':>20}"
        print(f"{title:<14}{name:<20}{num_envs / each:>22,.0f}{ratio}", flush=True)


def main(*sizes: int) -> None:
    """Print the table."""
    print(*(f"{library} {importlib.metadata.version(library)}" for library in ("jax", "gymnax", "gymnasium")), sep=", ")
    print(f"{'':<14}{'':<20}{'steps per CPU second':>22}{'ours over this':>20}")
    show("Env", 1, singles())
    for num_envs in sizes or SIZES:
        show(f"N = {num_envs}", num_envs, vectors(num_envs))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
