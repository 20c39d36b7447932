"""The losses of proximal policy optimisation, over the living agents of a minibatch.

Schulman et al. (2017), "Proximal policy optimization algorithms"; Yu et al. (2022), "The surprising effectiveness of
PPO in cooperative multi-agent games", appendix A.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .estimators import masked_mean
from .teams import team_mean

VALUE_LOSSES = ("mse", "huber")
RATIOS = ("per_agent", "joint")
HUBER_DELTA = 10.0


def clipped_surrogate(
    change: Float[Array, "B A"],
    advantage: Float[Array, "B A"],
    mask: Bool[Array, "B A"],
    clip: Float[Array, ""],
    ratio: str = "per_agent",
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The mean of `min(r A, clip(r, 1 - clip, 1 + clip) A)`, and how far the policy has moved.

    Args:
        change: log-probability of what each agent did, now less then; 0 in dead slots.
        advantage: of each agent; 0 in dead slots.
        mask: living agents.
        clip: of the probability ratio r.
        ratio: "per_agent": one term an agent. "joint": one a transition, of the probability of what all living agents
            did together and the mean of their advantages.

    Returns:
        The surrogate, to be maximised, and metrics: `policy/approx_kl` (the mean of r - 1 - log r; Schulman 2020,
        "Approximating KL divergence", k3), `policy/clip_fraction` and `policy/ratio_error`, the largest |r - 1|.
    """
    if ratio == "joint":
        change, advantage, mask = change.sum(axis=-1), team_mean(advantage, mask), mask.any(axis=-1)
    r = jnp.exp(change)
    limited = jnp.clip(r, 1 - clip, 1 + clip)
    surrogate = masked_mean(jnp.minimum(r * advantage, limited * advantage), mask)
    return surrogate, {
        "policy/approx_kl": masked_mean(r - 1 - change, mask),
        "policy/clip_fraction": masked_mean((jnp.abs(r - 1) > clip).astype(r.dtype), mask),
        "policy/ratio_error": jnp.max(jnp.abs(r - 1)),
    }


def value_error(
    value: Float[Array, "..."],
    target: Float[Array, "..."],
    mask: Bool[Array, "..."],
    delta: Float[Array, ""] | None = None,
    before: Float[Array, "..."] | None = None,
    clip: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """The mean error of predicted values: squared, or Huber's, which is the square up to `delta` and linear beyond.

    Args:
        value, target: of each agent or team, in one unit.
        mask: what counts.
        delta: where the linear part `2 delta |e| - delta^2` begins; None: nowhere.
        before, clip: with these, the larger of the error and of what it would be had the value moved from `before` by
            `clip` at most, as in the policy's surrogate.
    """

    def error(predicted: Any) -> Float[Array, "..."]:
        e = predicted - target
        if delta is None:
            return e**2
        size = jnp.abs(e)
        # the inner minimum keeps the unused branch finite where it is differentiated
        return jnp.where(size <= delta, jnp.minimum(size, delta) ** 2, 2 * delta * size - delta**2)

    found = error(value)
    if clip is not None and before is not None:
        found = jnp.maximum(found, error(before + jnp.clip(value - before, -clip, clip)))
    return masked_mean(found, mask)
