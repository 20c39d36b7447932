"""Krusell and Smith's economy: a perceived law of mean capital that the simulated distribution confirms.

Maliar, Maliar and Valli (2010), "Solving the incomplete markets model with aggregate uncertainty using the Krusell-
Smith algorithm", JEDC 34, with endogenous gridpoints for the households and Young's (2010, JEDC 34) histogram for the
cross-section. Den Haan (2010), "Assessing the accuracy of the aggregate law of motion", JEDC 34, for the law's error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from ...envs.economies._households import utility
from ...envs.economies.krusell_smith import KrusellSmith
from ...envs.economy import Economy
from ...envs.environment import Reference
from ...errors import UserError
from . import widen
from ._interpolation import curved_grid, locate
from ._saving import SavingPolicy, SavingValue, Table, consume, level_of, lottery, motion, with_origin, worth
from .coordinates import what_works

LOWEST, HIGHEST, CAPITALS = 0.7, 1.4, 12  # mean capital, relative to full insurance
CURVATURE = 4.0
SHORT, ROUGH = 3000, 5e-3  # a path this long until the law moves by less
DAMPING, MEMORY, ITERATIONS = 0.4, 3, 300
LAW_TOLERANCE, POLICY_TOLERANCE = 1e-4, 1e-8
LONGEST = 100
TOLERANCE = 1e-3  # of the saved share


class Fit(NamedTuple):
    """A log-linear law of mean capital: log K' = law[z, 0] + law[z, 1] log K.

    Attributes:
        law: a row for each aggregate state.
        r_squared: of each row's regression; it says little of the law's accuracy over many periods.
    """

    law: Float[np.ndarray, "Z 2"]
    r_squared: Float[np.ndarray, " Z"]


class DenHaanError(NamedTuple):
    """Absolute log distance between a simulated path and the law's own: mean and largest."""

    mean: float
    largest: float


class Solution(NamedTuple):
    """The equilibrium with a perceived law.

    Attributes:
        fit: the law, and how it fits the path.
        capital, states: mean capital and aggregate state along the simulated path, the first periods left out, `[T]`.
        grid: assets, `[n]`.
        capitals: mean capital, `[K]`.
        consumption: at assets and mean capital, `[z, e, K, n]`.
        x, c: cash above the limit and consumption on the endogenous grid, `[z, e, K, n]`.
    """

    fit: Fit
    capital: Float[np.ndarray, " T"]
    states: Int[np.ndarray, " T"]
    grid: Float[np.ndarray, " n"]
    capitals: Float[np.ndarray, " K"]
    consumption: Float[np.ndarray, "z e K n"]
    x: Float[np.ndarray, "z e K n"]
    c: Float[np.ndarray, "z e K n"]


class Model(NamedTuple):
    """Numbers of the economy, as the solver reads them; `own[z, z']` is the chain of employment."""

    env: KrusellSmith
    params: Any
    beta: float
    mu: float
    amin: float
    grid: np.ndarray
    capitals: np.ndarray
    aggregate: np.ndarray
    own: np.ndarray

    def prices(self, capital: np.ndarray, z: int) -> tuple[np.ndarray, np.ndarray]:
        """Gross return `[K]`, and incomes of the unemployed and the employed `[2, K]`."""
        productivity, hours = (f(self.params)[z] for f in (self.env.productivity, self.env.hours))
        gross_return, wage = self.env.prices(capital, productivity, hours, self.params)
        return np.asarray(gross_return), np.asarray(self.env.incomes(wage, z, self.params))


def krusell_smith(
    env: Economy, params: Any, *, periods: int = 11_000, discard: int = 1_000, seed: int = 1, points: int = 200
) -> Reference:
    """Every household's policy as a function of its cash, its employment, mean capital and the aggregate state.

    Args:
        env: a `KrusellSmith` environment.
        params: concrete parameters.
        periods, discard, seed, points: as in `solve_law`.

    Raises:
        UserError: another environment, or no law was found.
    """
    return answer(env, params, solve_law(env, params, periods=periods, discard=discard, seed=seed, points=points))


def answer(env: Economy, params: Any, found: Solution) -> Reference:
    """Policy and value of a solution, as functions of the cross-section.

    Args:
        env: the environment that it solves.
        params: concrete parameters.
        found: the solution.

    Raises:
        UserError: another environment.
    """
    model = model_of(env, params, found.grid.size)
    with jax.enable_x64(True):
        cash = np.stack([_available(model, z) for z in range(2)])
        value = _value(model, found, cash)
    x, c = with_origin(found.x, found.c)
    policy = SavingPolicy(Table(x, c, found.capitals), model.params, model.env)
    level = Table(cash, level_of(value, model.mu, model.beta), found.capitals)
    return Reference(policy, SavingValue(level, model.params, model.env), env.concept, TOLERANCE)


def model_of(env: Economy, params: Any, points: int) -> Model:
    """The economy's numbers in float64.

    Raises:
        UserError: it is not a `KrusellSmith` environment.
    """
    if not isinstance(env, KrusellSmith):
        raise UserError(
            f"{env.name}: solver 'krusell_smith' is for KrusellSmith-v0; {what_works(env, params, 'krusell_smith')}"
        )
    params = widen(params)
    with jax.enable_x64(True):
        aggregate, own = (np.asarray(p, float) for p in env.chances(params))
        amin, typical = float(params.amin), float(env.means(params).assets)
    capitals = typical * np.geomspace(LOWEST, HIGHEST, CAPITALS)
    grid = curved_grid(amin, float(params.amax), points, CURVATURE)
    return Model(env, params, float(params.beta), float(params.mu), amin, grid, capitals, aggregate, own)


def solve_law(
    env: Economy, params: Any, *, periods: int = 11_000, discard: int = 1_000, seed: int = 1, points: int = 200
) -> Solution:
    """Alternate between the households' answer to a perceived law and the law that their capital follows.

    Args:
        env: a `KrusellSmith` environment.
        params: concrete parameters.
        periods: length of the simulated path.
        discard: periods left out at its beginning.
        seed: of the aggregate states on it.
        points: of the grids in assets: the policy's; the histogram has twice as many.

    Raises:
        UserError: another environment, a path too short for a regression, or no law was found.
    """
    if periods < discard + 100:
        raise UserError(f"periods = {periods} must exceed discard = {discard} by 100 or more")
    with jax.enable_x64(True):
        return _solve_law(model_of(env, params, points), periods, discard, seed)


def _solve_law(model: Model, periods: int, discard: int, seed: int) -> Solution:
    """`solve_law`, in float64."""
    law = _first_law(model)
    states = _aggregate_path(model, periods, seed)
    consumption = _first_consumption(model)
    length, tried = min(SHORT + discard, periods), []
    for _ in range(LONGEST):
        consumption, x, c = household_policy(model, law, consumption, POLICY_TOLERANCE, ITERATIONS)
        capital = simulate(model, consumption, states[:length])
        fit = perceived_law(capital[discard:], states[discard:length])
        change = float(np.max(np.abs(fit.law - law)))
        tried.append((law, fit.law))
        if change < LAW_TOLERANCE and length == periods:
            break
        if change < ROUGH and length < periods:
            length, tried = periods, tried[-1:]
        law = _next_law(tried[-MEMORY:])
    else:
        raise UserError(
            f"{model.env.name}: the perceived law of capital still moves by {change:.2g} after {LONGEST} rounds"
        )
    consumption, x, c = household_policy(model, fit.law, consumption, POLICY_TOLERANCE, 20 * ITERATIONS)
    return Solution(fit, capital[discard:], states[discard:], model.grid, model.capitals, consumption, x, c)


def perceived_law(capital: Float[np.ndarray, " T"], states: Int[np.ndarray, " T"]) -> Fit:
    """Regress log K' on log K, apart for each aggregate state of the first of the two periods.

    Args:
        capital: mean capital.
        states: aggregate states, 0 to Z - 1, each of them visited.
    """
    log_k = np.log(capital)
    law, r_squared = [], []
    for z in range(int(states.max()) + 1):
        here = np.flatnonzero(states[:-1] == z)
        regressors = np.stack([np.ones(here.size), log_k[here]], axis=1)
        target = log_k[here + 1]
        coefficients = np.linalg.lstsq(regressors, target, rcond=None)[0]
        law.append(coefficients)
        r_squared.append(1 - np.var(target - regressors @ coefficients) / np.var(target))
    return Fit(np.array(law), np.array(r_squared))


def den_haan_error(
    capital: Float[np.ndarray, " T"], states: Int[np.ndarray, " T"], law: Float[np.ndarray, "Z 2"]
) -> DenHaanError:
    """How far a law of capital strays when it is fed its own forecasts, never the simulated path (Den Haan 2010).

    Args:
        capital: mean capital along a path of the policy to be judged.
        states: aggregate states on it.
        law: what is perceived, such as `perceived_law(...).law`.

    Returns:
        The mean and the largest absolute difference of log capital; 0.001 is a tenth of a percent.
    """
    log_k = np.log(capital)
    forecast = np.empty_like(log_k)
    forecast[0] = log_k[0]
    for t in range(1, log_k.size):
        level, slope = law[states[t - 1]]
        forecast[t] = level + slope * forecast[t - 1]
    distance = np.abs(forecast - log_k)
    return DenHaanError(float(distance.mean()), float(distance.max()))


def household_policy(
    model: Model, law: np.ndarray, consumption: np.ndarray, tolerance: float, iterations: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The policy under a perceived law, by endogenous gridpoints; consumption, and the endogenous grid's x and c.

    Args:
        model: the economy's numbers.
        law: perceived.
        consumption: to begin from, `[z, e, K, n]`.
        tolerance: of consumption.
        iterations: at most.
    """
    capitals, grid = model.capitals, model.grid
    following = np.exp(law[:, :1] + law[:, 1:] * np.log(capitals))  # [z, K]
    low = locate(capitals, following)
    up = ((following - capitals[low]) / (capitals[low + 1] - capitals[low]))[..., None]
    returns = np.stack([[model.prices(following[z], after)[0] for after in range(2)] for z in range(2)])
    chances = (model.aggregate[:, :, None, None] * model.own).transpose(0, 2, 1, 3).reshape(2, 2, 4)  # [z, e, (z', e')]
    cash = np.stack([_available(model, z) for z in range(2)])
    x = c = consumption
    for _ in range(iterations):
        # [z, z', e', K, n]: consumption tomorrow at each a', between the two nearest capitals.
        after = np.stack(
            [consumption[:, :, low[z]] * (1 - up[z]) + consumption[:, :, low[z] + 1] * up[z] for z in (0, 1)]
        )
        marginal = returns[:, :, None, :, None] * after**-model.mu
        expected = (chances @ marginal.reshape(2, 4, -1)).reshape(consumption.shape)
        c = (model.beta * expected) ** (-1 / model.mu)
        x = c + grid - model.amin
        new = consume(cash, x, c)
        change = np.max(np.abs(new - consumption))
        consumption = new
        if change < tolerance:
            break
    return consumption, x, c


def simulate(model: Model, consumption: np.ndarray, states: Int[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
    """Mean capital along a path of aggregate states, the cross-section a histogram.

    It starts at the capital of full insurance, the same for all households.

    Between two capitals of the policy's grid the cross-section takes both steps, in proportion.

    Args:
        model: the economy's numbers.
        consumption: at the policy's grid, `[z, e, K, n]`.
        states: the aggregate states.
    """
    fine = curved_grid(model.amin, float(model.grid[-1]), 2 * model.grid.size, 3.0)
    saved = np.stack([_available(model, z) for z in range(2)]) - consumption
    flat = saved.reshape(-1, saved.shape[-1])
    saved = model.amin + np.stack([np.interp(fine, model.grid, row) for row in flat]).reshape(*saved.shape[:-1], -1)
    pairs, capitals = [(0, 0), (0, 1), (1, 0), (1, 1)], model.capitals
    steps = {
        (z, after): [
            motion(model.own[z, after], [(lottery(fine, saved[z, :, i]), fine.size)]).T.tocsr()
            for i in range(capitals.size)
        ]
        for z, after in pairs
    }
    start, ahead = lottery(fine, np.asarray(float(model.env.means(model.params).assets)))
    share = np.asarray(model.env.shares(model.params)[1], float)[states[0]]
    mass, assets = np.zeros((2, fine.size)), np.tile(fine, 2)
    mass[:, start], mass[:, start + 1] = share * (1 - ahead), share * ahead
    mass, path = mass.ravel(), np.empty(states.size)
    for t, (z, after) in enumerate(zip(states, [*states[1:], states[-1]], strict=True)):
        path[t] = assets @ mass
        i = int(locate(capitals, path[t]))
        weight = (path[t] - capitals[i]) / (capitals[i + 1] - capitals[i])
        below, above = steps[z, after][i : i + 2]
        mass = (1 - weight) * (below @ mass) + weight * (above @ mass)
    return path


def _available(model: Model, z: int) -> np.ndarray:
    """Cash above the limit at the grid, `[e, K, n]`."""
    gross_return, income = model.prices(model.capitals, z)
    return gross_return[:, None] * model.grid + income[..., None] - model.amin


def _aggregate_path(model: Model, periods: int, seed: int) -> Int[np.ndarray, " T"]:
    """Aggregate states, drawn by inversion."""
    states = np.zeros(periods, int)
    for t, u in enumerate(np.random.default_rng(seed).random(periods - 1)):
        states[t + 1] = u >= model.aggregate[states[t], 0]
    return states


def _next_law(tried: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """From laws that were perceived and those that came of them, by damped Anderson mixing."""
    perceived, came = (np.stack([pair[side].ravel() for pair in tried]) for side in (0, 1))
    gap = came - perceived
    step = perceived[-1] + DAMPING * gap[-1]
    if len(tried) > 1:
        slopes = np.diff(gap, axis=0)
        weights = np.linalg.lstsq(slopes.T, gap[-1], rcond=1e-3)[0]
        step = step - weights @ (np.diff(perceived, axis=0) + DAMPING * slopes)
    return step.reshape(tried[-1][0].shape)


def _first_law(model: Model) -> np.ndarray:
    """Slow return to a capital a little above the one of full insurance, more of it in good times."""
    slope, target = 0.965, np.log(1.04 * float(model.env.means(model.params).assets))
    shift = 0.6 * float(model.params.spread)
    return np.array([[(1 - slope) * target - shift, slope], [(1 - slope) * target + shift, slope]])


def _first_consumption(model: Model) -> np.ndarray:
    """A share of income and of assets."""
    gain = 1 / model.beta - 1
    return np.stack([_available(model, z) - (1 - gain) * (model.grid - model.amin) for z in range(2)]) * 0.9


def _value(model: Model, found: Solution, cash: np.ndarray) -> np.ndarray:
    """Expected discounted utility at the grid, `[z, e, K, n]`, under the perceived law."""
    saved = model.amin + cash - found.consumption
    following = np.exp(found.fit.law[:, :1] + found.fit.law[:, 1:] * np.log(model.capitals))
    shape = (4, CAPITALS, model.grid.size)
    ahead = np.broadcast_to(following[:, None, :, None], saved.shape).reshape(shape)
    steps = [
        (lottery(model.capitals, ahead), CAPITALS),
        (lottery(model.grid, saved.reshape(shape)), model.grid.size),
    ]
    joint = (model.aggregate[:, :, None, None] * model.own).transpose(0, 2, 1, 3).reshape(4, 4)
    flow = np.asarray(utility(found.consumption.reshape(shape), model.mu))
    return worth(flow, motion(joint, steps), model.beta).reshape(saved.shape)
