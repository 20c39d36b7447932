"""Learners: each knows environments, none knows the loop or another learner."""

from typing import TYPE_CHECKING

from .._lazy import lazy_attributes

if TYPE_CHECKING:
    from .agent import Agent
    from .deqn import DEQN
    from .mappo import MAPPO
    from .reinforce import REINFORCE

__all__ = ["DEQN", "MAPPO", "REINFORCE", "Agent"]

__getattr__, __dir__ = lazy_attributes(
    __name__, {"Agent": ".agent", "DEQN": ".deqn", "MAPPO": ".mappo", "REINFORCE": ".reinforce"}
)
