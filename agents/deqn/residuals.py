"""A policy as a map from states to decisions, and the two-stage residuals of equilibrium conditions."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...envs.economy import Decision, Economy
from ...envs.environment import EnvParams, EnvState, add_agent_axis, drop_agent_axis
from ..agent import Policy, View


def policy_decision(policy: Policy, env: Economy, params: EnvParams) -> Callable[[EnvState], Decision]:
    """The map from a state to what the policy decides there, in the economy's own shapes."""

    def decide(state: EnvState) -> Decision:
        observation = add_agent_axis(env, env.observation(state, params))
        view = View(observation, env.agent_mask(state, params), env.action_mask(state, params))
        return drop_agent_axis(env, policy.decision(view))

    return decide


def residuals(
    decide: Callable[[EnvState], Decision],
    state: EnvState,
    nodes: Array,
    weights: Float[Array, " J"],
    env: Economy,
    params: EnvParams,
    report: Callable | None = None,
    next_decide: Callable[[EnvState], Decision] | None = None,
) -> dict[str, Array]:
    """The two-stage residuals at one state: first the expectations over the nodes, then the conditions.

    Args:
        decide: the policy, used today and tomorrow.
        state: one state.
        nodes, weights: of next period's shock, `[J, ...]` and `[J]`.
        env, params: the economy.
        report: what to make of the expectations; `env.conditions` unless given.
        next_decide: tomorrow's policy where it is another one.
    """
    decision, tomorrow = decide(state), next_decide or decide

    def inside(shock):
        following = env.transition(state, decision.action, shock, params)
        return env.expectation_terms(state, decision, following, tomorrow(following), params, next_policy=tomorrow)

    terms = jax.vmap(inside)(nodes)
    expected = jax.tree.map(lambda h: jnp.tensordot(weights, h, axes=1), terms)
    return (report or env.conditions)(state, decision, expected, params)
