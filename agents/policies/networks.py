"""Networks whose only leaves are arrays: everything else is static, so that a scan can carry them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...errors import UserError, unknown

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "elu": jax.nn.elu,
    "softplus": jax.nn.softplus,
}


class Linear(eqx.Module):
    """`weight @ x + bias`, with an orthogonal weight of the given gain and zero bias (Saxe et al. 2014)."""

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"]

    def __init__(self, key: Array, size_in: int, size_out: int, gain: float):
        dtype = jnp.result_type(float)
        self.weight = jax.nn.initializers.orthogonal(gain)(key, (size_out, size_in), dtype)
        self.bias = jnp.zeros((size_out,), dtype)

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        return x @ self.weight.T + self.bias


class MLP(eqx.Module):
    """A multilayer perceptron on the last axis; any leading axes are batch.

    Args:
        key: for the initial weights: orthogonal, gain sqrt 2 inside and `out_gain` at the output.
        size_in: length of the last axis of the input.
        size_out: length of the last axis of the output.
        widths: hidden sizes; none gives a linear map.
        activation: a name in `ACTIVATIONS`.
        out_gain: small for a policy, so that it starts at its centre.
    """

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)

    def __init__(
        self, key: Array, size_in: int, size_out: int, widths: Sequence[int], activation: str, out_gain: float
    ):
        sizes = (size_in, *widths, size_out)
        gains = [math.sqrt(2.0)] * len(widths) + [out_gain]
        keys = jax.random.split(key, len(gains))
        self.layers = tuple(
            Linear(k, a, b, gain) for k, a, b, gain in zip(keys, sizes[:-1], sizes[1:], gains, strict=True)
        )
        self.activation = activation

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        nonlinearity = ACTIVATIONS[self.activation]
        for layer in self.layers[:-1]:
            x = nonlinearity(layer(x))
        return self.layers[-1](x)


def check_network(widths: Sequence[int], activation: str) -> None:
    """Raise `UserError` for an unknown activation or a width below 1."""
    if activation not in ACTIVATIONS:
        raise unknown("activation", str(activation), ACTIVATIONS)
    if any(isinstance(width, bool) or not isinstance(width, int) or width < 1 for width in widths):
        raise UserError(f"hidden widths must be whole numbers of at least 1, got {tuple(widths)}")
