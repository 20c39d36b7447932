"""The cross-section of a population: who holds what, how it moves, how unequal it is."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from ..environment import EnvState


@struct.dataclass
class State(EnvState):
    """The cross-section at the beginning of a period.

    Attributes:
        a: assets of each agent, a household or a point of the histogram's grid; `[A]`.
        own: index of its own state (productivity, employment); `[A]`.
        mass: the share of the population that it stands for; `[A]`.
        capital: mean assets, which prices follow.
        z: index of the aggregate state; 0 throughout where there is one.
    """

    a: Float[Array, " A"]
    own: Int[Array, " A"]
    mass: Float[Array, " A"]
    capital: Float[Array, ""]
    z: Int[Array, ""]


def move(
    mass: Float[Array, " A"], saved: Float[Array, " A"], grid: Float[Array, " n"], own: Float[Array, "S S"]
) -> Float[Array, " A"]:
    """The distribution after everyone saved: to the two nearest points in proportion, so that means are kept.

    Args:
        mass: of `[own state, grid point]`, flattened.
        saved: assets chosen there.
        grid: increasing.
        own: chances of own states.
    """
    points, states = grid.shape[0], own.shape[0]
    low = jnp.clip(jnp.searchsorted(grid, saved, side="right") - 1, 0, points - 2)
    up = jnp.clip((saved - grid[low]) / (grid[low + 1] - grid[low]), 0, 1)
    rows = jnp.repeat(jnp.arange(states), points)
    moved = jnp.zeros((states, points), mass.dtype)
    moved = moved.at[rows, low].add(mass * (1 - up)).at[rows, low + 1].add(mass * up)
    return jnp.einsum("su,sn->un", own, moved, precision="highest").ravel()


def gini(x: Float[Array, " A"], mass: Float[Array, " A"]) -> Float[Array, ""]:
    """Twice the area between the Lorenz curve of `x` and the diagonal; 0 where everyone has the same."""
    order = jnp.argsort(x)
    weight = mass[order] / mass.sum()
    lorenz = jnp.cumsum(weight * x[order])
    total = jnp.where(lorenz[-1] > 0, lorenz[-1], 1)
    return jnp.where(lorenz[-1] > 0, 1 - jnp.sum(weight * (2 * lorenz - weight * x[order])) / total, 0)


def population_mean(mass: Float[Array, " A"], x: Float[Array, " A"]) -> Float[Array, ""]:
    """Mean of `x` over the population."""
    return jnp.sum(mass * x)
