"""Aiyagari's economy by the endogenous-grid method, and its equilibrium price by Young's histogram.

Carroll (2006), "The method of endogenous gridpoints", Econ. Letters 91; Young (2010), "Solving the incomplete markets
model with aggregate uncertainty using the Krusell-Smith algorithm and non-stochastic simulations", JEDC 34.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Float

from ...envs.economies._households import utility
from ...envs.economies.aiyagari import Aiyagari
from ...envs.economy import Economy
from ...envs.environment import Reference
from ...errors import UserError
from . import widen
from ._interpolation import curved_grid
from ._saving import SavingPolicy, SavingValue, Table, consume, level_of, lottery, motion, with_origin, worth
from .coordinates import what_works

POLICY_TOLERANCE, MASS_TOLERANCE, PRICE_TOLERANCE = 1e-11, 1e-12, 1e-8
LONGEST = 100_000
GIVEN, APPROXIMATE = 1e-5, 2e-2  # of the saved share; in general equilibrium for K within a few percent of its own


class Household(NamedTuple):
    """A household's answer to given prices, on a grid in assets.

    Attributes:
        grid: assets, `[n]`.
        consumption, saved: at those assets, `[S, n]`.
        x, c: cash above the limit and consumption, on the endogenous grid, `[S, n]`.
    """

    grid: Float[np.ndarray, " n"]
    consumption: Float[np.ndarray, "S n"]
    saved: Float[np.ndarray, "S n"]
    x: Float[np.ndarray, "S n"]
    c: Float[np.ndarray, "S n"]


class Equilibrium(NamedTuple):
    """Where the households' assets are the capital that their prices follow from.

    Attributes:
        r, w: interest rate and wage.
        capital: mean assets.
        household: the answer to those prices.
        mass: the stationary distribution over own states and the household's grid, `[S, n]`.
    """

    r: float
    w: float
    capital: float
    household: Household
    mass: Float[np.ndarray, "S n"]


class Model(NamedTuple):
    """Numbers of the economy, as the solver reads them; `matrix` and `labor` are its chain."""

    beta: float
    mu: float
    amin: float
    grid: np.ndarray
    matrix: np.ndarray
    labor: np.ndarray


def aiyagari(env: Economy, params: Any, *, points: int = 1000) -> Reference:
    """The household's policy at given prices, or at those of the stationary equilibrium.

    In general equilibrium it answers every state of the cross-section with the policy of the stationary one, as a
    function of cash: exact there, approximate where capital is off its stationary value.

    Args:
        env: an `Aiyagari` environment.
        params: concrete parameters.
        points: of the grid in assets.

    Raises:
        UserError: another environment, or prices at which assets grow without bound.
    """
    model = model_of(env, params, points)
    assert isinstance(env, Aiyagari)
    if env.prices_move:
        found = equilibrium(env, params, points=points)
        household, r, w = found.household, found.r, found.w
    else:
        r, w = float(widen(params).r), float(widen(params).w)
        household = household_policy(model, r, w, None)
    matrix = motion(model.matrix, [(lottery(model.grid, household.saved), points)])
    with jax.enable_x64(True):
        value = worth(np.asarray(utility(household.consumption, model.mu)), matrix, model.beta)
    available = (1 + r) * model.grid + w * model.labor[:, None] - model.amin
    x, c = with_origin(household.x, household.c)
    capital = np.ones(1)
    numbers = widen(params)
    policy = SavingPolicy(Table(x[None, :, None], c[None, :, None], capital), numbers, env)
    level = Table(available[None, :, None], level_of(value, model.mu, model.beta)[None, :, None], capital)
    return Reference(
        policy,
        SavingValue(level, numbers, env),
        env.concept,
        APPROXIMATE if env.prices_move else GIVEN,
    )


def model_of(env: Economy, params: Any, points: int) -> Model:
    """The economy's numbers in float64.

    Raises:
        UserError: it is not an `Aiyagari` environment.
    """
    if not isinstance(env, Aiyagari):
        raise UserError(f"{env.name}: solver 'aiyagari' is for Aiyagari-v0; {what_works(env, params, 'aiyagari')}")
    params = widen(params)
    grid = curved_grid(float(params.amin), float(params.amax), points)
    with jax.enable_x64(True):
        matrix, labor = (np.asarray(x, float) for x in (env.chances(params)[1][0, 0], env.efficiency(params)))
    return Model(float(params.beta), float(params.mu), float(params.amin), grid, matrix, labor)


def household_policy(model: Model, r: float, w: float, start: Household | None) -> Household:
    """The policy at given prices: iterate c -> (u')^-1 (beta (1 + r) E u'(c')), until c moves by less than 1e-11.

    Args:
        model: the economy's numbers.
        r, w: prices.
        start: the answer to nearby prices, to begin from.

    Raises:
        UserError: beta (1 + r) is 1 or more, where no finite assets are enough.
    """
    if model.beta * (1 + r) >= 1:
        raise UserError(
            f"Aiyagari-v0: at r = {r:g} and beta = {model.beta:g} assets grow without bound; the interest rate must be "
            f"below {1 / model.beta - 1:.6g}"
        )
    grid = model.grid
    available = (1 + r) * grid + w * model.labor[:, None] - model.amin
    consumption = available - 0.9 * (grid - model.amin) if start is None else start.consumption
    for _ in range(LONGEST):
        c = (model.beta * (1 + r) * (model.matrix @ consumption**-model.mu)) ** (-1 / model.mu)
        x = c + grid - model.amin
        new = consume(available, x, c)
        change = np.max(np.abs(new - consumption))
        consumption = new
        if change < POLICY_TOLERANCE:
            break
    return Household(grid, consumption, model.amin + available - consumption, x, c)


def stationary_mass(model: Model, household: Household, start: np.ndarray | None) -> Float[np.ndarray, "S n"]:
    """The distribution that the policy keeps, by iteration of Young's lotteries."""
    shape = household.saved.shape
    forward = motion(model.matrix, [(lottery(model.grid, household.saved), shape[1])]).T.tocsr()
    mass = np.full(shape[0] * shape[1], 1 / (shape[0] * shape[1])) if start is None else start.ravel()
    for step in range(LONGEST):
        new = forward @ mass
        done = step % 10 == 0 and np.max(np.abs(new - mass)) < MASS_TOLERANCE
        mass = new
        if done:
            break
    return (mass / mass.sum()).reshape(shape)


def equilibrium(env: Economy, params: Any, *, points: int = 1000) -> Equilibrium:
    """The stationary equilibrium: the interest rate at which households hold the capital that yields it.

    Args:
        env: an `Aiyagari` environment.
        params: concrete parameters; its `r` and `w` are not read.
        points: of the grid in assets.

    Raises:
        UserError: another environment.
    """
    model = model_of(env, params, points)
    assert isinstance(env, Aiyagari)
    alpha, delta = float(widen(params).alpha), float(widen(params).delta)
    last: dict[str, Any] = {"household": None, "mass": None}

    def demanded(r: float) -> float:
        return ((r + delta) / alpha) ** (1 / (alpha - 1))

    def excess(r: float) -> float:
        w = (1 - alpha) * demanded(r) ** alpha
        household = household_policy(model, r, w, last["household"])
        mass = stationary_mass(model, household, last["mass"])
        last.update(household=household, mass=mass, w=w, capital=float(mass.sum(axis=0) @ model.grid))
        return last["capital"] - demanded(r)

    bracket = _bracket(excess, 1 / model.beta - 1, delta)
    r = float(scipy.optimize.root_scalar(excess, bracket=bracket, method="brentq", xtol=PRICE_TOLERANCE).root)
    excess(r)
    return Equilibrium(r, last["w"], last["capital"], last["household"], last["mass"])


def _bracket(excess: Any, impatience: float, delta: float) -> tuple[float, float]:
    """Two rates below the rate of impatience, at which assets are too small and too large."""
    gap = 0.05 * impatience
    if excess(impatience - gap) > 0:
        while excess(max(impatience - 2 * gap, -0.9 * delta)) > 0:
            gap *= 2
        return max(impatience - 2 * gap, -0.9 * delta), impatience - gap
    while excess(impatience - gap / 2) < 0:
        gap /= 2
    return impatience - gap, impatience - gap / 2
