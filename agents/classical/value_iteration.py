"""Value iteration on a grid: no condition is used, only utility and the transition.

Bellman's operator with cubic interpolation between the points of a uniform grid in the states' coordinates (Judd 1998,
"Numerical Methods in Economics", section 12.6); each new policy is evaluated exactly on the grid (Howard 1960).
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
from ...errors import UserError
from .chebyshev import shock_nodes
from .coordinates import SMOOTH, DecisionCoordinates, Rule, StateCoordinates, what_works
from .log_linear import linearize

POINTS = {1: (81,), 2: (41, 21)}
FEWEST = 9
BRACKET = 0.5
SECTIONS = 45
MOST_ROUNDS = 60
SETTLED, ACCEPTED = 1e-6, 1e-4
RESOLUTION = 1e-7  # of a maximum, by comparing values that are flat there
SPREADS = 3.0
GOLDEN = (np.sqrt(5) - 1) / 2


class Grid(eqx.Module):
    """A uniform grid in one or two coordinates, with cubic interpolation between its points.

    Attributes:
        low, step: `[n]`.
        counts: points in each coordinate.
    """

    low: np.ndarray
    step: np.ndarray
    counts: tuple[int, ...] = eqx.field(static=True)

    def points(self) -> np.ndarray:
        """All points, `[P, n]`."""
        lines = np.meshgrid(*map(np.arange, self.counts), indexing="ij")
        return self.low + self.step * np.stack(lines, axis=-1).reshape(-1, len(self.counts))

    def weights(self, x: Float[Array, " n"]) -> list[Float[Array, " count"]]:
        """Weights of the points of each coordinate; linear outside of the grid."""
        place = (x - jnp.asarray(self.low, x.dtype)) / jnp.asarray(self.step, x.dtype)
        return [_cubic(place[i], count) for i, count in enumerate(self.counts)]

    def between(self, x: Float[Array, " n"], values: Float[Array, "P ..."]) -> Float[Array, "..."]:
        """Interpolate values at the grid's points."""
        found = values.reshape(*self.counts, *values.shape[1:])
        for weights in self.weights(x):
            found = jnp.tensordot(weights, found, 1)
        return found

    def row(self, x: Float[Array, " n"]) -> Float[Array, " P"]:
        """The weights of all points."""
        return functools.reduce(lambda a, b: jnp.outer(a, b).ravel(), self.weights(x))


class GridFunction(eqx.Module):
    """Values at a grid's points, interpolated."""

    grid: Grid
    values: np.ndarray

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, "..."]:
        return self.grid.between(x, jnp.asarray(self.values, x.dtype))


class GridValue(eqx.Module):
    """The value of a state."""

    function: GridFunction
    states: StateCoordinates

    def __call__(self, state: Any) -> Float[Array, ""]:
        return self.function(self.states(state))


class Setting(eqx.Module):
    """The economy in coordinates, arrays."""

    params: EnvParams
    states: StateCoordinates
    decisions: DecisionCoordinates
    grid: Grid


class Problem(NamedTuple):
    """The economy, static."""

    env: Economy
    order: int | None


def value_iteration(
    env: Economy,
    params: EnvParams,
    *,
    points: int | tuple[int, ...] | None = None,
    width: float = 5.0,
    order: int | None = None,
) -> Reference:
    """Solve an economy with one or two continuous states and one bounded action by value iteration.

    The grid reaches `width` long-run standard deviations of the log-linear rule to either side of the steady state.
    `tolerance` is the largest difference, within 3 standard deviations, from the policy on a grid of half the points;
    at least 1e-7, below which values at a maximum do not differ.

    Args:
        env, params: the economy, with concrete parameters.
        points: of the grid in each coordinate; 81 for one state and 41 x 21 for two unless set.
        width: of the grid.
        order: nodes of the shock, as for `chebyshev`.

    Raises:
        UserError: there is no log-linear rule, or there are more states, agents, actions or auxiliary outputs; or the
            policy does not settle.
    """
    rule = linearize(env, params)
    n = rule.states.size
    if n > 2 or env.num_agents > 1 or rule.decisions.size != 1 or rule.decisions.kinds != ("logit",):
        raise UserError(
            f"{env.name} has {n} states, {env.num_agents} agents and {rule.decisions.size} decisions; value iteration "
            f"takes 1 or 2 states and one bounded action of one agent: {what_works(env, params, 'value_iteration')}"
        )
    if env.one_shot:
        raise UserError(
            f"{env.name} is played once: there is nothing to iterate on; {what_works(env, params, *SMOOTH)}"
        )
    chosen = POINTS[n] if points is None else points
    counts = tuple(chosen) if isinstance(chosen, tuple | list) else (chosen,) * n
    if len(counts) != n or min(counts) < FEWEST:
        raise UserError(f"points = {points} must be at least {FEWEST}, or {n} such numbers, one a state")
    problem = Problem(env, order)
    start = rule.function
    half = tuple(max(FEWEST // 2, count // 2) + 1 for count in counts)
    solutions = []
    for size in (half, counts):
        step = 2 * width * rule.spreads / (np.asarray(size) - 1)
        grid = Grid(rule.centre - width * rule.spreads, step, size)
        policy, value = _iterate(problem, Setting(params, rule.states, rule.decisions, grid), start)
        start = policy
        solutions.append(Rule(policy, rule.states, rule.decisions, "action"))
    coarse, fine = solutions
    near = np.all(np.abs(grid.points() - rule.centre) <= SPREADS * rule.spreads, axis=1)
    gap = _gap(coarse, fine, grid.points()[near])
    return Reference(fine, GridValue(value, rule.states), env.concept, max(float(gap), RESOLUTION))


@eqx.filter_jit
def _gap(one: Rule, other: Rule, points: np.ndarray) -> Float[Array, ""]:
    def at(x):
        state = one.states.state(x)
        return jnp.abs(one(state) - other(state)).max()

    return jax.vmap(at)(points).max()


def _cubic(place: Float[Array, ""], count: int) -> Float[Array, " count"]:
    """Lagrange's weights of the four points around a place, as a row over all points; linear beyond the ends."""
    inside = jnp.clip(place, 0, count - 1)
    first = jnp.clip(jnp.floor(inside).astype(jnp.int32) - 1, 0, count - 4)
    t = inside - first
    four = jnp.stack(
        [
            -(t - 1) * (t - 2) * (t - 3) / 6,
            t * (t - 2) * (t - 3) / 2,
            -t * (t - 1) * (t - 3) / 2,
            t * (t - 1) * (t - 2) / 6,
        ]
    )
    row = jax.lax.dynamic_update_slice(jnp.zeros((count,), four.dtype), four, (first,))
    last = jnp.where(place > inside, count - 2, 0)
    beyond = (place - inside) * jnp.array([-1.0, 1.0], four.dtype)
    return row + jax.lax.dynamic_update_slice(jnp.zeros((count,), four.dtype), beyond, (last,))


def _iterate(problem: Problem, setting: Setting, start) -> tuple[GridFunction, GridFunction]:
    """Improve and evaluate until the policy settles: the policy and its value, on the grid."""
    grid = setting.grid
    actions = np.asarray(_at_points(start, grid.points()))[:, 0]
    value, change = _evaluate(problem, setting, actions), np.inf
    for _ in range(MOST_ROUNDS):
        improved = np.asarray(_improve(actions, value, setting, problem=problem))
        change, actions = np.abs(improved - actions).max(), improved
        value = _evaluate(problem, setting, actions)
        if change < SETTLED:
            break
    if not change < ACCEPTED:
        raise UserError(
            f"{problem.env.name}: value iteration has not settled after {MOST_ROUNDS} rounds (the policy still moves "
            f"by {change:.2g}); try more points or a smaller width"
        )
    return GridFunction(grid, actions[:, None]), GridFunction(grid, value)


@eqx.filter_jit
def _at_points(function, points: np.ndarray) -> Float[Array, "P m"]:
    return jax.vmap(function)(points)


def _evaluate(problem: Problem, setting: Setting, actions: np.ndarray) -> np.ndarray:
    """The value of a policy for ever: V = u + Q V on the grid."""
    utility, expected = _law_of(actions, setting, problem=problem)
    return np.linalg.solve(np.eye(len(actions)) - np.asarray(expected), np.asarray(utility))


@functools.partial(jax.jit, static_argnames="problem")
def _law_of(actions, setting: Setting, *, problem: Problem):
    """Utility `[P]` and discounted weights of next period's points `[P, P]`."""
    points = setting.grid.points()

    def at(inputs):
        x, u = inputs
        utility, places, weights = _outcomes(problem, setting, x, u)
        return utility, weights @ jax.vmap(setting.grid.row)(places)

    return jax.lax.map(at, (points, actions))


@functools.partial(jax.jit, static_argnames="problem")
def _improve(actions, value, setting: Setting, *, problem: Problem):
    """The best unbounded action near the present one at every point, by golden section."""
    points = setting.grid.points()

    def at(x, u):
        def worth(u):
            utility, places, weights = _outcomes(problem, setting, x, u)
            return utility + weights @ jax.vmap(setting.grid.between, (0, None))(places, value)

        def section(ends, _):
            low, high = ends
            left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
            up = worth(left) < worth(right)
            return (jnp.where(up, left, low), jnp.where(up, high, right)), None

        (low, high), _ = jax.lax.scan(section, (u - BRACKET, u + BRACKET), None, SECTIONS)
        return (low + high) / 2

    return jax.vmap(at)(points, actions)


def _outcomes(problem: Problem, setting: Setting, x, u):
    """Utility, next period's coordinates `[J, n]`, and their probabilities times the discount `[J]`."""
    env, params = problem.env, setting.params
    state, action = setting.states.state(x), setting.decisions.decision(u[None]).action
    nodes, weights = shock_nodes(env, params, problem.order, state)

    def one(shock):
        following = env.transition(state, action, shock, params)
        return setting.states(following), env.step_discount(state, following, params)

    places, discounts = jax.vmap(one)(nodes)
    return env.reward(state, action, params), places, weights * discounts
