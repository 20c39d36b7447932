"""Values in units of their own running mean and standard deviation, so that the scale of rewards does not matter."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .critics import last_layer
from .estimators import masked_mean

Moments = tuple[Float[Array, ""], Float[Array, ""]]
"""A mean and a standard deviation."""


class ValueScale(NamedTuple):
    """Running moments of the value targets, exponentially weighted; `weight` undoes their start at zero."""

    mean: Float[Array, ""]
    square: Float[Array, ""]
    weight: Float[Array, ""]

    def moments(self) -> Moments:
        """Debiased mean and standard deviation: 0 and 1 before anything was seen."""
        seen = self.weight > 0
        weight = jnp.where(seen, self.weight, 1)
        mean = self.mean / weight
        variance = jnp.maximum(self.square / weight - mean**2, 0)
        floor = 1e-4 * jnp.abs(mean) + 1e-8
        return mean, jnp.where(seen, jnp.maximum(jnp.sqrt(variance), floor), 1)

    def following(self, targets: Float[Array, "..."], mask: Bool[Array, "..."], keep: Array | float) -> ValueScale:
        """The moments with these targets in them, the old ones weighted by `keep`."""
        new = 1 - keep
        return ValueScale(
            keep * self.mean + new * masked_mean(targets, mask),
            keep * self.square + new * masked_mean(targets**2, mask),
            keep * self.weight + new,
        )


def rescaled(critic: Any, old: Moments, new: Moments) -> Any:
    """The critic whose outputs in the new moments are the values it had in the old ones."""
    (old_mean, old_std), (new_mean, new_std) = old, new
    last = last_layer(critic)
    weight = last.weight * old_std / new_std
    bias = (last.bias * old_std + old_mean - new_mean) / new_std

    def places(c: Any) -> tuple[Array, Array]:
        layer = last_layer(c)
        return layer.weight, layer.bias

    return eqx.tree_at(places, critic, (weight, bias))
