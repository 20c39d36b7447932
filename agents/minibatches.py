"""A rollout in random order, cut into minibatches.

An order depends on its key alone, never on the devices that environments are spread over.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Shaped

from .sharding import device_count, spread


def turned_order(key: Array, num_steps: int, num_envs: int) -> Int[Array, " S"]:
    """A random order of the states of a rollout, `[T, N]` flattened.

    Environments are permuted and each one's periods turned by a random number: any N states in a row are of different
    environments, at periods of their own. Only N numbers are sorted; a permutation of all T N would cost a fifth of the
    gradient steps.

    Args:
        key: of the order.
        num_steps, num_envs: T and N.
    """
    turn, column = _turned_columns(key, num_steps, num_envs)
    row = (jnp.arange(num_steps)[:, None] + turn) % num_steps
    return (row * num_envs + column).reshape(-1)


def _turned_columns(key: Array, num_steps: int, num_envs: int) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
    """How far periods are turned, and in which order the environments are to which that happens."""
    key_turn, key_column = jax.random.split(key)
    turn = jax.random.randint(key_turn, (num_envs,), 0, num_steps)
    return turn, jax.random.permutation(key_column, num_envs)


def shuffled(key: Array, batch: PyTree, num_steps: int, num_envs: int, minibatches: int) -> PyTree:
    """All transitions of a rollout in random order, cut along a new first axis `[M, T N / M, ...]`.

    Rows of `turned_order` are permuted too, so that a minibatch of many periods of few environments is not of
    neighbouring ones. Every minibatch has as many transitions of each environment as any other, give or take one.
    Where M divides T it is none, and environments that are spread over devices stay where they are: minibatches are the
    same, in another order within.

    Args:
        key: of the order.
        batch: leaves `[T N, ...]`.
        num_steps, num_envs: T and N.
        minibatches: M, which divides T N.
    """
    key_order, key_rows = jax.random.split(key)
    if device_count() > 1 and num_steps % minibatches == 0:
        turn, column = _turned_columns(key_order, num_steps, num_envs)
        turn = jnp.zeros_like(turn).at[column].set(turn)
        period = (jax.random.permutation(key_rows, num_steps) + turn[:, None]) % num_steps
        return jax.tree.map(lambda x: _cut_in_place(x, spread(period), minibatches), batch)
    rows = turned_order(key_order, num_steps, num_envs).reshape(num_steps, num_envs)
    return cut(batch, jax.random.permutation(key_rows, rows), minibatches)


def _cut_in_place(x: Shaped[Array, "S ..."], period: Int[Array, "N T"], minibatches: int) -> Shaped[Array, "M B ..."]:
    """Each environment's periods in their order, cut along it: minibatches that take their part of each environment."""
    num_envs, num_steps = period.shape
    x = spread(x.reshape(num_steps, num_envs, *x.shape[1:]), axis=1)
    mine = jax.vmap(lambda x, period: x[period], (1, 0))(x, period)
    parts = mine.reshape(num_envs, minibatches, -1, *x.shape[2:])
    return spread(jnp.moveaxis(parts, 1, 0).reshape(minibatches, -1, *x.shape[2:]), axis=1)


def cut(batch: PyTree, order: Int[Array, " ..."], minibatches: int) -> PyTree:
    """Leaves `[S, ...]` in an order, cut along a new first axis `[M, S / M, ...]`; each minibatch over all devices.

    Args:
        batch: leaves `[S, ...]`.
        order: S places.
        minibatches: M, which divides S.
    """
    order = spread(order.reshape(minibatches, -1), axis=1)
    return spread(jax.tree.map(lambda x: x[order], batch), axis=1)


def shuffled_chunks(key: Array, batch: PyTree, num_steps: int, num_envs: int, minibatches: int, length: int) -> PyTree:
    """The same in chunks of each environment's consecutive transitions, which stay together and in their order.

    Args:
        key: of the order.
        batch: leaves `[T N, ...]`.
        num_steps, num_envs: T and N.
        minibatches: M, which divides the number of chunks.
        length: of a chunk, which divides T.
    """
    chunk = jax.random.permutation(key, num_steps // length * num_envs).reshape(minibatches, -1, 1)
    step = chunk // num_envs * length + jnp.arange(length)
    return cut(batch, step * num_envs + chunk % num_envs, minibatches)
