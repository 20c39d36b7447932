"""What the living agents of one environment are together: means over them, and rewards between one's own and theirs."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def team_mean(x: Float[Array, "*batch A"], mask: Bool[Array, "*batch A"]) -> Float[Array, "*batch"]:
    """Mean over the living agents; 0 where nobody lives. Dead slots may hold anything."""
    return jnp.where(mask, x, 0).sum(axis=-1) / jnp.maximum(mask.sum(axis=-1), 1)


def to_all(x: Float[Array, "*batch"], mask: Bool[Array, "*batch A"]) -> Float[Array, "*batch A"]:
    """What is the team's, to each living agent; 0 in dead slots."""
    return jnp.where(mask, x[..., None], 0)


def mixed_reward(
    reward: Float[Array, "*batch A"], mask: Bool[Array, "*batch A"], share: Float[Array, ""]
) -> Float[Array, "*batch A"]:
    """`(1 - share)` times an agent's own reward plus `share` times the team's mean; 0 in dead slots."""
    own = jnp.where(mask, reward, 0)
    return own + share * (to_all(team_mean(reward, mask), mask) - own)
