"""Business cycles with a cap on labour that often binds: time iteration in which the kink stays exact.

What is approximated is the expected marginal value of capital, which the shock smooths; labour and consumption follow
from it in every state by two static equations, one of which holds (parameterised expectations: den Haan and Marcet
1990, JBES 8; Christiano and Fisher 2000, JEDC 24, for limits that bind).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...envs.economies.rbc_labor import Params, RBCLabor, State, output, scale_k, spread_z, wanted_consumption
from ...envs.economy import Decision, Economy
from ...envs.environment import EnvParams, Reference
from ...errors import UserError
from ..deqn import residuals
from ._interpolation import CubicSpline2D, spline_matrix
from .coordinates import what_works

SPREADS = 5.0
STEPS, WARM_STEPS = 8, 1
PER_SIGMA = 4
LONGEST = 5000
VALUE_ACCURACY = 1e-8
CHECKED = 300


class Surface(eqx.Module):
    """A smooth function of log k (from its steady state) and log z; linear beyond the box.

    Attributes:
        spline: inside the box.
    """

    spline: CubicSpline2D

    def __call__(self, x: Float[Array, ""], z: Float[Array, ""]) -> Float[Array, ""]:
        """The value at one point."""
        low, high = jnp.asarray(self.spline.low), jnp.asarray(self.spline.high)
        at = jnp.stack([x, z])
        inside = jnp.clip(at, low, high)
        value, rise = jax.jvp(lambda point: self.spline(point[0], point[1]), (inside,), (at - inside,))
        return value + rise


class Grid(NamedTuple):
    """Where the expectations are known, and how they are taken.

    Attributes:
        x, z: log k from its steady state, `[n]`, and log z, `[m]`, evenly spaced.
        fine: log z next period, `[J]`, evenly spaced.
        weights: of `fine` given `z`, `[m, J]`; rows sum to 1.
        to_spline: from values at the grid to the coefficients of a spline, for each axis.
    """

    x: np.ndarray
    z: np.ndarray
    fine: np.ndarray
    weights: np.ndarray
    to_spline: tuple[np.ndarray, np.ndarray]

    def surface(self, values: Array | np.ndarray) -> Surface:
        """The spline through values at the grid."""
        first, second = self.to_spline
        coefficients = first @ values @ second.T
        ends = [np.array([self.x[i], self.z[i]]) for i in (0, -1)]
        return Surface(CubicSpline2D(coefficients, *ends))


class CappedRule(eqx.Module):
    """The policy that a surface of expected marginal values implies.

    Attributes:
        marginal: log E[u_c' R'] by log k' from the steady state and log z.
        params: of the economy, NumPy arrays.
        env: the economy.
    """

    marginal: Surface
    params: Params
    env: RBCLabor = eqx.field(static=True)

    def __call__(self, state: State) -> Float[Array, " 2"]:
        """The saved share of cash, and labour."""
        dtype = jnp.result_type(float)
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self.params)
        c, labor = static_choice(self.marginal, state.k, state.z, self.env, params)
        cash = output(state.k, state.z, labor, params) + (1 - params.delta) * state.k
        return jnp.stack([1 - c / cash, labor])


class ValueOfRule(eqx.Module):
    """Utility now and the discounted expected value of what comes.

    Attributes:
        rule: the policy.
        expected: E[V'] by log k' from the steady state and log z.
    """

    rule: CappedRule
    expected: Surface

    def __call__(self, state: State) -> Float[Array, ""]:
        """The value in a state."""
        dtype = jnp.result_type(float)
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self.rule.params)
        c, labor, k = self.rule.env.use(state, self.rule(state), params)
        ahead = self.expected(jnp.log(k / self.rule.env.steady_quantities(params)[0]), jnp.log(state.z))
        return self.rule.env.utility(c, labor, params) + params.beta * ahead


class Guess(NamedTuple):
    """Where Newton's method starts: labour that the wage asks for, and consumption at the cap."""

    labor: Float[Array, ""]
    consumption: Float[Array, ""]


def static_choice(marginal: Surface, k: Array, z: Array, env: RBCLabor, params: Params) -> tuple[Array, Array]:
    """Consumption and labour in one state, given the expected marginal value of capital."""
    _, c_ss, l_ss, _ = env.steady_quantities(params)
    found = solve_static(marginal, k, z, Guess(l_ss, c_ss), STEPS, env, params)
    return chosen(found, k, z, params)


def solve_static(
    marginal: Surface, k: Array, z: Array, guess: Guess, steps: int, env: RBCLabor, params: Params
) -> Guess:
    """Both static equations u_c(c, l) = beta W(k', z): with labour as the wage asks for, and at the cap."""
    k_ss, c_ss, l_ss, _ = env.steady_quantities(params)

    def gap(c: Array, labor: Array) -> Array:
        """log u_c - log beta W."""
        left = output(k, z, labor, params) + (1 - params.delta) * k - c
        ahead = jnp.log(jnp.maximum(left, 1e-3 * k) / k_ss)
        return jnp.log(env.marginal_utility(c, labor, params) / params.beta) - marginal(ahead, jnp.log(z))

    def newton(function: Callable[[Array], Array], at: Array, low: Array, high: Array) -> Array:
        def step(_: int, at: Array) -> Array:
            value, slope = jax.jvp(function, (at,), (jnp.ones_like(at),))
            return jnp.clip(at - value / slope, low, high)

        return jax.lax.fori_loop(0, steps, step, at)

    return Guess(
        newton(lambda n: gap(wanted_consumption(k, z, n, params), n), guess.labor, 0.5 * l_ss, 1.5 * l_ss),
        newton(lambda c: gap(c, jnp.asarray(params.cap)), guess.consumption, 0.2 * c_ss, 5 * c_ss),
    )


def chosen(found: Guess, k: Array, z: Array, params: Params) -> tuple[Array, Array]:
    """Consumption and labour: the smaller of the cap and what the wage asks for, and what goes with it."""
    binds = found.labor >= params.cap
    c = jnp.where(binds, found.consumption, wanted_consumption(k, z, found.labor, params))
    return c, jnp.minimum(found.labor, params.cap)


def capped_labor(
    env: Economy, params: EnvParams, *, k_points: int = 31, z_points: int = 31, accuracy: float = 1e-9
) -> Reference:
    """Solve `RBCLabor` with a cap on labour.

    Args:
        env, params: the economy, with `labor_cap="mean"`; concrete parameters, in float64.
        k_points, z_points: of the grid.
        accuracy: log E[u_c' R'] changes by less in the last iteration.

    Returns:
        The policy and its value. Its tolerance is the largest Euler error, in units of consumption, within three
        standard deviations of the steady state.

    Raises:
        UserError: another economy, or the iterations do not converge.
    """
    if not (isinstance(env, RBCLabor) and isinstance(params, Params)) or env.labor_cap is None:
        raise UserError(
            f"{env.name}: 'capped_labor' solves RBCLabor-v0 with labor_cap='mean'; "
            f"{what_works(env, params, 'capped_labor')}"
        )
    grid = make_grid(params, k_points, z_points)
    rule = CappedRule(grid.surface(_marginal(grid, env, params, accuracy)), jax.tree.map(np.asarray, params), env)
    rule = jax.tree.map(np.asarray, rule)
    value = jax.tree.map(np.asarray, ValueOfRule(rule, grid.surface(_expected_value(grid, rule, env, params))))
    return Reference(rule, value, env.concept, _euler_error(grid, rule, env, params))


def make_grid(params: Params, k_points: int, z_points: int) -> Grid:
    """A box of twice the initial states' width in log k and five standard deviations in log z."""
    width, reach = 3 * float(scale_k(params)), SPREADS * float(spread_z(params))
    x, z = np.linspace(-width, width, k_points), np.linspace(-reach, reach, z_points)
    rho, sigma = float(params.rho), float(params.sigma)
    furthest = abs(rho) * reach + 7 * sigma
    fine = np.linspace(-furthest, furthest, 2 * int(np.ceil(PER_SIGMA * furthest / sigma)) + 1)
    density = np.exp(-(((fine - rho * z[:, None]) / sigma) ** 2) / 2)
    weights = density / density.sum(axis=1, keepdims=True)
    return Grid(x, z, fine, weights, (spline_matrix(k_points), spline_matrix(z_points)))


def _marginal(grid: Grid, env: RBCLabor, params: Params, accuracy: float) -> np.ndarray:
    """log E[u_c' R'] at the grid, `[n, m]`."""
    k_ss, c_ss, l_ss, _ = env.steady_quantities(params)
    k, z = jnp.meshgrid(k_ss * jnp.exp(grid.x), jnp.exp(grid.fine), indexing="ij")
    start = jnp.log(env.marginal_utility(c_ss, l_ss, params) / params.beta)
    guess = start - 0.6 * grid.x[:, None] - 0.4 * grid.z[None, :]

    def solve(values: Array, found: Guess, steps: int) -> Guess:
        one = functools.partial(solve_static, grid.surface(values), steps=steps, env=env, params=params)
        return jax.vmap(jax.vmap(lambda k, z, at: one(k, z, at)))(k, z, found)

    @jax.jit
    def iterate(values: Array) -> tuple[Array, Array, int]:
        def body(carry):
            values, found, _, count = carry
            found = solve(values, found, WARM_STEPS)
            c, labor = chosen(found, k, z, params)
            gross = 1 - params.delta + params.alpha * output(k, z, labor, params) / k
            new = jnp.log((gross * env.marginal_utility(c, labor, params)) @ grid.weights.T)
            return new, found, jnp.abs(new - values).max(), count + 1

        found = solve(values, Guess(jnp.full(k.shape, l_ss), jnp.full(k.shape, c_ss)), STEPS)
        carry = (values, found, jnp.asarray(jnp.inf), 0)
        # A change that is not a number ends the iterations too.
        values, _, change, count = jax.lax.while_loop(lambda c: (c[2] > accuracy) & (c[3] < LONGEST), body, carry)
        return values, change, count

    values, change, count = iterate(guess)
    if not float(change) <= accuracy:
        raise UserError(
            f"{env.name}: 'capped_labor' had not converged after {int(count)} iterations (last change "
            f"{float(change):.2g}); raise accuracy, or nearer the default calibration"
        )
    return np.asarray(values)


def _expected_value(grid: Grid, rule: CappedRule, env: RBCLabor, params: Params) -> np.ndarray:
    """E[V'] at the grid, `[n, m]`: the constant part of each change is carried to its limit at once (MacQueen 1966)."""
    k_ss = env.steady_quantities(params)[0]
    k, z = jnp.meshgrid(k_ss * jnp.exp(grid.x), jnp.exp(grid.fine), indexing="ij")
    c, labor = jax.vmap(jax.vmap(lambda k, z: static_choice(rule.marginal, k, z, env, params)))(k, z)
    ahead = jnp.log((output(k, z, labor, params) + (1 - params.delta) * k - c) / k_ss)
    now = env.utility(c, labor, params)

    @jax.jit
    def iterate(values: Array) -> Array:
        def body(carry):
            values, _, count = carry
            later = jax.vmap(jax.vmap(grid.surface(values)))(ahead, jnp.log(z))
            change = (now + params.beta * later) @ grid.weights.T - values
            middle = (change.max() + change.min()) / 2
            values = values + change + params.beta / (1 - params.beta) * middle
            return values, jnp.abs(change - middle).max(), count + 1

        return jax.lax.while_loop(lambda c: (c[1] > VALUE_ACCURACY) & (c[2] < LONGEST), body, (values, jnp.inf, 0))[0]

    start = env.reward_units(params)[0] / (1 - params.beta)
    return np.asarray(iterate(jnp.full((grid.x.size, grid.z.size), start)))


def _euler_error(grid: Grid, rule: CappedRule, env: RBCLabor, params: Params) -> float:
    """The largest Euler error between the grid's points, three standard deviations around the steady state."""
    spread, steady = float(spread_z(params)), env.steady_state(params)[0]
    points = np.random.default_rng(0).uniform(-3, 3, (CHECKED, 2)) * spread * np.array([2, 1])
    shocks = jnp.arange(-7, 7 + 1e-9, 1 / PER_SIGMA)[:, None]
    weights = jnp.exp(-(shocks[:, 0] ** 2) / 2)

    def decide(state: Any) -> Decision:
        return Decision(rule(state))

    def error(x: Array, z: Array) -> Array:
        state = steady.replace(k=steady.k * jnp.exp(x), z=jnp.exp(z))
        found = residuals(decide, state, shocks, weights / weights.sum(), env, params, report=env.euler_error)
        return found["euler"]

    return float(jnp.abs(jax.jit(jax.vmap(error))(*jnp.asarray(points).T)).max())
