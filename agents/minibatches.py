"""A rollout in random order, cut into minibatches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree


def turned_order(key: Array, num_steps: int, num_envs: int) -> Int[Array, " S"]:
    """A random order of the states of a rollout, `[T, N]` flattened.

    Environments are permuted and each one's periods turned by a random number: any N states in a row are of different
    environments, at periods of their own. Only N numbers are sorted; a permutation of all T N would cost a fifth of the
    gradient steps.

    Args:
        key: of the order.
        num_steps, num_envs: T and N.
    """
    key_turn, key_column = jax.random.split(key)
    turn = jax.random.randint(key_turn, (num_envs,), 0, num_steps)
    row = (jnp.arange(num_steps)[:, None] + turn) % num_steps
    return (row * num_envs + jax.random.permutation(key_column, num_envs)).reshape(-1)


def shuffled(key: Array, batch: PyTree, num_steps: int, num_envs: int, minibatches: int) -> PyTree:
    """All transitions of a rollout in random order, cut along a new first axis `[M, T N / M, ...]`.

    Rows of `turned_order` are permuted too, so that a minibatch of many periods of few environments is not of
    neighbouring ones. Every minibatch has as many transitions of each environment as any other, give or take one.

    Args:
        key: of the order.
        batch: leaves `[T N, ...]`.
        num_steps, num_envs: T and N.
        minibatches: M, which divides T N.
    """
    key_order, key_rows = jax.random.split(key)
    rows = turned_order(key_order, num_steps, num_envs).reshape(num_steps, num_envs)
    order = jax.random.permutation(key_rows, rows).reshape(minibatches, -1)
    return jax.tree.map(lambda x: x[order], batch)


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
    order = (step * num_envs + chunk % num_envs).reshape(minibatches, -1)
    return jax.tree.map(lambda x: x[order], batch)
