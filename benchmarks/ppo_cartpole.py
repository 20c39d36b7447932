"""PPO on gymnax's CartPole-v1: returns over 500k steps, and steps per CPU second after compilation.

python benchmarks/ppo_cartpole.py [SEEDS]
"""

import sys
import time

import jax
import numpy as np

from equimorph.training.config import build, resolve
from equimorph.training.loop import create_train_state, make_train_step


def main(num_seeds: int = 3) -> None:
    """Train seeds one after another, as a user would; the first call of the program compiles and is not counted."""
    config = resolve("CartPole-v1", "mappo")
    env, params, agent = build(config)
    iterations, sizes = config.training.iterations, config.rollout
    step = make_train_step(
        env, params, agent, num_envs=sizes.num_envs, num_steps=sizes.num_steps, iterations=iterations
    )
    create = {"num_envs": sizes.num_envs, "num_iterations": iterations}
    started = time.process_time()
    jax.block_until_ready(step(create_train_state(env, params, agent, seed=10_000, **create)))
    first = time.process_time() - started
    steps = iterations * sizes.num_envs * sizes.num_steps
    for seed in range(num_seeds):
        state = create_train_state(env, params, agent, seed=seed, **create)
        started = time.process_time()
        _, metrics = step(state)
        jax.block_until_ready(metrics)
        seconds = time.process_time() - started
        last = {name: np.asarray(metrics[f"episode/{name}"])[-50:].sum() for name in ("return_sum", "finished")}
        score = last["return_sum"] / last["finished"]
        print(
            f"seed {seed}: {steps} steps, return over the last 50 iterations {score:.1f}, "
            f"{seconds:.2f} CPU s, {steps / seconds:,.0f} steps per CPU s",
            flush=True,
        )
    print(f"compilation {first - seconds:.1f} CPU s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
