"""Learners: each knows environments, none knows the loop or another learner."""

from typing import TYPE_CHECKING

from .._lazy import lazy_attributes

if TYPE_CHECKING:
    from .agent import Agent
    from .classical.agent import Classical, classical_agent
    from .classical.log_linear import LinearRule, linearize
    from .deqn import DEQN
    from .dynare import DynareNames, read_dynare, write_dynare
    from .linear import LinearBase, linear_base
    from .mappo import MAPPO
    from .pathwise import Pathwise, unroll
    from .ppo import IPPO, PPO, team_episodes
    from .reinforce import REINFORCE

__all__ = [
    "DEQN",
    "IPPO",
    "MAPPO",
    "PPO",
    "REINFORCE",
    "Agent",
    "Classical",
    "DynareNames",
    "LinearBase",
    "LinearRule",
    "Pathwise",
    "classical_agent",
    "linear_base",
    "linearize",
    "read_dynare",
    "team_episodes",
    "unroll",
    "write_dynare",
]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "Agent": ".agent",
        "Classical": ".classical.agent",
        "DEQN": ".deqn",
        "DynareNames": ".dynare",
        "LinearBase": ".linear",
        "LinearRule": ".classical.log_linear",
        "IPPO": ".ppo",
        "MAPPO": ".mappo",
        "PPO": ".ppo",
        "Pathwise": ".pathwise",
        "REINFORCE": ".reinforce",
        "classical_agent": ".classical.agent",
        "linear_base": ".linear",
        "linearize": ".classical.log_linear",
        "read_dynare": ".dynare",
        "team_episodes": ".ppo",
        "unroll": ".pathwise",
        "write_dynare": ".dynare",
    },
)
