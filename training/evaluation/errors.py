"""Euler errors, equilibrium conditions and binding limits of a rule, with true conditional expectations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from ...agents.deqn import residuals
from ...envs import quadrature
from ...envs.economy import Economy
from ...envs.environment import EnvParams, EnvState
from ...envs.shocks import Normal, directions
from ..conditions import expectation_nodes
from .rules import Rule, supplies_auxiliary

BINDING = 1e-4
PROBES = 16
LEVELS = {"median": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
ROWS, MOST_STATES = 32_768, 2048

Named = dict[str, np.ndarray]
Measures = dict[str, Named]


def measure(rule: Rule, states: EnvState, env: Economy, params: EnvParams) -> Measures | None:
    """What `conditions`, `euler_error` and `slacks` are at every state.

    Expectations are over the shock law by the rule that `expectation_nodes` chooses, in as few dimensions as the shocks
    have (`fixed_nodes`). States are taken in chunks of one size, so that memory is bounded and one program serves any
    number of them.

    Args:
        rule: decides, today and tomorrow.
        states: `[S, ...]`.
        env, params: the economy.

    Returns:
        "euler", "residuals" and "slacks", each a name to `[S, ...]`. None where the economy declares no conditions, or
        the rule supplies no multipliers where they need them.
    """
    if "conditions" not in env.capabilities or not supplies_auxiliary(rule, env, params):
        return None
    size = jax.tree.leaves(states)[0].shape[0]
    fixed = fixed_nodes(rule, states, env, params)
    chunk = min(chunk_size(states, env, params, fixed), size)
    chunks = []
    for start in range(0, size, chunk):
        # The last chunk is filled up with its last state.
        index = np.minimum(np.arange(start, start + chunk), size - 1)
        chunks.append(_chunk(rule, jax.tree.map(lambda x, i=index: x[i], states), params, fixed, env=env))
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(p) for p in parts])[:size], *chunks)


def fixed_nodes(rule: Rule, states: EnvState, env: Economy, params: EnvParams) -> tuple[Array, Array] | None:
    """Nodes `[J, d]` and weights `[J]` where fewer than the usual ones say the same in every state; else None.

    Several normal shocks that move the next state only through fewer combinations of them (a common and everyone's own
    innovation, say) need a rule over these alone. It is of the order that `expectation_nodes` would choose.
    """
    law = env.shocks(params)
    if not isinstance(law, Normal) or law.d == 1:
        return None
    size = jax.tree.leaves(states)[0].shape[0]
    probes = jax.tree.map(lambda x: x[np.linspace(0, size - 1, PROBES).astype(int)], states)
    actions = _actions(rule, probes, params, env=env)

    def moved(shock: Array) -> Array:
        after = jax.vmap(env.transition, (0, 0, None, None))(probes, actions, shock, params)
        numbers = [leaf for leaf in jax.tree.leaves(after) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
        return jnp.concatenate([jnp.ravel(leaf).astype(shock.dtype) for leaf in numbers])

    found = directions(moved, law.d)
    if found.shape[1] == law.d:
        return None
    nodes, weights = quadrature.normal_nodes(law.finest()[0], found.shape[1], law.finest()[1])
    return jnp.asarray(nodes @ found.T), jnp.asarray(weights)


@eqx.filter_jit
def _actions(rule: Rule, states: EnvState, params: EnvParams, *, env: Economy) -> Any:
    return jax.vmap(lambda state: rule.bind(env, params)(state).action)(states)


def chunk_size(states: EnvState, env: Economy, params: EnvParams, fixed: tuple[Array, Array] | None = None) -> int:
    """States at a time: a power of two, fewer where each has many nodes or agents."""
    one = jax.tree.map(lambda x: x[0], states)
    weights = jax.eval_shape(lambda s: expectation_nodes(env, params, s)[1], one) if fixed is None else fixed[1]
    fits = max(ROWS // (weights.shape[0] * env.num_agents), 1)
    return min(MOST_STATES, 1 << (fits.bit_length() - 1))


@eqx.filter_jit
def _chunk(rule: Rule, states: EnvState, params: EnvParams, fixed: tuple[Array, Array] | None, *, env: Economy) -> Any:
    decide = rule.bind(env, params)

    def report(state, decision, expected, params):
        return {
            "euler": env.euler_error(state, decision, expected, params),
            "residuals": env.conditions(state, decision, expected, params),
            "slacks": env.slacks(state, decision, params),
        }

    def one(state):
        nodes, weights = expectation_nodes(env, params, state) if fixed is None else fixed
        return residuals(decide, state, nodes, weights, env, params, report=report)

    return jax.vmap(one)(states)


def error_report(measured: Measures, env: Economy, late: Bool[np.ndarray, " S"] | None = None) -> dict[str, Any]:
    """Quantiles of what `measure` found.

    Args:
        measured: at states `[S, ...]`.
        env: the economy.
        late: states whose paths have left their first states behind; None where they are on no path.

    Returns:
        * `euler`: all Euler errors together, absolute, in units of consumption; `euler_conditions`: each by itself.
        * `residuals`: every condition, absolute and unit-free.
        * `complementarity`: those of them that are Fischer-Burmeister functions.
        * `binding`: for each limit the share of cases in which it binds (a slack below 1e-4), the same of late states
          alone, and the Euler errors where it binds and elsewhere.

        What the economy does not have is left out.
    """
    euler, conditions, slacks = measured["euler"], measured["residuals"], measured["slacks"]
    found: dict[str, Any] = {}
    if euler:
        found["euler"] = quantiles(together(euler))
        found["euler_conditions"] = {name: quantiles(values) for name, values in euler.items()}
    found["residuals"] = {name: quantiles(values) for name, values in conditions.items()}
    tight = {name: found["residuals"][name] for name in env.complementarity if name in conditions}
    if tight:
        found["complementarity"] = tight
    if slacks:
        errors = euler or {name: values for name, values in conditions.items() if name not in tight}
        found["binding"] = {name: _by_limit(values, errors) for name, values in slacks.items()}
    for name, values in slacks.items():
        if late is not None and late.any():
            found["binding"][name]["late_share"] = float((values[late] < BINDING).mean())
    return found


def together(errors: Mapping[str, np.ndarray]) -> np.ndarray:
    """All errors as one vector."""
    return np.concatenate([np.ravel(values) for values in errors.values()])


def by_state(errors: Mapping[str, np.ndarray]) -> np.ndarray:
    """The largest absolute error at each state, `[S]`; NaN where one is not a number."""
    parts = [np.abs(values).reshape(values.shape[0], -1) for values in errors.values()]
    return np.concatenate(parts, axis=1).max(axis=1)


def _by_limit(slack: np.ndarray, errors: Named) -> dict[str, Any]:
    """Errors where a limit binds and where it does not: agent by agent where both are, else state by state."""
    binds: Bool[np.ndarray, "..."] = slack < BINDING
    if errors and all(values.shape == slack.shape for values in errors.values()):
        values, mask = np.stack(list(errors.values())), np.broadcast_to(binds, (len(errors), *binds.shape))
    else:
        mask = binds.reshape(binds.shape[0], -1).any(axis=1)
        values = by_state(errors) if errors else np.zeros((0,))
    found: dict[str, Any] = {"share": float(binds.mean())}
    if errors:
        for name, part in (("euler_binding", values[mask]), ("euler_slack", values[~mask])):
            if part.size:
                found[name] = quantiles(part)
    return found


def quantiles(errors: np.ndarray) -> dict[str, float]:
    """Mean and quantiles of absolute errors, any shape.

    Errors that are not finite are left out of them, and their share is then told as `not_finite`.
    """
    size = np.abs(np.ravel(np.asarray(errors)))
    finite = size[np.isfinite(size)]
    found: dict[str, float] = {}
    if finite.size < size.size:
        found["not_finite"] = 1 - finite.size / size.size
    if not finite.size:
        return {name: float("nan") for name in ("mean", *LEVELS, "max")} | found
    found["mean"] = float(finite.mean())
    found |= dict(zip(LEVELS, map(float, np.quantile(finite, list(LEVELS.values()))), strict=True))
    return found | {"max": float(finite.max())}


def finite_part(states: EnvState) -> tuple[EnvState, int]:
    """The states all of whose numbers are finite, and how many are not."""
    good = np.ones(jax.tree.leaves(states)[0].shape[0], bool)
    for leaf in jax.tree.leaves(states):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            good &= np.isfinite(np.asarray(leaf)).reshape(leaf.shape[0], -1).all(axis=1)
    if good.all():
        return states, 0
    return jax.tree.map(lambda x: x[np.flatnonzero(good)], states), int((~good).sum())
