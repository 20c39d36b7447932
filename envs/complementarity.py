"""Limits that bind in some states: x >= 0, y >= 0 and x y = 0, as one smooth equation."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def fischer_burmeister(x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """`x + y - sqrt(x^2 + y^2 + eps)`: zero where both are at least 0 and one of them is 0 (Fischer 1992).

    Both arguments are unit-free and of order one, and whatever is an expectation in them has been taken before. With
    eps = 1e-12 (1e-8 in float32) the derivative is finite at the origin, where the value is -sqrt(eps).

    Example:
        >>> violated = fischer_burmeister(jnp.array(-0.5), jnp.array(0.0))
        >>> round(float(violated), 3)
        -1.0
    """
    x, y = jnp.asarray(x), jnp.asarray(y)
    eps = 1e-12 if jnp.result_type(x, y) == jnp.float64 else 1e-8
    return x + y - jnp.sqrt(x**2 + y**2 + eps)
