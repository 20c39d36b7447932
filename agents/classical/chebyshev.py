"""Collocation with Chebyshev polynomials: the conditions hold at the nodes, and between them to a stated tolerance.

Judd (1992), "Projection methods for solving aggregate growth models", JET 58. Unbounded decisions (logits of actions)
are polynomials of the states' coordinates (logs); their coefficients solve the conditions by Newton's method.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...envs.economy import Economy
from ...envs.environment import EnvParams, Reference
from ...envs.quadrature import normal_nodes
from ...envs.shocks import Normal, directions
from ...errors import UserError
from ..deqn import residuals
from .coordinates import DecisionCoordinates, Rule, StateCoordinates, what_works
from .log_linear import LinearRule, linearize, stacked_conditions
from .polynomials import Polynomial, basis, basis_table, chebyshev_nodes, exponents_of

DEGREES = {1: 14, 2: 10, 3: 6, 4: 4}
ORDERS = {1: 11, 2: 7, 3: 5}
MOST_STEPS = 40
CONVERGED = 1e-12
STALLED = 1e-6
NEGLIGIBLE = 1e-9
ROUNDING = 1e-12
SPREADS = 3.0
STARTS = 256
BOXES = 6
COARSEST = 4
PATHS, PERIODS, FORGOTTEN = 64, 600, 300


class Problem(NamedTuple):
    """What a residual at a node needs, static.

    Attributes:
        env: the economy.
        exponents: of the basis, K tuples.
        order: nodes of the shock per dimension.
    """

    env: Economy
    exponents: tuple[tuple[int, ...], ...]
    order: int | None


class Setting(eqx.Module):
    """What a residual at a node needs, arrays.

    Attributes:
        params: of the economy.
        states, decisions: coordinates.
        centre, half: `[n]`, the box.
        fixed: nodes `[J, d]` and weights `[J]` of the shock where fewer than the usual ones do, else None.
    """

    params: EnvParams
    states: StateCoordinates
    decisions: DecisionCoordinates
    centre: np.ndarray
    half: np.ndarray
    fixed: tuple[np.ndarray, np.ndarray] | None


class Value(eqx.Module):
    """The reference's value: a polynomial of the state's coordinates; scalar, or `[A]` with several agents."""

    function: Polynomial
    states: StateCoordinates
    scalar: bool = eqx.field(static=True)

    def __call__(self, state: Any) -> Float[Array, "..."]:
        value = self.function(self.states(state))
        return value[0] if self.scalar else value


def chebyshev(
    env: Economy,
    params: EnvParams,
    *,
    degree: int | tuple[int, ...] | None = None,
    complete: bool | None = None,
    width: float = 5.0,
    order: int | None = None,
) -> Reference:
    """Solve an economy with one to four continuous states by collocation.

    The box is `width` long-run standard deviations of the log-linear rule to either side of the steady state, and is
    moved to what the solution itself visits where that lies elsewhere. Where episodes start further away it is wider,
    so that it has their first states in it. Within 3 standard deviations the policy is wrong by at most `tolerance`:
    the largest residual off the nodes, times the norm of the residuals' inverse derivative.

    Args:
        env, params: the economy, with concrete parameters.
        degree: of the polynomials in every state, or one a state; by default 14 for one state, 10 for two, 6 for three
            and 4 for four.
        complete: of all products only those up to the total degree; by default with three states or more. There are
            then more nodes than coefficients, and the squared residuals are minimised.
        width: of the box, at least.
        order: nodes of the shock a dimension; by default 11 for one shock, 7 for two, 5 for three, else the law's
            finest.

    Raises:
        UserError: the log-linear rule, from which it starts, does not exist; there are more than four states; or
            Newton's method does not converge.
    """
    rule = linearize(env, params)
    problem, degrees = _problem(env, params, rule, degree, complete, order)
    if not width > 0:
        raise UserError(f"width = {width:g} must be above 0")
    first = _first_states(env, params, rule.states)
    fixed = _fixed_nodes(env, params, rule, order, first)
    start = Start(rule.function, rule.centre, rule.spreads, first)
    try:
        solved = _settle(problem, degrees, params, rule, width, start, fixed)
    except UserError:
        # High degrees leave their region of convergence where the solution lives far from the linear rule's box.
        for coarse in range(COARSEST, max(degrees), 2):
            lower = tuple(min(each, coarse) for each in degrees)
            easier = _problem(env, params, rule, lower, complete, order)[0]
            start = _settle(easier, lower, params, rule, width, start, fixed).start
        solved = _settle(problem, degrees, params, rule, width, start, fixed)
    setting, function = solved.setting, solved.start.function
    reach = np.minimum(SPREADS * solved.start.spreads / setting.half, 1)
    tolerance = _tolerance(problem, setting, function, solved.derivative, reach)
    policy = Rule(function, rule.states, rule.decisions, "action")
    auxiliary = None if rule.decision.auxiliary is None else policy.other("auxiliary")
    value = _value(problem, setting, function, chebyshev_nodes(degrees))
    return Reference(policy, value, env.concept, tolerance, auxiliary)


class Start(NamedTuple):
    """Where Newton's method and the search for the box begin.

    Attributes:
        function: decisions.
        centre, spreads: `[n]`, the middle of the box, and the standard deviations that it is made of.
        first: `[S, n]`, states that episodes start from, for the box to hold.
    """

    function: Any
    centre: np.ndarray
    spreads: np.ndarray
    first: np.ndarray


class Settled(NamedTuple):
    """A solution on a box that its own path fills."""

    start: Start
    setting: Setting
    derivative: Any


def _settle(
    problem: Problem, degrees, params: EnvParams, rule: LinearRule, width: float, start: Start, fixed
) -> Settled:
    """Solve, and move the box to what the solution visits, until it stays."""
    function, centre, spreads, first = start
    for _ in range(BOXES):
        half = np.maximum(width * spreads, np.abs(first - centre).max(axis=0))
        setting = Setting(params, rule.states, rule.decisions, centre, half, fixed)
        function, derivative = _solve(problem, setting, rule, degrees, function)
        mean, sd = (np.asarray(each) for each in _visited(problem.env, function, setting))
        moved = np.abs(mean - centre) > 0.5 * sd
        if not np.any(moved | (sd > 1.3 * spreads) | (sd < 0.6 * spreads)):
            break
        centre, spreads = mean, sd
    return Settled(Start(function, centre, spreads, first), setting, derivative)


def _first_states(env: Economy, params: EnvParams, states: StateCoordinates) -> np.ndarray:
    """Coordinates of a sample of states that episodes start from, `[S, n]`."""
    keys = jax.random.split(jax.random.key(0), STARTS)
    return np.asarray(jax.vmap(lambda key: states(env.initial_state(key, params)))(keys))


def _problem(
    env: Economy, params: EnvParams, rule: LinearRule, degree, complete, order
) -> tuple[Problem, tuple[int, ...]]:
    """The basis, checked."""
    n = rule.states.size
    if n not in DEGREES:
        raise UserError(
            f"{env.name} has {n} states, and collocation takes 1 to {max(DEGREES)}; "
            f"{what_works(env, params, 'chebyshev', 'value_iteration')}"
        )
    chosen = DEGREES[n] if degree is None else degree
    degrees = tuple(chosen) if isinstance(chosen, tuple | list) else (chosen,) * n
    if len(degrees) != n or any(each < 1 for each in degrees):
        raise UserError(f"degree = {degree} must be a whole number of at least 1, or {n} of them, one a state")
    return Problem(env, exponents_of(degrees, n > 2 if complete is None else complete), order), degrees


def shock_nodes(env: Economy, params: EnvParams, order: int | None, state) -> tuple[Array, Float[Array, " J"]]:
    """Nodes and weights of next period's shock: `order` a dimension, or as many as a smooth integrand needs."""
    law = env.shocks(params)
    if isinstance(law, Normal) and (order is not None or law.d in ORDERS):
        return law.nodes("gauss_hermite", ORDERS[law.d] if order is None else order, state)
    rule, finest = law.finest()
    return law.nodes(rule, finest if order is None else order, state)


def _fixed_nodes(
    env: Economy, params: EnvParams, rule: LinearRule, order: int | None, first: Float[np.ndarray, "S n"]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Nodes and weights where the next state depends on fewer combinations of normal shocks than there are, or None."""
    law, action = env.shocks(params), rule.decision.action
    if not isinstance(law, Normal) or law.d not in ORDERS or law.d == 1:
        return None
    points = jnp.asarray(first[:: STARTS // 8])

    def moved(shock: Array) -> Array:
        after = jax.vmap(lambda x: rule.states(env.transition(rule.states.state(x), action, shock, params)))(points)
        return after.ravel()

    found = directions(moved, law.d)
    if found.shape[1] == law.d:
        return None
    nodes, weights = normal_nodes("gauss_hermite", found.shape[1], ORDERS[law.d] if order is None else order)
    return nodes @ found.T, weights


def _nodes(problem: Problem, setting: Setting, state) -> tuple[Array, Float[Array, " J"]]:
    if setting.fixed is None:
        return shock_nodes(problem.env, setting.params, problem.order, state)
    nodes, weights = setting.fixed
    return jnp.asarray(nodes), jnp.asarray(weights)


def _decide(function, setting: Setting):
    return lambda state: setting.decisions.decision(function(setting.states(state)))


@functools.partial(jax.jit, static_argnames="problem")
def _system(coefficients, slopes, points, setting: Setting, *, problem: Problem):
    """Residuals `[P, q]` at points `[P, n]` of the unit box, and their derivatives `[P, q, K, m]`."""

    def at(coefficients, point):
        function = Polynomial(setting.centre, setting.half, coefficients, slopes, problem.exponents, float("inf"))
        state = setting.states.state(setting.centre + setting.half * point)
        nodes, weights = _nodes(problem, setting, state)
        found = residuals(_decide(function, setting), state, nodes, weights, problem.env, setting.params)
        residual = stacked_conditions(found)
        return residual, residual

    derivative, residual = jax.vmap(jax.jacrev(at, has_aux=True), (None, 0))(coefficients, points)
    return residual, derivative


def _solve(problem: Problem, setting: Setting, rule: LinearRule, degrees, start) -> tuple[Polynomial, np.ndarray]:
    """Newton's method on the coefficients, each step halved until the residuals fall.

    Returns:
        The solution, and the derivative of the residuals by the coefficients, `[P q, K m]`.
    """
    points = chebyshev_nodes(degrees)
    values = _everywhere(start, setting.centre + setting.half * points)
    table = basis_table(points, problem.exponents)
    coefficients = np.linalg.lstsq(table, np.asarray(values), rcond=None)[0]
    slopes = rule.function.slopes

    def system(c):
        residual, derivative = _system(c, slopes, points, setting, problem=problem)
        return np.asarray(residual).ravel(), np.asarray(derivative).reshape(residual.size, -1)

    residual, derivative = system(coefficients)
    for _ in range(MOST_STEPS):
        if not (np.all(np.isfinite(residual)) and np.all(np.isfinite(derivative))):
            break
        step = np.linalg.lstsq(derivative, -residual, rcond=None)[0].reshape(coefficients.shape)
        size, share = np.abs(step).max(), 1.0
        while True:
            trial = coefficients + share * step
            found, slope = system(trial)
            # At the least squares rounding decides whether a tiny step helps, and half of it decides no better.
            if np.linalg.norm(found) < np.linalg.norm(residual) or share < 1e-3 or share * size < NEGLIGIBLE:
                break
            share /= 2
        better = np.linalg.norm(found) < np.linalg.norm(residual)
        if better:
            coefficients, residual, derivative = trial, found, slope
        if size < CONVERGED or (not better and size < STALLED):
            return (
                Polynomial(setting.centre, setting.half, coefficients, slopes, problem.exponents),
                derivative,
            )
        if not better:
            break
    size = np.abs(residual).max()
    raise UserError(
        f"{problem.env.name}: collocation of degree {'x'.join(map(str, degrees))} does not converge (largest residual "
        f"{size:.2g}); try a lower degree or width"
    )


@functools.partial(jax.jit, static_argnames="env")
def _visited(env: Economy, function, setting: Setting):
    """Mean and standard deviation of the coordinates along simulated paths, `[n]` each."""
    decide, law = _decide(function, setting), env.shocks(setting.params)

    def step(x, keys):
        def one(x, key):
            state = setting.states.state(x)
            shock = law.sample(key, state)
            return setting.states(env.transition(state, decide(state).action, shock, setting.params))

        after = jax.vmap(one)(x, keys)
        return after, after

    keys = jax.random.split(jax.random.key(0), (PERIODS, PATHS))
    start = jnp.broadcast_to(setting.centre, (PATHS, setting.states.size))
    visited = jax.lax.scan(step, start, keys)[1][FORGOTTEN:].reshape(-1, setting.states.size)
    return visited.mean(axis=0), visited.std(axis=0)


def _tolerance(
    problem: Problem, setting: Setting, function: Polynomial, derivative: np.ndarray, reach: Float[np.ndarray, " n"]
) -> float:
    """A bound, to first order, on the error of decisions, in their own units, within `reach` (in half-widths)."""
    m = setting.decisions.size
    count = derivative.shape[0] // m
    points = np.random.default_rng(0).uniform(-reach, reach, (count, len(setting.centre)))
    residual, _ = _system(function.coefficients, function.slopes, points, setting, problem=problem)
    table = basis_table(points, problem.exponents)
    inverse = np.linalg.pinv(derivative).reshape(len(problem.exponents), -1)
    answer = np.abs(table @ inverse).reshape(count, m, -1).sum(axis=-1)
    unbounded = _everywhere(function, setting.centre + setting.half * points)
    slopes = np.asarray(_everywhere(setting.decisions.slopes, unbounded))
    return max(ROUNDING, float((answer * np.abs(slopes)).max() * np.abs(np.asarray(residual)).max()))


@eqx.filter_jit
def _everywhere(function, points: Float[Array, "P n"] | np.ndarray) -> Float[Array, "P m"]:
    return jax.vmap(function)(points)


@functools.partial(jax.jit, static_argnames="problem")
def _bellman(function, points, setting: Setting, *, problem: Problem):
    """Utility `[P, V]`, and discounted expected basis functions `[P, V, K]`, under a policy."""
    env, params = problem.env, setting.params
    decide = _decide(function, setting)

    def at(point):
        state = setting.states.state(setting.centre + setting.half * point)
        action = decide(state).action
        utility = jnp.atleast_1d(env.reward(state, action, params))
        nodes, weights = _nodes(problem, setting, state)

        def one(shock):
            following = env.transition(state, action, shock, params)
            place = (setting.states(following) - setting.centre) / setting.half
            discount = jnp.broadcast_to(env.step_discount(state, following, params), utility.shape)
            return discount[:, None] * basis(place, problem.exponents)

        return utility, jnp.tensordot(weights, jax.vmap(one)(nodes), 1)

    return jax.vmap(at)(points)


def _value(problem: Problem, setting: Setting, function: Polynomial, points: np.ndarray) -> Value | None:
    """V = u + E[discount V'] at the nodes; None where agents move between slots, or it is played once."""
    env, params = problem.env, setting.params
    state = setting.states.state(jnp.asarray(setting.centre))
    slots = np.arange(env.num_agents)
    if env.one_shot or np.any(np.asarray(env.successor(state, state, params)) != slots):
        return None
    utility, expected = (np.asarray(each) for each in _bellman(function, points, setting, problem=problem))
    table = basis_table(points, problem.exponents)
    columns = [np.linalg.lstsq(table - expected[:, v], utility[:, v], rcond=None)[0] for v in range(utility.shape[1])]
    coefficients = np.stack(columns, axis=1)
    flat = np.zeros((coefficients.shape[1], len(setting.centre)))
    polynomial = Polynomial(setting.centre, setting.half, coefficients, flat, problem.exponents)
    slopes = np.asarray(jax.jit(jax.jacfwd(polynomial))(setting.centre))
    polynomial = Polynomial(setting.centre, setting.half, coefficients, slopes, problem.exponents)
    return Value(polynomial, setting.states, env.num_agents == 1)
