"""Changing the stepper in the middle of a run."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jaxtyping import PyTree

from ..agents.agent import Agent
from ..agents.registry import is_solver, make_agent
from ..envs.environment import Environment, EnvParams
from ..errors import UserError
from .config import RATES, Config


class Stage(NamedTuple):
    """A part of a run under one stepper.

    Attributes:
        agent: the learner with that stepper.
        start, end: iterations before it, and when it is over.
    """

    agent: Agent
    start: int
    end: int


def stages(config: Config, env: Environment, params: EnvParams, agent: Agent) -> list[Stage]:
    """The parts of a run: one, and one more for each entry of `training.switch`.

    Args:
        config: the run's.
        env, params, agent: as `build` makes them; `agent` is the first part's.

    Raises:
        UserError: switches out of order or beyond the run, or options that a stepper refuses.
    """
    training = config.training
    agents, starts = [agent], [0]
    if training.switch and is_solver(config.agent.name):
        raise UserError(f"agent {config.agent.name!r} has no stepper that training.switch could change; leave it out")
    for number, switch in enumerate(training.switch):
        if not starts[-1] < switch.at < training.iterations:
            raise UserError(
                f"training.switch[{number}].at = {switch.at} must lie above {starts[-1]} and below "
                f"training.iterations = {training.iterations}"
            )
        changes = {key: value for key, value in switch.model_dump().items() if key != "at" and value is not None}
        kept = {k: v for k, v in config.agent.hyperparameters.items() if k not in RATES}
        agents.append(make_agent(config.agent.name, env, params, **{**kept, **changes}))
        starts.append(switch.at)
    return [Stage(*part) for part in zip(agents, starts, [*starts[1:], training.iterations], strict=True)]


def restart(agent: Agent, state: PyTree, env: Environment, params: EnvParams, num_seeds: int) -> PyTree:
    """An agent's state with everything learnt kept and the stepper's own state of `agent` started."""

    def one(state: PyTree) -> PyTree:
        return agent.restart(state, env, params)

    return jax.jit(jax.vmap(one) if num_seeds > 1 else one)(state)
