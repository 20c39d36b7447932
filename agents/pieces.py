"""Sums over environments, piece by piece, so that the memory of one piece is enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..errors import UserError


class Parts(NamedTuple):
    """What is known of some environments and can be put together with what is known of others.

    Attributes:
        sums: named scalars that add up.
        largest: named scalars of which the largest counts.
    """

    sums: dict[str, Float[Array, ""]]
    largest: dict[str, Float[Array, ""]]


def check_divides(num_envs: int, micro_batches: int) -> None:
    """Raise `UserError` unless so many environments divide into so many pieces; it names numbers that would."""
    if num_envs % micro_batches:
        works = [n for n in range(1, min(num_envs, 64) + 1) if num_envs % n == 0]
        raise UserError(
            f"num_envs = {num_envs} environments do not divide into {micro_batches} micro_batches; micro_batches can "
            f"be {', '.join(map(str, works))}"
        )


def put_together(function: Callable[[PyTree, PyTree], Parts], weights: PyTree, batch: PyTree, pieces: int) -> Parts:
    """`function(weights, batch)` by pieces of the environments, of which one at a time is in memory.

    Each piece is computed again when the gradient passes it, so that this holds for the gradient too.

    Args:
        function: what is known of some environments.
        weights: what it is differentiated in.
        batch: leaves `[T, N, ...]`.
        pieces: how many; N must divide by it.
    """
    if pieces == 1:
        return function(weights, batch)

    @jax.checkpoint
    def one(weights, index):
        return function(weights, _piece(batch, index, pieces))

    def add(total, index):
        new = one(weights, index)
        sums = jax.tree.map(jnp.add, total.sums, new.sums)
        return Parts(sums, jax.tree.map(jnp.maximum, total.largest, new.largest)), None

    shapes = jax.eval_shape(one, weights, jnp.int32(0))
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes.sums)
    lowest = jax.tree.map(lambda x: jnp.full(x.shape, -jnp.inf, x.dtype), shapes.largest)
    return jax.lax.scan(add, Parts(empty, lowest), jnp.arange(pieces))[0]


def by_pieces(function: Callable[[PyTree], PyTree], batch: PyTree, pieces: int) -> PyTree:
    """`function(batch)`, whose leaves are `[T, N, ...]` as the batch's, by pieces of the environments."""
    if pieces == 1:
        return function(batch)
    found = jax.lax.map(lambda index: function(_piece(batch, index, pieces)), jnp.arange(pieces))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), found)


def _piece(batch: PyTree, index: Array, pieces: int) -> PyTree:
    """Neighbouring environments' share of a batch."""

    def cut(x):
        size = x.shape[1] // pieces
        return jax.lax.dynamic_slice_in_dim(x, index * size, size, axis=1)

    return jax.tree.map(cut, batch)
