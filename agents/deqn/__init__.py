"""The residual learner."""

from .agent import DEQN, DEQNState
from .residuals import policy_decision, residuals

__all__ = ["DEQN", "DEQNState", "policy_decision", "residuals"]
