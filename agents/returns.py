"""What weighs a score: returns to go or in all, of finished and unfinished episodes."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .agent import Rollout
from .estimators import before_end, end_is_seen, returns_to_go, since_start, steps_to_end, with_continuation
from .teams import team_mean

RETURNS = ("to_go", "total")
UNFINISHED = ("keep", "drop", "bootstrap")


class Signal(NamedTuple):
    """What a rollout earned, `[T, N, K]`: of each agent, K = A, or of the environment, K = 1, as the score terms are.

    Attributes:
        to_go: returns from each transition on.
        returns: those that weigh the score.
        living: transitions of living agents.
        counted: those of them whose returns mean something.
        scored: those of them whose score is weighed.
        successor: slot that each agent moves to.
    """

    to_go: Float[Array, "T N K"]
    returns: Float[Array, "T N K"]
    living: Bool[Array, "T N K"]
    counted: Bool[Array, "T N K"]
    scored: Bool[Array, "T N K"]
    successor: Int[Array, "T N K"]


def signal_of(
    rollout: Rollout,
    gamma: Float[Array, ""] | None,
    next_value: Float[Array, "T N A"] | None,
    *,
    shared: bool,
    returns: str,
    unfinished: str,
    unscored_tail: int,
) -> Signal:
    """The returns of a rollout.

    Args:
        rollout: what was earned.
        gamma: discount; None takes the rollout's.
        next_value: learned values after each transition, for unfinished="bootstrap".
        shared: the score terms are the environment's: so are returns, of the mean reward of the living, and only the
            first episode counts.
        returns, unfinished, unscored_tail: as in `REINFORCE`.
    """
    done = rollout.terminated | rollout.truncated
    living, successor = rollout.view.agent_mask, rollout.successor
    reward = jnp.where(living, rollout.reward, 0)
    discount = rollout.discount if gamma is None else jnp.broadcast_to(gamma, rollout.discount.shape)
    if shared:
        reward, discount = team_mean(reward, living)[..., None], discount[..., :1]
        living, successor = jnp.ones_like(reward, bool), jnp.zeros_like(successor[..., :1])
    counted = living
    if shared:
        counted = counted & before_end(done)[..., None]
    if unfinished == "drop":
        counted = counted & end_is_seen(done)[..., None]
    if next_value is not None:
        ends = (rollout.terminated, rollout.truncated)
        reward = jnp.where(living, with_continuation(reward, next_value, discount, *ends, successor), 0)
    to_go = returns_to_go(reward, discount, done, successor)
    weighed = since_start(to_go, done, successor) if returns == "total" else to_go
    scored = counted & (steps_to_end(rollout.terminated, rollout.truncated) >= unscored_tail)[..., None]
    return Signal(to_go, weighed, living, counted, scored, successor)
