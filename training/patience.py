"""What evaluations during training lead to: a best policy, smaller rates, an early end."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from .checkpoint import Position
from .config import Config


def count_evaluation(position: Position, config: Config, returns: Float[np.ndarray, " S"]) -> Bool[np.ndarray, " S"]:
    """Count an evaluation: note each seed's best return, and where the mean over seeds is no better, wait.

    Where it has not been for `plateau.patience` evaluations, rates shrink; for `stopping.patience`, the run is over.

    Args:
        position: how far the run is; it is changed.
        config: the run's settings.
        returns: of the seeds.

    Returns:
        The seeds whose policy is their best so far.
    """
    old = np.array(position.best) if position.best else np.full_like(returns, -np.inf)
    better = returns > old
    if better.any():
        position.best = np.where(better, returns, old).tolist()
    mean = float(returns.mean())
    gained = position.best_mean is None or mean > position.best_mean + config.stopping.least_gain
    position.best_mean = mean if gained or position.best_mean is None else position.best_mean
    position.waited = 0 if gained else position.waited + 1
    position.waited_to_reduce = 0 if gained else position.waited_to_reduce + 1
    plateau, patience = config.plateau, config.stopping.patience
    if plateau.patience is not None and position.waited_to_reduce >= plateau.patience:
        position.rate_scale = max(position.rate_scale * plateau.factor, plateau.least)
        position.waited_to_reduce = 0
    if patience is not None and position.waited >= patience:
        position.stopped = (
            f"no better return in {position.waited} evaluations, at iteration {position.iteration} of "
            f"{config.training.iterations}"
        )
    return better
