"""What a run is made of: its first and its resumed state, its chunks, its learning rates."""

from __future__ import annotations

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..agents.agent import Agent
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.environment import Environment, EnvParams
from ..errors import UserError
from .checkpoint import Saved, from_arrays
from .collect import TrainState
from .config import Config
from .loop import create_train_state
from .switch import Stage

REPORTS = 40
"""About how many reports a run has unless told otherwise, and at most how often a game's policy is measured."""

LEARNING_RATES = ("learning_rate", "critic_learning_rate", "value_learning_rate")


def without_host(state: TrainState, env: Environment) -> TrainState:
    """What of a train state can be saved: environments that are stepped on the host live in their own processes."""
    return state._replace(env_state=()) if isinstance(env, HostEnvironment) else state


def resumed_state(saved: Saved, fresh: TrainState, env: Environment, end: int) -> TrainState:
    """A train state from what was saved; `fresh` is one of the same structure at its start.

    Environments on the host begin anew, with everything that belongs to their episodes.
    """
    like = jax.eval_shape(lambda: without_host(fresh, env))
    state = from_arrays(saved.state, like)
    if isinstance(env, HostEnvironment):
        state = fresh._replace(agent=state.agent, key=state.key, iteration=state.iteration)
    return state._replace(num_iterations=jnp.full_like(state.num_iterations, end))


def first_state(config: Config, env: Environment, params: EnvParams, part: Stage) -> TrainState:
    """The train state before the first iteration, with the learner of a part of the run."""
    training = config.training
    return create_train_state(
        env,
        params,
        part.agent,
        num_envs=config.rollout.num_envs,
        num_iterations=part.end,
        seed=training.seed,
        num_seeds=training.num_seeds,
    )


def with_rates(agent: Agent, scale: float) -> Agent:
    """An agent whose learning rates are multiplied with `scale`.

    Raises:
        UserError: it has none.
    """
    if scale == 1:
        return agent
    stepper = getattr(agent, "stepper", None)
    if not getattr(stepper, "uses_rate", True):
        raise UserError(
            f"the stepper {getattr(stepper, 'name', stepper)!r} has no learning rate that could be made smaller; leave "
            "plateau.patience and guard.on_nonfinite out"
        )
    rates = {name: getattr(agent, name, None) for name in LEARNING_RATES}
    if rates["learning_rate"] is None:
        own = getattr(agent, "effective_rate", None)
        if own is None:
            raise UserError(f"{type(agent).__name__} has no learning rate that could be made smaller")
        rates["learning_rate"] = own()
    smaller = {name: rate * scale for name, rate in rates.items() if rate is not None}
    where = lambda a: [getattr(a, name) for name in smaller]  # noqa: E731
    return eqx.tree_at(where, agent, list(smaller.values()), is_leaf=lambda x: x is None)


def iterations_per_chunk(iterations: int, wanted: int | None) -> int:
    """How many iterations lie between two reports: what is wanted, or about a fortieth that divides the run."""
    if wanted is not None:
        return min(wanted, iterations)
    target = max(1, round(iterations / REPORTS))
    return next((size for size in _near(target) if iterations % size == 0), target)


def _near(target: int) -> Iterator[int]:
    """Whole numbers from half of `target` to twice of it, the nearest first by their ratio."""
    yield from sorted(range(max(1, -(-target // 2)), 2 * target + 1), key=lambda size: abs(np.log(size / target)))
