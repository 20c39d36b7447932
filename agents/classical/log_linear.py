"""First-order perturbation: the equilibrium conditions linearised around the steady state.

Blanchard and Kahn (1980), "The solution of linear difference models under rational expectations", Econometrica 48;
solved by the generalised Schur form as in Klein (2000), JEDC 24. In logs of positive states and logits of bounded
actions, so that the rule keeps the bounds (Campbell 1994, JME 33, for the growth model in logs).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from ...envs.economy import Decision, Economy
from ...envs.environment import Environment, EnvParams, EnvState, Reference
from ...envs.shocks import Normal
from ...errors import UserError
from .coordinates import (
    SMOOTH,
    DecisionCoordinates,
    Rule,
    StateCoordinates,
    decision_coordinates,
    state_coordinates,
    what_works,
)

FIXED = 1e-6
SPREADS = 3.0
PROBES = 512

_linearized: dict[Any, LinearRule] = {}


class LinearRule(NamedTuple):
    """The rule to first order, with n states, m decisions and d shocks; deviations are from the steady state.

    Attributes:
        state_names: "log k" where the state is in logs.
        decision_names: "action", "auxiliary", with an index where there are several.
        steady_state, decision: the point of expansion.
        slopes: `[m, n]`, of the decision in its own units by the states' coordinates.
        transition: `[n, n]`, of next period's coordinates by today's, under the rule.
        impact: `[n, d]`, of next period's coordinates by its shock.
        covariance: `[n, n]`, of the coordinates in the long run, to first order.
        roots: moduli of all roots, ascending; the first n are stable.
        states, decisions: the coordinates.
        num_states, num_stable: how many states there are, and how many roots lie inside the unit circle; equal.
    """

    state_names: tuple[str, ...]
    decision_names: tuple[str, ...]
    steady_state: EnvState
    decision: Decision
    slopes: np.ndarray
    transition: np.ndarray
    impact: np.ndarray
    covariance: np.ndarray
    roots: np.ndarray
    states: StateCoordinates
    decisions: DecisionCoordinates

    @property
    def num_states(self) -> int:
        """Coordinates of the state, n."""
        return len(self.state_names)

    @property
    def num_stable(self) -> int:
        """Roots inside the unit circle."""
        return int(np.sum(self.roots < 1))

    @property
    def policy(self) -> Rule:
        """The rule as a map from states, linear in logs and logits; its `decide` gives whole decisions."""
        return Rule(self.function, self.states, self.decisions, "action")

    @property
    def centre(self) -> np.ndarray:
        """Coordinates of the steady state, `[n]`."""
        with jax.enable_x64(True):
            return np.asarray(self.states(self.steady_state))

    @property
    def function(self) -> Affine:
        """The rule from coordinates to unbounded decisions."""
        with jax.enable_x64(True):
            u = self.decisions(self.decision)
            slopes = self.slopes / np.asarray(self.decisions.slopes(u))[:, None]
            return Affine(self.centre, np.asarray(u), slopes)

    @property
    def spreads(self) -> np.ndarray:
        """Standard deviations of the coordinates in the long run, `[n]`."""
        return np.sqrt(np.diag(self.covariance))


class Affine(eqx.Module):
    """u(x) = u_0 + S (x - x_0)."""

    centre: np.ndarray
    level: np.ndarray
    slopes: np.ndarray

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " m"]:
        return jnp.asarray(self.level, x.dtype) + jnp.asarray(self.slopes, x.dtype) @ (
            x - jnp.asarray(self.centre, x.dtype)
        )


def linearize(env: Environment, params: EnvParams) -> LinearRule:
    """Linearise an economy around its steady state and solve for the stable rule.

    The rule is kept, so that asking again for the same economy and the same calibration costs nothing.

    Args:
        env: an economy with a steady state, continuous states and as many conditions as decisions.
        params: concrete parameters; the work is done in float64.

    Returns:
        The rule, with all roots and the number of the stable ones.

    Raises:
        UserError: it is no economy, there is no steady state, it does not satisfy the conditions, states or actions are
            discrete, conditions and decisions are not equally many, conditions need the derivative of next period's
            policy, or the number of stable roots is not that of the states (both are given); or parameters are traced.

    Example:
        >>> from equimorph import make
        >>> rule = linearize(*make("Growth-v0"))
        >>> rule.state_names, rule.num_stable, rule.num_states
        (('log k', 'log z'), 2, 2)
    """
    wide = concrete(env, params)
    assert isinstance(env, Economy)
    key = env, tuple((leaf.shape, leaf.astype(np.float64).tobytes()) for leaf in jax.tree.leaves(wide))
    if key not in _linearized:
        with jax.enable_x64(True):
            _linearized[key] = _linear_rule(env, jax.tree.map(jnp.asarray, wide))
    return _linearized[key]


def concrete(env: Environment, params: EnvParams) -> EnvParams:
    """The parameters of an economy as NumPy arrays of float64.

    Raises:
        UserError: it is no economy, or parameters are traced.
    """
    from . import widen  # the package's own, above this module

    if not isinstance(env, Economy):
        raise UserError(f"{env.name} is no economy, so it has no linear rule; train it with 'mappo' or 'reinforce'")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params)):
        raise UserError(f"{env.name}: a linear rule needs the parameters' numbers; call it outside of jit and vmap")
    return widen(params)


def rule_of_slopes(env: Economy, params: EnvParams, slopes: np.ndarray) -> LinearRule:
    """The linear rule that has the given slopes, with the law of motion that the economy has under it.

    Call it inside `jax.enable_x64(True)`; the roots are those of the law of motion alone.

    Args:
        env, params: an economy with a steady state, and its parameters in float64.
        slopes: `[m, n]`, of the decision in its own units by the states' coordinates.

    Raises:
        UserError: there is no steady state, or states do not come back to it under the rule.
    """
    steady, decision = _steady_state(env, params)
    states, decisions = state_coordinates(env, params), decision_coordinates(env, params, decision)
    shock, spread = _shock_moments(env, params)

    def moved(x, y, shock):
        return states(env.transition(states.state(x), decisions.from_values(y).action, shock, params))

    y = decisions.values(decision)
    by_x, by_y, impact = map(np.asarray, jax.jit(jax.jacfwd(moved, argnums=(0, 1, 2)))(states(steady), y, shock))
    transition = by_x + by_y @ slopes
    roots = np.sort(np.abs(np.linalg.eigvals(transition)))
    if not roots[-1] < 1:
        raise UserError(
            f"{env.name}: a root of {roots[-1]:.6g} under this rule, so states do not come back from a shock"
        )
    impact = impact.reshape(states.size, shock.shape[0])
    covariance = scipy.linalg.solve_discrete_lyapunov(transition, impact @ spread @ impact.T)
    steady, decision = jax.tree.map(np.asarray, (steady, decision))
    return LinearRule(
        states.names,
        decisions.names,
        steady,
        decision,
        slopes,
        transition,
        impact,
        covariance,
        roots,
        states,
        decisions,
    )


def log_linear(env: Economy, params: EnvParams) -> Reference:
    """The log-linear rule as a reference, without a value.

    Its tolerance is of the size of the second-order terms that it leaves out: the largest difference, within three
    standard deviations of the states, between the rule that is linear in logs and the one that is linear in levels.

    Raises:
        UserError: as `linearize`; or a limit binds within those three standard deviations, where the rule would
            cross it.
    """
    rule = linearize(env, params)
    policy = rule.policy
    auxiliary = None if rule.decision.auxiliary is None else policy.other("auxiliary")
    with jax.enable_x64(True):
        _check_limits(env, params, rule, policy)
        return Reference(policy, None, env.concept, _curvature(rule, policy), auxiliary)


def stacked_conditions(conditions: dict[str, Array]) -> Float[Array, " q"]:
    """All conditions as one vector."""
    return jnp.concatenate([jnp.ravel(conditions[name]) for name in sorted(conditions)])


def _steady_state(env: Economy, params: EnvParams) -> tuple[EnvState, Decision]:
    found = env.steady_state(params)
    if found is None:
        raise UserError(f"{env.name} has no steady state to linearise at; {what_works(env, params, *SMOOTH)}")
    return jax.tree.map(jnp.asarray, found)


def _linear_rule(env: Economy, params: EnvParams) -> LinearRule:
    steady, decision = _steady_state(env, params)
    if type(env).conditions is Economy.conditions:
        raise UserError(
            f"{env.name} declares no equilibrium conditions to linearise; {what_works(env, params, *SMOOTH)}"
        )
    states, decisions = state_coordinates(env, params), decision_coordinates(env, params, decision)
    shock, spread = _shock_moments(env, params)
    x, u, d = states(steady), decisions(decision), shock.shape[0]

    def system(x, u, after, u_after, shock):
        """Next period's coordinates, and the conditions given next period's coordinates and decision."""
        state, chosen = states.state(x), decisions.decision(u)
        following, later = states.state(after), decisions.decision(u_after)
        moved = states(env.transition(state, chosen.action, shock, params))
        terms = env.expectation_terms(state, chosen, following, later, params, next_policy=_refuse(env, params))
        return moved, stacked_conditions(env.conditions(state, chosen, terms, params))

    moved, residual = system(x, u, x, u, shock)
    gap = float(jnp.max(jnp.abs(jnp.concatenate([moved - x, residual]))))
    if not gap < FIXED:
        raise UserError(f"{env.name}: its steady state misses its own conditions by {gap:.2g}; mend steady_state")
    if residual.size != decisions.size:
        raise UserError(
            f"{env.name} has {residual.size} conditions for {decisions.size} decisions, so no rule follows from them; "
            f"{what_works(env, params, *SMOOTH)}"
        )
    (tx, tu, _, _, impact), (gx, gu, gx_after, gu_after, _) = jax.jit(jax.jacfwd(system, argnums=(0, 1, 2, 3, 4)))(
        x, u, x, u, shock
    )
    slopes, roots = _stable_rule(env, params, states.names, *map(np.asarray, (tx, tu, gx, gu, gx_after, gu_after)))
    transition = np.asarray(tx) + np.asarray(tu) @ slopes
    impact = np.asarray(impact).reshape(states.size, d)
    covariance = scipy.linalg.solve_discrete_lyapunov(transition, impact @ spread @ impact.T)
    own = np.asarray(decisions.slopes(u))[:, None] * slopes
    steady, decision = jax.tree.map(np.asarray, (steady, decision))
    return LinearRule(
        states.names, decisions.names, steady, decision, own, transition, impact, covariance, roots, states, decisions
    )


def _stable_rule(
    env: Economy, params: EnvParams, names, tx, tu, gx, gu, gx_after, gu_after
) -> tuple[np.ndarray, np.ndarray]:
    """Slopes `[m, n]` of the stable rule and the moduli of all roots, by the generalised Schur form."""
    n, m = tu.shape
    ahead = np.block([[np.eye(n), np.zeros((n, m))], [gx_after, gu_after]])
    today = np.block([[tx, tu], [-gx, -gu]])
    try:
        _, _, alpha, beta, _, z = scipy.linalg.ordqz(today, ahead, sort="iuc", output="complex")
    except (ValueError, np.linalg.LinAlgError) as error:
        raise UserError(f"{env.name}: the linearised conditions cannot be ordered by their roots ({error})") from None
    if np.any((np.abs(alpha) < 1e-12) & (np.abs(beta) < 1e-12)):
        raise UserError(
            f"{env.name}: the linearised conditions leave a decision undetermined; {what_works(env, params, *SMOOTH)}"
        )
    with np.errstate(divide="ignore"):
        roots = np.abs(alpha) / np.where(beta == 0, 0.0, np.abs(beta))
    stable = int(np.sum(np.abs(alpha) < np.abs(beta)))
    if stable != n:
        what = "many stable rules (the conditions do not pin one down)" if stable > n else "no stable rule"
        raise UserError(
            f"{env.name}: {stable} stable roots for {n} states ({', '.join(names)}), so there is {what}; change the "
            "parameters, or train it with 'deqn'"
        )
    first = z[:n, :n]
    if np.linalg.cond(first) > 1e12:
        raise UserError(
            f"{env.name}: the stable rule does not depend on every state; {what_works(env, params, *SMOOTH)}"
        )
    return np.real(np.linalg.solve(first.T, z[n:, :n].T).T), np.sort(roots)


def _shock_moments(env: Economy, params: EnvParams) -> tuple[Float[Array, " d"], np.ndarray]:
    """Mean `[d]` and covariance `[d, d]` of next period's shock."""
    law = env.shocks(params)
    if isinstance(law, Normal):
        return jnp.zeros((law.d,), jnp.result_type(float)), np.eye(law.d)
    values, weights = law.nodes(*law.finest(), env.initial_state(jax.random.key(0), params))
    if values.ndim != 2 or not jnp.issubdtype(values.dtype, jnp.floating):
        raise UserError(
            f"{env.name}: {type(law).__name__} shocks have no mean to linearise at; {what_works(env, params, *SMOOTH)}"
        )
    mean = weights @ values
    away = np.asarray(values - mean)
    return mean, (np.asarray(weights)[:, None] * away).T @ away


def _check_limits(env: Economy, params: EnvParams, rule: LinearRule, policy: Rule) -> None:
    """Refuse a limit whose distance, to first order, is no more than three standard deviations of its own."""
    x = jnp.asarray(rule.centre)

    def slack(x: Array) -> dict[str, Array]:
        state = rule.states.state(x)
        return {name: jnp.ravel(y) for name, y in env.slacks(state, policy.decide(state), params).items()}

    distances, slopes = jax.jit(slack)(x), jax.jit(jax.jacfwd(slack))(x)
    for name, distance in distances.items():
        spread = np.sqrt(np.einsum("qi,ij,qj->q", slopes[name], rule.covariance, slopes[name]))
        if np.any(np.asarray(distance) <= SPREADS * spread):
            raise UserError(
                f"{env.name}: limit {name} binds within {SPREADS:g} standard deviations of the steady state, and a "
                f"linear rule does not see limits; {what_works(env, params, *SMOOTH)}"
            )


def _curvature(rule: LinearRule, policy: Rule) -> float:
    """The largest difference from the rule that is linear in the states' and the decision's own levels."""
    keys = np.random.default_rng(0).standard_normal((PROBES, rule.states.size))
    points = keys / np.linalg.norm(keys, axis=1, keepdims=True) * SPREADS
    root = scipy.linalg.sqrtm(rule.covariance + 1e-16 * np.eye(rule.states.size)).real
    points = rule.centre + points @ root
    logs = np.asarray(rule.states.logs)
    levels = np.where(logs, np.expm1(np.where(logs, points - rule.centre, 0)), points - rule.centre)

    def gap(x, level):
        values = rule.decisions.values(policy.decide(rule.states.state(x)))
        straight = rule.decisions.values(rule.decision) + jnp.asarray(rule.slopes) @ level
        return jnp.abs(values - straight).max()

    return float(jax.jit(jax.vmap(gap))(jnp.asarray(points), jnp.asarray(levels)).max())


def _refuse(env: Economy, params: EnvParams) -> Any:
    def next_policy(state: EnvState) -> Decision:
        raise UserError(
            f"{env.name}: its conditions differentiate next period's policy, which a linearisation does not know; "
            f"{what_works(env, params, *SMOOTH)}"
        )

    return next_policy
