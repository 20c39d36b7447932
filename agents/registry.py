"""Agents by name: learners, classical solvers and tissues' rules."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from ..errors import UserError, unknown

AGENTS = {
    "mappo": "MAPPO",
    "ppo": "PPO",
    "ippo": "IPPO",
    "team_episodes": "team_episodes",
    "reinforce": "REINFORCE",
    "deqn": "DEQN",
    "pathwise": "Pathwise",
}
"""Learners by name: a class, or a function that makes one with settings of its own."""


def agent_names() -> list[str]:
    """Learners, classical solvers and tissues' rules."""
    from .classical import SOLVERS
    from .classical.tissues import RULES

    return [*AGENTS, *SOLVERS, *RULES]


def is_solver(name: str) -> bool:
    """Whether an agent of that name is a classical solver or a tissue's rule; otherwise it is a learner.

    Raises:
        UserError: it is neither; the message names the nearest.
    """
    if not isinstance(name, str):
        kind = name.__name__ if isinstance(name, type) else type(name).__name__
        raise UserError(f"an agent is given by its name, such as 'deqn', got {kind}; its options go beside the name")
    names = agent_names()
    if name not in names:
        raise unknown("agent", name, names)
    return name not in AGENTS


def make_agent(name: str, env: Any, params: Any, **hyperparameters: Any) -> Any:
    """The agent of that name; a classical solver solves the environment here, a rule is made for it.

    Raises:
        UserError: there is none, or it refuses its hyperparameters or (a solver) the environment.
    """
    from .. import agents
    from .classical.tissues import RULES, rule_agent

    if name in RULES:
        return rule_agent(name, env, params, **hyperparameters)
    if is_solver(name):
        return agents.classical_agent(name, env, params, **hyperparameters)
    if name in ("ppo", "team_episodes"):
        from .ppo import check_single, check_team

        (check_single if name == "ppo" else check_team)(env)
    return getattr(agents, AGENTS[name])(**hyperparameters).prepare(env, params)


def hyperparameters(name: str) -> dict[str, Any]:
    """An agent's hyperparameters and their annotations.

    Raises:
        UserError: there is no agent of that name.
    """
    from .. import agents

    if is_solver(name):
        from .classical.agent import options_of
        from .classical.tissues import RULES, rule_options

        return rule_options(name) if name in RULES else options_of(name)
    learner = getattr(agents, AGENTS[name])
    if not isinstance(learner, type):
        learner = typing.get_type_hints(learner)["return"]
    hints = typing.get_type_hints(learner)
    return {field.name: hints[field.name] for field in dataclasses.fields(learner) if field.init}
