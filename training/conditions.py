"""Euler errors of a policy, with true conditional expectations."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..agents.deqn import residuals
from ..envs.economy import Decision, Economy
from ..envs.environment import EnvParams, EnvState

ORDER = 11


def euler_errors(
    decide: Callable[[EnvState], Decision], states: EnvState, env: Economy, params: EnvParams
) -> Float[Array, " E"] | None:
    """Absolute errors in units of consumption at every state, all conditions together; None where there are none.

    Args:
        decide: the policy.
        states: `[S, ...]`.
        env, params: the economy; expectations are over its shock law's first rule, with 11 nodes a dimension where the
            rule has an order.
    """

    @eqx.filter_jit
    def all_states(states):
        def one(state):
            nodes, weights = expectation_nodes(env, params, state)
            return residuals(decide, state, nodes, weights, env, params, report=env.euler_error)

        return jax.vmap(one)(states)

    errors = jax.tree.leaves(all_states(states))
    return jnp.abs(jnp.concatenate([jnp.ravel(e) for e in errors])) if errors else None


def expectation_nodes(env: Economy, params: EnvParams, state: EnvState) -> tuple[Array, Float[Array, " J"]]:
    """Nodes and weights of next period's shock for a report: the law's first rule, 11 nodes a dimension."""
    law = env.shocks(params)
    return law.nodes(law.rules[0], ORDER, state)
