"""The endogenous-grid method for consumption and saving under a borrowing limit.

Carroll (2006), "The method of endogenous gridpoints for solving dynamic stochastic optimization problems", Economics
Letters 91: fix end-of-period assets, invert the Euler equation for consumption, and read off the cash on hand at which
they are chosen. At the least assets this is the kink below which the limit binds, so it is found, not approximated.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...envs.economies.buffer_stock import BufferStock, Params, State
from ...envs.economy import Economy
from ...envs.environment import EnvParams, Reference
from ...errors import UserError
from ._interpolation import CubicHermite, curved_grid, hermite_weights, locate
from .coordinates import what_works

RICHEST = 200.0
CONVERGED = 1e-12
PAIR = 1e-9
LEAST_WEIGHT = 1e-3
SETTLED = 1e-6
MOST_ITERATIONS = 20_000


class Nodes(NamedTuple):
    """A consumption function: a cubic between the nodes, in proportion to cash above the limit below the first.

    Attributes:
        m, c, slope: cash on hand, consumption and its derivative, `[n]`.
    """

    m: np.ndarray
    c: np.ndarray
    slope: np.ndarray


class Law(NamedTuple):
    """The problem's numbers.

    Attributes:
        beta, gamma, limit: of the economy.
        returns: `R / (G psi)`, `[J]`.
        growth: `G psi`, `[J]`.
        income: theta, `[J]`.
        chance: probabilities, `[J]`, all above 0.
    """

    beta: float
    gamma: float
    limit: float
    returns: np.ndarray
    growth: np.ndarray
    income: np.ndarray
    chance: np.ndarray


class SavedShare(eqx.Module):
    """The policy: from a state to the saved share of cash above the limit, `[1]`.

    Attributes:
        m, c, slope: the consumption function's nodes, `[n]`.
        limit: least end-of-period assets.
    """

    m: np.ndarray
    c: np.ndarray
    slope: np.ndarray
    limit: np.ndarray

    def __call__(self, state: State) -> Float[Array, " 1"]:
        """1 - c / (m - limit); 0 where the limit binds."""
        above = state.m - self.limit
        least = self.m[0] - self.limit
        c = CubicHermite(self.m, self.c, self.slope)(state.m)
        spent = jnp.where(above <= least, self.c[0] / least, c / jnp.where(above > 0, above, 1))
        return jnp.clip(1 - spent, 0.0, 1.0)[None]


class Value(eqx.Module):
    """Expected discounted utility: its consumption equivalent v, V = v^(1-gamma) / (1-gamma), as a cubic in m.

    Attributes:
        m, v, slope: nodes, `[n]`; v' = (v / c)^gamma by the envelope theorem.
        spent: share of cash above the limit that is consumed below the first node.
        gamma, limit: of the economy.
    """

    m: np.ndarray
    v: np.ndarray
    slope: np.ndarray
    spent: np.ndarray
    gamma: np.ndarray
    limit: np.ndarray

    def __call__(self, state: State) -> Float[Array, ""]:
        """V at a state."""
        power = 1 - self.gamma
        inside = CubicHermite(self.m, self.v, self.slope)(state.m) ** power
        above, least = jnp.maximum(state.m - self.limit, 1e-8), self.m[0] - self.limit
        below = self.v[0] ** power + self.spent**-self.gamma * (above**power - least**power)
        return jnp.where(state.m < self.m[0], below, inside) / power


def endogenous_grid(env: Economy, params: EnvParams, *, size: int | None = None) -> Reference:
    """Solve a `BufferStock` economy.

    Args:
        env: the economy.
        params: its parameters, concrete.
        size: points of the grid of end-of-period assets, besides those at kinks; unless set 2000, or fewer where there
            are more than 12 incomes.

    Returns:
        The policy, which is 0 exactly where the limit binds, and its value. `tolerance` is four times the largest Euler
        error between the nodes, as a share of cash: errors of later periods add to those of one.

    Raises:
        UserError: another economy, or the iteration does not converge.
    """
    if not isinstance(env, BufferStock):
        raise UserError(
            f"{env.name}: 'endogenous_grid' solves BufferStock-v0 only; {what_works(env, params, 'endogenous_grid')}"
        )
    assert isinstance(params, Params)
    law = _law(env, params)
    nodes = _consumption(env, law, min(2000, 24_000 // len(law.chance)) if size is None else size)
    v = _value(law, nodes)
    spent = np.asarray(nodes.c[0] / (nodes.m[0] - law.limit))
    limit, gamma = np.asarray(law.limit), np.asarray(law.gamma)
    value = Value(nodes.m, v, (v / nodes.c) ** law.gamma, spent, gamma, limit)
    return Reference(SavedShare(*nodes, limit), value, env.concept, 4 * _largest_error(law, nodes))


def _law(env: BufferStock, params: Params) -> Law:
    shocks = env.shocks(params)
    possible = np.asarray(shocks.probabilities) > 0
    psi, theta = np.asarray(shocks.values)[possible].T
    growth = float(params.growth) * psi
    numbers = (float(params.beta), float(params.gamma), float(params.limit))
    return Law(*numbers, float(params.interest) / growth, growth, theta, np.asarray(shocks.probabilities)[possible])


def _consumption(env: BufferStock, law: Law, size: int) -> Nodes:
    """Iterate on the Euler equation, on a grid that has a pair of points around each kink.

    Where the limit starts to bind the consumption function has a kink; the assets from which one income leads there are
    a kink of the function a period before, and so on, fainter by the probability of that income. Which are kept stays
    as it is for the last iterations, lest one that is near the limit comes and goes.
    """
    base = law.limit + curved_grid(0.0, RICHEST, size)
    binds = np.min(law.returns * law.limit + law.income) > law.limit
    if not binds:  # who saves nothing may have nothing next period
        base = base[1:]
    a, nodes = base, Nodes(base + 1, np.minimum(base - law.limit + 0.5, 1 + 0.05 * base), np.full(base.shape, 0.05))
    kinks, weight, kept, change = np.empty((2, 0)), np.empty(0), None, np.inf
    for _ in range(MOST_ITERATIONS):
        if binds:
            edges = np.column_stack([np.interp(kinks, a, nodes.m), nodes.m[0] + np.array([-PAIR, PAIR])])
            weight, settled = np.append(weight, 1.0), change < SETTLED
            assets, chance = (edges[..., None] - law.income) / law.returns, weight[:, None] * law.chance
            if not settled or kept is None or kept.shape != chance.shape:
                kept = (assets[0] > law.limit) & (chance > LEAST_WEIGHT)
            kinks, weight = np.maximum(assets[:, kept], law.limit), chance[kept]
        grid = np.unique(np.concatenate([base, *kinks]))
        new = _euler_step(law, nodes, grid)
        change = np.max(np.abs(np.interp(base, grid, new.c) / np.interp(base, a, nodes.c) - 1))
        a, nodes = grid, new
        if change < CONVERGED:
            return nodes
    raise UserError(f"{env.name}: 'endogenous_grid' did not converge; the household may be too patient, lower beta")


def _euler_step(law: Law, nodes: Nodes, a: np.ndarray) -> Nodes:
    """The consumption function of who follows `nodes` from tomorrow on, at end-of-period assets `a`."""
    c, slope = _at(law, nodes, a[:, None] * law.returns + law.income)
    marginal = law.chance * law.returns * law.growth * (law.growth * c) ** -law.gamma
    total = marginal.sum(axis=1)
    wanted = (law.beta * total) ** (-1 / law.gamma)
    rise = wanted / total * (marginal * slope / c * law.returns).sum(axis=1)
    return Nodes(a + wanted, wanted, rise / (1 + rise))


def _at(law: Law, nodes: Nodes, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Consumption and its derivative at cash on hand `m`."""
    inside = np.clip(m, nodes.m[0], nodes.m[-1])
    i = locate(nodes.m, inside)
    width = nodes.m[i + 1] - nodes.m[i]
    t = (inside - nodes.m[i]) / width
    rise = (nodes.c[i + 1] - nodes.c[i]) / width
    left, right = nodes.slope[i], nodes.slope[i + 1]
    c = nodes.c[i] + width * t * (left + t * (3 * rise - 2 * left - right + t * (left + right - 2 * rise)))
    slope = left + t * (2 * (3 * rise - 2 * left - right) + 3 * t * (left + right - 2 * rise))
    spent = nodes.c[0] / (nodes.m[0] - law.limit)
    c = np.where(m < nodes.m[0], spent * (m - law.limit), c + nodes.slope[-1] * np.maximum(m - nodes.m[-1], 0))
    return c, np.where(m < nodes.m[0], spent, slope)


def _value(law: Law, nodes: Nodes) -> np.ndarray:
    """The consumption equivalents v at the nodes, by iteration on V = u(c) + beta E[(G psi)^(1-gamma) V(m')]."""
    power = 1 - law.gamma
    m = (nodes.m - nodes.c)[:, None] * law.returns + law.income
    inside = np.clip(m, nodes.m[0], nodes.m[-1])
    i, below = locate(nodes.m, inside), m < nodes.m[0]
    start, stop, rise, fall = hermite_weights(nodes.m, inside, i)
    beyond = np.maximum(m - nodes.m[-1], 0)
    spent, least = nodes.c[0] / (nodes.m[0] - law.limit), nodes.m[0] - law.limit
    gap = np.where(below, spent**-law.gamma * (np.where(below, m - law.limit, least) ** power - least**power), 0)
    weights = law.beta * law.chance * law.growth**power
    v = nodes.c.copy() * (1 - weights.sum()) ** (-1 / power)
    for _ in range(MOST_ITERATIONS):
        slope = (v / nodes.c) ** law.gamma
        at = start * v[i] + stop * v[i + 1] + rise * slope[i] + fall * slope[i + 1] + beyond * slope[-1]
        new = (nodes.c**power + (at**power + gap) @ weights) ** (1 / power)
        change = np.max(np.abs(new / v - 1))
        v = new
        if change < CONVERGED:
            break
    return v


def _largest_error(law: Law, nodes: Nodes) -> float:
    """The largest Euler error half-way between the nodes, as a share of cash above the limit."""
    m = (nodes.m[1:] + nodes.m[:-1]) / 2
    c, _ = _at(law, nodes, m)
    wanted = _euler_step(law, nodes, m - c).c
    return float(np.max(np.abs(wanted - c) / (m - law.limit)))
