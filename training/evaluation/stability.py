"""Where a policy leads: its fixed point, how fast paths come together, and whether they stay in bounds."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...agents.classical.coordinates import StateCoordinates
from ...envs.economy import Economy
from ...envs.environment import EnvParams, EnvState
from ...envs.shocks import Discrete, Normal, ShockLaw
from .rules import Rule
from .states import levels, unpack

MOST_COORDINATES = 200
ITERATIONS, NEWTON_STEPS = 2000, 30
FIXED = 1e-9
NO_REST_POINT = "no rest point of the policy was found near the steady state"
PATHS, PERIODS = 32, 1000


class FixedPoint(NamedTuple):
    """A rest point of the closed loop at the mean shock.

    Attributes:
        x: in coordinates, `[D]`.
        state: the state itself.
        spectral_radius: the largest modulus among the eigenvalues of the closed loop there.
        distance: from the economy's steady state, the largest of any coordinate's; positive ones are in logs.
    """

    x: np.ndarray
    state: EnvState
    spectral_radius: float
    distance: float


def fixed_point(
    rule: Rule, env: Economy, params: EnvParams, coordinates: StateCoordinates
) -> tuple[FixedPoint | None, str]:
    """The policy's own rest point near the economy's steady state, by Newton's method; else by following the policy.

    Returns:
        The point, or None and the reason.
    """
    if env.one_shot:
        return None, "it is played once"
    steady = env.steady_state(params)
    if steady is None:
        return None, "the economy has no steady state"
    if coordinates.size > MOST_COORDINATES:
        return None, f"the state has {coordinates.size} coordinates, above the limit of {MOST_COORDINATES}"
    law = env.shocks(params)
    shock = mean_shock(law)
    if shock is None:
        return None, f"shocks of the kind {type(law).__name__} have no mean"
    like = steady[0]
    starts, rests, gaps, slopes = _rest_points(rule, like, shock, params, coordinates, env=env)
    for index in range(len(starts)):
        x, gap, slope = (np.asarray(each[index]) for each in (rests, gaps, slopes))
        if np.isfinite(x).all() and gap < FIXED and np.isfinite(slope).all():
            radius = float(np.abs(np.linalg.eigvals(slope)).max())
            distance = float(np.abs(x - np.asarray(starts[0])).max())
            return FixedPoint(x, unpack(coordinates, jnp.asarray(x), like), radius, distance), ""
    return None, NO_REST_POINT


def mean_shock(law: ShockLaw) -> Array | None:
    """The mean of next period's shock; None where that is nothing (a chain's index)."""
    if isinstance(law, Normal):
        return jnp.zeros((law.d,), jnp.result_type(float))
    if isinstance(law, Discrete) and jnp.issubdtype(law.values.dtype, jnp.floating):
        return jnp.tensordot(law.probabilities, law.values, 1)
    return None


@eqx.filter_jit
def _rest_points(
    rule: Rule, like: EnvState, shock: Array, params: EnvParams, coordinates: StateCoordinates, *, env: Economy
):
    """From the steady state, and from where the policy leads from there: Newton's rest points, their gaps, slopes."""
    decide = rule.bind(env, params)

    def loop(x: Float[Array, " D"]) -> Float[Array, " D"]:
        state = unpack(coordinates, x, like)
        return coordinates(env.transition(state, decide(state).action, shock, params))

    slope = jax.jacfwd(loop)

    def newton(x):
        def step(_, x):
            # Least squares: a state that nothing pulls back has a slope of one.
            return x - jnp.linalg.lstsq(slope(x) - jnp.eye(x.size), loop(x) - x)[0]

        return jax.lax.fori_loop(0, NEWTON_STEPS, step, x)

    start = coordinates(like)
    starts = jnp.stack([start, jax.lax.fori_loop(0, ITERATIONS, lambda _, x: loop(x), start)])
    rests = jax.lax.map(newton, starts)
    gaps = jax.lax.map(lambda x: jnp.max(jnp.abs(loop(x) - x)), rests)
    return starts, rests, gaps, jax.lax.map(slope, rests)


def contraction(
    rule: Rule, visited: EnvState, env: Economy, params: EnvParams, coordinates: StateCoordinates, seed: int
) -> tuple[float, float]:
    """The mean factor by which a small difference between two paths under the same shocks grows in one period.

    That is the exponential of the largest Lyapunov exponent; at a steady state without shocks it is the spectral
    radius. Positive coordinates are in logs.

    Returns:
        The factor, and its standard error over paths.
    """
    rng = np.random.default_rng(seed)
    index = rng.integers(0, jax.tree.leaves(visited)[0].shape[0], PATHS)
    starts = jax.tree.map(lambda x: x[index], visited)
    growth = np.asarray(_growth(rule, starts, jax.random.key(seed), params, coordinates, env=env))
    factor = float(np.exp(growth.mean()))
    return factor, float(factor * growth.std(ddof=1) / np.sqrt(growth.size))


@eqx.filter_jit
def _growth(
    rule: Rule, starts: EnvState, key: Array, params: EnvParams, coordinates: StateCoordinates, *, env: Economy
) -> Float[Array, " N"]:
    """Mean growth, in logs, of a tangent along each path."""
    decide = rule.bind(env, params)
    law = env.shocks(params)

    def path(state: EnvState, key: Array):
        direction = jax.random.normal(key, (coordinates.size,), jnp.result_type(float))

        def step(carry, key_step):
            state, direction, total = carry
            shock = law.sample(key_step, state)

            def loop(x):
                here = unpack(coordinates, x, state)
                following = env.transition(here, decide(here).action, shock, params)
                return coordinates(following), following.replace(time=state.time)

            _, moved, following = jax.jvp(loop, (coordinates(state),), (direction,), has_aux=True)
            size = jnp.linalg.norm(moved)
            gone = size < 1e-14  # the past is forgotten at once
            moved = jnp.where(gone, direction, moved / jnp.where(gone, 1.0, size))
            return (following, moved, total + jnp.log(jnp.maximum(size, 1e-14))), None

        start = (state, direction / jnp.linalg.norm(direction), jnp.zeros((), jnp.result_type(float)))
        return jax.lax.scan(step, start, jax.random.split(key, PERIODS))[0][2] / PERIODS

    return jax.vmap(path)(starts, jax.random.split(key, jax.tree.leaves(starts)[0].shape[0]))


def fixed_point_report(point: FixedPoint, coordinates: StateCoordinates) -> dict[str, Any]:
    """The point in the state's own units, its spectral radius and its distance from the economy's steady state."""
    x = levels(coordinates, point.x)
    return {
        "spectral_radius": point.spectral_radius,
        "from_steady_state": point.distance,
        "fixed_point": dict(zip(coordinates.names, map(float, x), strict=True)),
    }
