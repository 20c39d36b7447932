"""What the solvers of economies with many saving households share: tables in cash, and Young's lotteries."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float

from ...envs.economies._households import HouseholdEconomy, State, utility
from ...envs.environment import drop_agent_axis
from ._interpolation import interpolate, locate


class Table(eqx.Module):
    """A function of cash above the borrowing limit, for each aggregate and own state and each of some mean assets.

    Attributes:
        x: cash above the limit, increasing, `[Z, S, K, n]`.
        y: values there.
        capital: mean assets `[K]`; beyond their ends the nearest counts. One alone counts everywhere.
    """

    x: Float[Array | np.ndarray, "Z S K n"]
    y: Float[Array | np.ndarray, "Z S K n"]
    capital: Float[Array | np.ndarray, " K"]

    def __call__(self, state: State, available: Float[Array, " A"]) -> Float[Array, " A"]:
        """Linear in cash and in capital, for each agent in its own state."""
        x, y, capital = (jnp.asarray(leaf, available.dtype) for leaf in (self.x, self.y, self.capital))
        rows = jax.vmap(jax.vmap(interpolate, (0, 0, None)), (0, 0, None))
        if capital.shape[0] == 1:
            found = rows(x[state.z], y[state.z], available)[:, 0]
        else:
            mean = jnp.clip(state.capital, capital[0], capital[-1])
            i = locate(capital, mean)
            pair = i + jnp.arange(2)
            both = rows(x[state.z][:, pair], y[state.z][:, pair], available)
            weight = (mean - capital[i]) / (capital[i + 1] - capital[i])
            found = both[:, 0] * (1 - weight) + both[:, 1] * weight
        return jnp.take_along_axis(found, state.own[None], axis=0)[0]


class SavingPolicy(eqx.Module):
    """From a cross-section to every agent's saved share, by a table of consumption."""

    consumption: Table
    params: Any
    env: HouseholdEconomy = eqx.field(static=True)

    def __call__(self, state: State) -> Float[Array, "..."]:
        """`[1]`, or `[A, 1]`."""
        available = self.env.available(state, self.params)
        share = jnp.clip(1 - self.consumption(state, available) / available, 0, 1)
        return drop_agent_axis(self.env, share[:, None])


class SavingValue(eqx.Module):
    """From a cross-section to every agent's discounted utility, by a table of equivalent constant consumption."""

    level: Table
    params: Any
    env: HouseholdEconomy = eqx.field(static=True)

    def __call__(self, state: State) -> Float[Array, "..."]:
        """Scalar, or `[A]`."""
        available = self.env.available(state, self.params)
        level = jnp.maximum(self.level(state, available), 1e-3 * jnp.min(jnp.asarray(self.level.y)))
        return drop_agent_axis(self.env, utility(level, self.params.mu) / (1 - self.params.beta))


class Lottery(NamedTuple):
    """Where `saved` lies on a grid: the point below it, and the chance of the one above."""

    low: np.ndarray
    up: np.ndarray


def lottery(grid: np.ndarray, saved: np.ndarray) -> Lottery:
    """The two neighbouring points whose mean is `saved`; beyond the ends the last point."""
    low = locate(grid, saved)
    return Lottery(low, np.clip((saved - grid[low]) / (grid[low + 1] - grid[low]), 0, 1))


def motion(chances: np.ndarray, steps: list[tuple[Lottery, int]]) -> scipy.sparse.csr_array:
    """The transition matrix over `(own state, points of every grid)` that a policy makes (Young 2010, JEDC 34).

    Args:
        chances: `[S, S]` of own states.
        steps: for each grid the lotteries `[S, *points]` and the grid's size.
    """
    shape = steps[0][0].low.shape
    source = np.arange(np.prod(shape)).reshape(shape)
    corners = [(np.zeros(shape, int), np.ones(shape))]
    for (low, up), size in steps:
        corners = [(i * size + low + side, p * (up if side else 1 - up)) for i, p in corners for side in (0, 1)]
    points = int(np.prod(shape[1:]))
    own = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    to, of, weight = [], [], []
    for target in range(shape[0]):
        for index, chance in corners:
            to.append((target * points + index).ravel())
            of.append(source.ravel())
            weight.append((chance * chances[own, target]).ravel())
    entries = (np.concatenate(weight), (np.concatenate(of), np.concatenate(to)))
    return scipy.sparse.coo_array(entries, shape=(source.size, source.size)).tocsr()


def worth(flow: np.ndarray, matrix: scipy.sparse.csr_array, beta: float, tolerance: float = 1e-10) -> np.ndarray:
    """Expected discounted sum of `flow`, of its shape: V = flow + beta M V, by iteration."""
    value = flow.ravel() / (1 - beta)
    while True:
        new = flow.ravel() + beta * (matrix @ value)
        if np.max(np.abs(new - value)) < tolerance * (1 + np.max(np.abs(new))):
            return new.reshape(flow.shape)
        value = new


def level_of(value: np.ndarray, mu: float, beta: float) -> np.ndarray:
    """The constant consumption that is worth `value`."""
    flow = (1 - beta) * value
    return np.exp(flow) if mu == 1 else np.exp(np.log1p((1 - mu) * flow) / (1 - mu))


def consume(available: np.ndarray, x: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Consumption at `available` by linear interpolation along each row, all of it below the first point.

    Args:
        available: cash above the limit, `[..., m]`.
        x, c: points of the endogenous grid, `[..., n]`, `x[..., 0]` where the limit stops to bind.
    """
    shape = available.shape
    rows = zip(available.reshape(-1, shape[-1]), x.reshape(-1, x.shape[-1]), c.reshape(-1, c.shape[-1]), strict=True)
    found = [np.where(q < xs[0], q, np.interp(q, xs, cs)) for q, xs, cs in rows]
    return np.stack(found).reshape(shape)


def with_origin(x: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The endogenous grid with the point (0, 0) in front: linear in between, all that is available is consumed."""
    pad = [(0, 0)] * (x.ndim - 1) + [(1, 0)]
    return np.pad(x, pad), np.pad(c, pad)
