"""The same run twice: in an outer loop of one's own, and from a file. The policies are equal, bit for bit.

The low level is two functions. `create_train_state` makes one pytree that holds everything (learner, environments,
keys); `make_train_step` compiles a chunk of iterations that takes it and returns the next. What lies between two chunks
is the reader's: here a line of the score.

    python examples/custom_loop.py
"""

from pathlib import Path

import jax
import numpy as np

import equimorph
from equimorph.training import create_train_state, load_config, make_train_step

FILE = Path(__file__).with_suffix(".yaml")


def by_hand(settings):
    """Train with the low level; returns the learner's state."""
    env, params = equimorph.make(settings["env"]["id"], **settings["env"]["params"])
    hyperparameters = {name: value for name, value in settings["agent"].items() if name != "name"}
    agent = equimorph.agents.MAPPO(**hyperparameters)
    iterations, seed = settings["training"]["iterations"], settings["training"]["seed"]
    num_envs, num_steps = settings["rollout"]["num_envs"], settings["rollout"]["num_steps"]

    state = create_train_state(env, params, agent, num_envs=num_envs, num_iterations=iterations, seed=seed)
    step = make_train_step(env, params, agent, num_envs=num_envs, num_steps=num_steps, iterations=5)
    for chunk in range(iterations // 5):
        state, metrics = step(state)
        print(f"iteration {5 * (chunk + 1):>3}  value loss {metrics['loss/value'].mean():.4f}")
    return state.agent


def main():
    """Print whether both ways lead to the same policy."""
    settings = load_config(FILE)
    mine = by_hand(settings)
    state, _ = equimorph.train_from_config(settings)
    pairs = zip(jax.tree.leaves(mine), jax.tree.leaves(state.agent), strict=True)
    print("bit for bit the same:", all(np.array_equal(a, b) for a, b in pairs))


if __name__ == "__main__":
    main()
