"""Named settings of MAPPO: PPO of one agent, independent PPO of several, and a team that learns from whole episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..envs.environment import Environment
from ..errors import UserError
from .mappo import MAPPO

_INDEPENDENT: Mapping[str, Any] = {
    "critic": "local",
    "critic_network": "mlp",
    "value": "per_agent",
    "ratio": "per_agent",
}
_SINGLE: Mapping[str, Any] = {
    **_INDEPENDENT,
    "reward": None,
    "sharing": "shared",
    "agent_id": False,
    "opponents": "current",
}

TEAM_EPISODES: Mapping[str, Any] = {
    "learning_rate": 3e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "value": "team_mean",
    "ratio": "joint",
    "clip": 0.2,
    "entropy": 0.01,
    "value_coefficient": 0.5,
    "epochs": 6,
    "minibatches": 4,
    "minibatch_unit": "rollouts",
    "stepper": {"optimizer": "adamw", "max_norm": 0.5, "weight_decay": 1e-4},
}


def PPO(**options: Any) -> MAPPO:
    """Proximal policy optimisation of one agent (Schulman et al. 2017): MAPPO without what is about several.

    Args:
        **options: MAPPO's, but for those about several agents.

    Raises:
        UserError: an option of which PPO has another value, or that MAPPO refuses.

    Example:
        >>> PPO(epochs=2).critic
        'local'
    """
    return MAPPO(**_with(options, _SINGLE, "PPO", "has one agent"))


def IPPO(**options: Any) -> MAPPO:
    """Independent PPO (de Witt et al. 2020, arXiv:2011.09533): each agent values what it sees itself.

    Agents share their networks unless `sharing` says otherwise.

    Args:
        **options: MAPPO's, but for those of a critic that sees more, or of a team.

    Raises:
        UserError: an option of which IPPO has another value, or that MAPPO refuses.
    """
    return MAPPO(**_with(options, _INDEPENDENT, "IPPO", "has a critic of each agent's own observation"))


def team_episodes(**options: Any) -> MAPPO:
    """A team of one mind: one advantage of the mean reward, one clipped ratio of all that the team did at once.

    The advantage is of the mean of the living agents' values and normalised once over the batch; minibatches are of
    whole rollouts; AdamW. It is made for complete episodes: `fresh_episodes`, `num_steps` of the time limit and 16
    environments, which is what training it by its name sets.

    Args:
        **options: MAPPO's, in place of what `TEAM_EPISODES` has.

    Raises:
        UserError: what MAPPO refuses.
    """
    return MAPPO(**{**TEAM_EPISODES, **options})


def check_single(env: Environment) -> None:
    """Raise `UserError` where PPO by name would be given several agents."""
    if env.num_agents > 1:
        raise UserError(f"'ppo' has one agent, and {env.name} has {env.num_agents}; use 'ippo' or 'mappo'")


def check_team(env: Environment) -> None:
    """Raise `UserError` where the recipe for teams by name would be given one agent."""
    if env.num_agents == 1:
        raise UserError(f"'team_episodes' trains a team, and {env.name} has one agent; use 'ppo'")


def _with(options: Mapping[str, Any], fixed: Mapping[str, Any], name: str, why: str) -> dict[str, Any]:
    """The options with what is fixed, which they may repeat and not change."""
    for option, value in fixed.items():
        if option in options and options[option] != value:
            raise UserError(f"{option} = {options[option]!r} does not apply to {name}, which {why}; use MAPPO")
    return {**options, **fixed}
