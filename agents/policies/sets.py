"""A critic that reads a population as a set: it does not matter who stands where, nor what stands in empty slots."""

from __future__ import annotations

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .networks import ACTIVATIONS, MLP, Linear


class SetCritic(eqx.Module):
    """Each agent's value from its own embedding and from the mean and the largest of the living agents' embeddings.

    Permuting the other agents changes nothing, and permuting all permutes the outputs (Zaheer et al. 2017, "Deep
    sets"). The first input of an agent says whether it is alive; the others are what is embedded. Where nobody lives
    the pools are 0.

    Args:
        key: for the initial weights: orthogonal, gain sqrt 2 inside and `out_gain` at the output.
        size_in: inputs of an agent, the first included.
        size_out: outputs of an agent.
        widths: hidden sizes of the embedding, the last of them the embedding's own and that of the one hidden layer
            behind the pools; at least one.
        activation: a name in `ACTIVATIONS`.
        out_gain: of the output layer.
    """

    embedding: MLP
    readout: MLP

    def __init__(
        self, key: Array, size_in: int, size_out: int, widths: Sequence[int], activation: str, out_gain: float
    ):
        key_embedding, key_readout = jax.random.split(key)
        size = widths[-1]
        self.embedding = MLP(key_embedding, size_in - 1, size, widths[:-1], activation, math.sqrt(2.0))
        self.readout = MLP(key_readout, 3 * size, size_out, (size,), activation, out_gain)

    @property
    def last(self) -> Linear:
        """The output layer."""
        return self.readout.layers[-1]

    def __call__(self, inputs: Float[Array, "*batch A in"]) -> Float[Array, "*batch A out"]:
        alive = inputs[..., :1] > 0.5
        own = ACTIVATIONS[self.embedding.activation](self.embedding(inputs[..., 1:]))
        count = alive.sum(axis=-2, keepdims=True)
        mean = jnp.where(alive, own, 0).sum(axis=-2, keepdims=True) / jnp.maximum(count, 1)
        least = jnp.finfo(own.dtype).min
        largest = jnp.where(alive, own, least).max(axis=-2, keepdims=True)
        largest = jnp.where(count > 0, largest, 0)
        pools = jnp.broadcast_to(jnp.concatenate([mean, largest], axis=-1), (*own.shape[:-1], 2 * own.shape[-1]))
        return self.readout(jnp.concatenate([own, pools], axis=-1))
