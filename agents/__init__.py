"""Learners: each knows environments, none knows the loop or another learner."""

from typing import TYPE_CHECKING

from .._lazy import lazy_attributes

if TYPE_CHECKING:
    from .agent import Agent
    from .classical.agent import Classical, classical_agent
    from .deqn import DEQN
    from .mappo import MAPPO
    from .reinforce import REINFORCE

__all__ = ["DEQN", "MAPPO", "REINFORCE", "Agent", "Classical", "classical_agent"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "Agent": ".agent",
        "Classical": ".classical.agent",
        "DEQN": ".deqn",
        "MAPPO": ".mappo",
        "REINFORCE": ".reinforce",
        "classical_agent": ".classical.agent",
    },
)
