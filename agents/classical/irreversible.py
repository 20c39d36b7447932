"""Time iteration for growth with a floor under investment, with the kink where it starts to bind in its exact place.

Two functions are smooth although the policy is not, and only they are approximated, by cubic splines: expected marginal
value W(k', z) = beta E[V_k(k', z') | z], which the normal shock smooths, and the consumption of who may break the floor
today only. The policy is their exact function. Expectations are Gauss-Legendre sums over panels that end at the kink.
Judd (1998), Numerical Methods in Economics, chapters 7, 16 and 17, describes the parts.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import sparse

from ...envs.economies.irreversible import Irreversible, Params, State, least_investment, spread_z, steady_capital
from ...envs.economy import Economy
from ...envs.environment import EnvParams, Reference
from ...errors import UserError
from ._interpolation import CubicSpline2D, spline_matrix, spline_weights
from .coordinates import what_works

WIDTH_K = 0.5
WIDTH_Z = 6.0
POINTS_K, POINTS_Z = 40, 97
PANELS, NODES = 16, 5
COARSER = 2 / 3
CHECKED_K, CHECKED_Z = 0.3, 4.0
CONVERGED = 1e-11
SETTLED = 1e-10
REFRESH = 20
MOST_ITERATIONS = 5000


class Problem(NamedTuple):
    """The economy's numbers and the grids.

    Attributes:
        alpha, beta, gamma, delta, rho, sigma: of the economy.
        least: the floor under investment.
        x, y: evenly spaced log k and log z, `[K]` and `[Z]`.
        to_x, to_y: from values to spline coefficients along each.
    """

    alpha: float
    beta: float
    gamma: float
    delta: float
    rho: float
    sigma: float
    least: float
    x: np.ndarray
    y: np.ndarray
    to_x: np.ndarray
    to_y: np.ndarray

    def resources(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Output and what is left of capital."""
        return np.exp(y + self.alpha * x) + (1 - self.delta) * np.exp(x)


class Mesh(NamedTuple):
    """Nodes of next period's log z, for each capital its own.

    Attributes:
        kink: log z below which the floor binds, `[K]`.
        y: nodes, `[K, Q]`.
        weights: for each of today's z, `[K, Z, Q]`, summing to 1 over Q.
    """

    kink: np.ndarray
    y: np.ndarray
    weights: np.ndarray

    def expect(self, values: np.ndarray) -> np.ndarray:
        """From values on the nodes, `[K, Q]`, to conditional expectations, `[K, Z]`."""
        return (self.weights @ values[..., None])[..., 0]


class Rule(eqx.Module):
    """What the parts of the answer share; beyond the grids their edges count.

    Attributes:
        free: log consumption of who may break the floor today, over log k and log z.
        alpha, gamma, delta, least: of the economy.
    """

    free: CubicSpline2D
    alpha: Float[Array | np.ndarray, ""]
    gamma: Float[Array | np.ndarray, ""]
    delta: Float[Array | np.ndarray, ""]
    least: Float[Array | np.ndarray, ""]

    def at(self, k: Array, state: State) -> tuple[Array, Array]:
        """Log k and log z, held inside the grids."""
        low, high = jnp.asarray(self.free.low), jnp.asarray(self.free.high)
        return jnp.clip(jnp.log(k), low[0], high[0]), jnp.clip(jnp.log(state.z), low[1], high[1])

    def consumption(self, state: State) -> tuple[Array, Array]:
        """Consumption, and what is there to be consumed."""
        most = state.z * state.k**self.alpha - self.least
        return jnp.minimum(jnp.exp(self.free(*self.at(state.k, state))), most), most

    def next_capital(self, state: State) -> Float[Array, ""]:
        """k' = (1 - delta) k + y - c."""
        c, most = self.consumption(state)
        return jnp.asarray((1 - self.delta) * state.k + most + self.least - c)


class InvestedShare(eqx.Module):
    """The policy: the share of output above the floor that is invested too, `[1]`; 0 where the floor binds."""

    rule: Rule

    def __call__(self, state: State) -> Float[Array, " 1"]:
        """The share at a state."""
        c, most = self.rule.consumption(state)
        return jnp.clip(1 - c / most, 0.0, 1.0)[None]


class Multiplier(eqx.Module):
    """The floor's multiplier in units of marginal utility, `[1]`: 1 - W(k', z) c^gamma where it binds.

    Attributes:
        rule: the policy.
        saved: log W over log k' and log z.
    """

    rule: Rule
    saved: CubicSpline2D

    def __call__(self, state: State) -> Float[Array, " 1"]:
        """The multiplier at a state."""
        c, most = self.rule.consumption(state)
        marginal = jnp.exp(self.saved(*self.rule.at(self.rule.next_capital(state), state)))
        return jnp.where(c < most, 0.0, jnp.clip(1 - marginal * c**self.rule.gamma, 0.0, 1.0))[None]


class Value(eqx.Module):
    """Expected discounted utility, c^(1-gamma)/(1-gamma) + beta E V.

    Attributes:
        rule: the policy.
        expected: beta E[V(k', z') | z] over log k' and log z.
    """

    rule: Rule
    expected: CubicSpline2D

    def __call__(self, state: State) -> Float[Array, ""]:
        """V at a state."""
        c, power = self.rule.consumption(state)[0], 1 - self.rule.gamma
        return c**power / power + self.expected(*self.rule.at(self.rule.next_capital(state), state))


def irreversible(env: Economy, params: EnvParams) -> Reference:
    """Solve an `Irreversible` economy, its multiplier and value included.

    Args:
        env: the economy.
        params: its parameters, concrete.

    Returns:
        The policy, which is 0 exactly where the floor binds, its value and its multiplier, for capital within
        exp(-0.5) and exp(0.5) of the steady state and six standard deviations of log z. `tolerance` is the largest
        change of the share when the grids are made finer by a half, within exp(-0.3) and exp(0.3) and four standard
        deviations.

    Raises:
        UserError: another economy, or the iteration does not converge.
    """
    if not isinstance(env, Irreversible):
        raise UserError(
            f"{env.name}: 'irreversible' solves Irreversible-v0 only; {what_works(env, params, 'irreversible')}"
        )
    assert isinstance(params, Params)
    coarse, found = (_solution(env, params, size) for size in (COARSER, 1.0))
    k, z = (jnp.linspace(-width, width, 61) for width in (CHECKED_K, CHECKED_Z * float(spread_z(params))))
    steady = env.steady_state(params)[0]

    def share(policy: InvestedShare, k: Array, z: Array) -> Array:
        return policy(steady.replace(k=steady.k * jnp.exp(k), z=jnp.exp(z)))

    @jax.jit
    def change(k: Array, z: Array) -> Array:
        return jnp.max(jnp.abs(share(found.policy, k, z) - share(coarse.policy, k, z)))

    return found._replace(tolerance=float(change(*jnp.meshgrid(k, z))))


def _solution(env: Irreversible, params: Params, size: float) -> Reference:
    """The answer on grids of `size` times the usual number of points."""
    p = _problem(params, round(size * POINTS_K), round(size * POINTS_Z))
    saved, free, mesh = _time_iteration(env, p)
    expected = _expected_value(p, free, mesh)
    low, high = np.array([p.x[0], p.y[0]]), np.array([p.x[-1], p.y[-1]])

    def spline(values: np.ndarray) -> CubicSpline2D:
        return CubicSpline2D(p.to_x @ values @ p.to_y.T, low, high)

    rule = Rule(spline(free), *map(np.asarray, (p.alpha, p.gamma, p.delta, p.least)))
    value = Value(rule, spline(expected))
    return Reference(InvestedShare(rule), value, env.concept, auxiliary=Multiplier(rule, spline(saved)))


def _problem(params: Params, points_k: int, points_z: int) -> Problem:
    x = np.log(float(steady_capital(params))) + np.linspace(-WIDTH_K, WIDTH_K, points_k)
    y = float(spread_z(params)) * np.linspace(-WIDTH_Z, WIDTH_Z, points_z)
    return Problem(
        alpha=float(params.alpha),
        beta=float(params.beta),
        gamma=float(params.gamma),
        delta=float(params.delta),
        rho=float(params.rho),
        sigma=float(params.sigma),
        least=float(least_investment(params)),
        x=x,
        y=y,
        to_x=spline_matrix(points_k),
        to_y=spline_matrix(points_z),
    )


def _time_iteration(env: Irreversible, p: Problem) -> tuple[np.ndarray, np.ndarray, Mesh]:
    """Log W and log consumption of who may break the floor, on the grids, and the last mesh."""
    resources = p.resources(p.x[:, None], p.y)
    following = np.broadcast_to(p.x[:, None] * 0.9 + 0.1 * p.x.mean(), resources.shape)  # log k', a first guess
    saved = -p.gamma * np.log(resources - np.exp(following))
    mesh, kink, age = None, None, 0
    for _ in range(MOST_ITERATIONS):
        following = _free_choice(p, saved, following, resources)
        free = np.log(resources - np.exp(following))
        kink = _kink(p, free)
        moved = np.inf if mesh is None else np.max(np.abs(kink - mesh.kink))
        age += 1
        if mesh is None or (moved > SETTLED and age >= REFRESH):
            mesh, age, moved = _mesh(p, kink), 0, 0.0
        new = np.log(p.beta * mesh.expect(_marginal_value(p, saved, free, mesh)))
        change = np.max(np.abs(new - saved))
        saved = new
        if change < CONVERGED and moved <= SETTLED:
            return saved, free, mesh
    raise UserError(f"{env.name}: 'irreversible' did not converge at these parameters; lower beta or sigma")


def _free_choice(p: Problem, saved: np.ndarray, following: np.ndarray, resources: np.ndarray) -> np.ndarray:
    """Log k' that solves W(k', z)^(-1/gamma) + k' = resources, by Newton steps from `following`, `[K, Z]`."""
    coefficients, columns = p.to_x @ saved, np.arange(len(p.y))
    for _ in range(3):
        position = (following - p.x[0]) / (p.x[-1] - p.x[0])
        log_w, slope = _spline(coefficients, columns, position, len(p.x))
        c, k = np.exp(-log_w / p.gamma), np.exp(following)
        gap = c + k - resources
        following = following - gap / (k - c * slope / (p.x[-1] - p.x[0]) / p.gamma)
    return following


def _spline(
    coefficients: np.ndarray, columns: np.ndarray, position: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each column's own spline and its derivative with respect to `position`."""
    i, weights = spline_weights(position, size)
    t = position * (size - 1) - i
    slopes = (-((1 - t) ** 2) / 2, (3 * t**2 - 4 * t) / 2, (1 + 2 * t - 3 * t**2) / 2, t**2 / 2)
    parts = [coefficients[i + n, columns] for n in range(4)]
    value = sum(w * part for w, part in zip(weights, parts, strict=True))
    return np.asarray(value), np.asarray(sum(w * part for w, part in zip(slopes, parts, strict=True))) * (size - 1)


def _kink(p: Problem, free: np.ndarray) -> np.ndarray:
    """Log z at which the floor starts to bind, `[K]`; an end of the grid where it always or never does."""
    rows, size, span = np.arange(len(p.x)), len(p.y), p.y[-1] - p.y[0]
    short = np.exp(free) > np.exp(p.y + p.alpha * p.x[:, None]) - p.least
    position = short.sum(axis=1) / (size - 1)
    coefficients = (free @ p.to_y.T).T
    for _ in range(6):
        log_c, slope = _spline(coefficients, rows, position, size)
        c, output = np.exp(log_c), np.exp(p.y[0] + span * position + p.alpha * p.x)
        position = np.clip(position - (c - output + p.least) / (c * slope - output * span), 0, 1)
    inside = short.any(axis=1) & ~short.all(axis=1)
    return p.y[0] + span * np.where(inside, position, short.all(axis=1))


def _mesh(p: Problem, kink: np.ndarray) -> Mesh:
    """Gauss-Legendre nodes on panels below and above the kink, and the normal law's weights on them."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    steps = np.linspace(0, 1, PANELS + 1)
    below, above = p.y[0] + (kink - p.y[0])[:, None] * steps, kink[:, None] + (p.y[-1] - kink)[:, None] * steps
    left = np.concatenate([below[:, :-1], above[:, :-1]], axis=1)[..., None]
    half = np.concatenate([np.diff(below), np.diff(above)], axis=1)[..., None] / 2
    y, width = (left + half * (1 + nodes)).reshape(len(kink), -1), (half * weights).reshape(len(kink), -1)
    density = width[:, None] * np.exp(-(((y[:, None] - p.rho * p.y[:, None]) / p.sigma) ** 2) / 2)
    return Mesh(kink, y, density / density.sum(axis=2, keepdims=True))


def _marginal_value(p: Problem, saved: np.ndarray, free: np.ndarray, mesh: Mesh) -> np.ndarray:
    """V_k = alpha z k^(alpha-1) c^-gamma + (1-delta) W(k', z) on the mesh, `[K, Q]`."""
    rows, position = np.arange(len(p.x))[:, None], (mesh.y - p.y[0]) / (p.y[-1] - p.y[0])
    log_c, _ = _spline((free @ p.to_y.T).T, rows, position, len(p.y))
    output = np.exp(mesh.y + p.alpha * p.x[:, None])
    binds = np.exp(log_c) > output - p.least
    c = np.where(binds, output - p.least, np.exp(log_c))
    # Where the floor binds, k' does not depend on z.
    held = np.log((1 - p.delta) * np.exp(p.x) + p.least)
    along = _columns(p, held) @ p.to_x @ saved
    log_w, _ = _spline((along @ p.to_y.T).T, rows, position, len(p.y))
    w = np.where(binds, np.exp(log_w), c**-p.gamma)
    return p.alpha * output / np.exp(p.x[:, None]) * c**-p.gamma + (1 - p.delta) * w


def _columns(p: Problem, x: np.ndarray) -> np.ndarray:
    """The weights of the spline coefficients along log k at points `x`, `[n, K + 2]`."""
    i, weights = spline_weights((x - p.x[0]) / (p.x[-1] - p.x[0]), len(p.x))
    matrix = np.zeros((len(x), len(p.x) + 2))
    for n, w in enumerate(weights):
        matrix[np.arange(len(x)), i + n] = w
    return matrix


def _expected_value(p: Problem, free: np.ndarray, mesh: Mesh) -> np.ndarray:
    """beta E[V(k', z') | z] on the grids: the fixed point of a linear map."""
    rows, position = np.arange(len(p.x))[:, None], (mesh.y - p.y[0]) / (p.y[-1] - p.y[0])
    log_c, _ = _spline((free @ p.to_y.T).T, rows, position, len(p.y))
    c = np.minimum(np.exp(log_c), np.exp(mesh.y + p.alpha * p.x[:, None]) - p.least)
    following = np.log(p.resources(p.x[:, None], mesh.y) - c)
    i, in_x = spline_weights((following - p.x[0]) / (p.x[-1] - p.x[0]), len(p.x))
    j, in_y = spline_weights(position, len(p.y))
    points, width = np.arange(c.size), len(p.y) + 2
    lookup = sparse.csr_array((c.size, (len(p.x) + 2) * width))
    for n, a in enumerate(in_x):
        for m, b in enumerate(in_y):
            index = ((i + n) * width + j + m).ravel()
            lookup = lookup + sparse.csr_array(((a * b).ravel(), (points, index)), lookup.shape)
    utility = c ** (1 - p.gamma) / (1 - p.gamma)

    def update(expected: np.ndarray, utility: np.ndarray | float) -> np.ndarray:
        after = (lookup @ (p.to_x @ expected @ p.to_y.T).ravel()).reshape(c.shape)
        return p.beta * mesh.expect(utility + after)

    expected = np.zeros((len(p.x), len(p.y))) + p.beta / (1 - p.beta) * utility.mean()
    for _ in range(MOST_ITERATIONS):
        new = update(expected, utility)
        # The largest and smallest change bound the distance to the fixed point (MacQueen 1966).
        change = new - expected
        expected = new + p.beta / (1 - p.beta) * (change.max() + change.min()) / 2
        if np.ptp(change) < CONVERGED * np.abs(expected).max():
            break
    return expected
