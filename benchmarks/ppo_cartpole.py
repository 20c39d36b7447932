"""PPO on gymnax's CartPole-v1: returns over 500k steps, and steps per CPU second after compilation.

    python benchmarks/ppo_cartpole.py [seeds] [--together]

Seeds run one after another, or side by side in one call: what that saves is one seed's CPU seconds alone, times the
number of seeds, over theirs together.
"""

import argparse
import time

import jax
import numpy as np

from equimorph.training.collect import TrainState
from equimorph.training.config import build, resolve
from equimorph.training.loop import create_train_state, make_train_step
from equimorph.training.plan import iterations_per_chunk

LAST = 50
"""Iterations at the end over which returns are averaged."""


def trained(first: int, num_seeds: int) -> tuple[np.ndarray, float, float]:
    """Train seeds side by side, as the trainer does, in chunks.

    Args:
        first: the first seed.
        num_seeds: how many, one after the other in number.

    Returns:
        The mean return over the last 50 iterations of each, CPU seconds without compilation, and those of the first
        chunk of all, thrown away, in which the program is compiled.
    """
    config = resolve("CartPole-v1", "mappo")
    env, params, agent = build(config)
    iterations, sizes = config.training.iterations, config.rollout
    chunk = iterations_per_chunk(iterations, None)
    counts = {"num_envs": sizes.num_envs, "num_seeds": num_seeds}
    step = make_train_step(env, params, agent, num_steps=sizes.num_steps, iterations=chunk, **counts)

    def untrained() -> TrainState:
        return create_train_state(env, params, agent, seed=first, num_iterations=iterations, **counts)

    started = time.process_time()
    jax.block_until_ready(step(untrained()))
    compiling = time.process_time() - started
    state, started = untrained(), time.process_time()
    chunks = []
    for _ in range(iterations // chunk):
        state, metrics = step(state)
        chunks.append({name: np.asarray(metrics[f"episode/{name}"]) for name in ("return_sum", "finished")})
    seconds = time.process_time() - started
    sums = {name: np.concatenate([c[name] for c in chunks], axis=-1)[..., -LAST:].sum(-1) for name in chunks[0]}
    return np.atleast_1d(sums["return_sum"] / sums["finished"]), seconds, compiling


def main() -> None:
    """Print a line for each call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="?", type=int, default=3)
    parser.add_argument("--together", action="store_true", help="in one call, vmapped")
    arguments = parser.parse_args()
    config = resolve("CartPole-v1", "mappo")
    steps = config.training.iterations * config.rollout.num_envs * config.rollout.num_steps
    calls = [(0, arguments.seeds)] if arguments.together else [(seed, 1) for seed in range(arguments.seeds)]
    for first, count in calls:
        returns, seconds, compiling = trained(first, count)
        print(
            f"seeds {first} to {first + count - 1}, {steps} steps each: {seconds:.2f} CPU s, "
            f"{count * steps / seconds:,.0f} steps per CPU s, the first chunk with compilation {compiling:.1f} CPU s; "
            f"return over the last {LAST} iterations " + " ".join(f"{score:.1f}" for score in returns),
            flush=True,
        )


if __name__ == "__main__":
    main()
