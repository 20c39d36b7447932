"""Simulated paths of an economy: what a policy is worth on them, and the states that it visits."""

from __future__ import annotations

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ...agents.agent import Policy, View
from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams, EnvState, Reference, add_agent_axis, drop_agent_axis
from ..conditions import expectation_nodes
from .rules import reference_of

Act = Callable[[EnvState, Array], PyTree]

TAIL = 1e-4
LONGEST = 2000


def horizon_of(env: Economy, params: EnvParams, reference: Reference | None) -> int:
    """Periods until less than `TAIL` of the value is left under the reference's effective discount."""
    if env.one_shot:
        return 1
    state = env.initial_state(jax.random.key(0), params)
    action = drop_agent_axis(env, _centres(env, params)) if reference is None else reference.policy(state)
    discount = float(jnp.max(env.effective_discount(state, action, params)))
    if discount >= 1:
        return LONGEST
    return min(LONGEST, math.ceil(math.log(TAIL) / math.log(discount)))


def _centres(env: Environment, params: EnvParams) -> PyTree:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (env.num_agents, *x.shape)), env.centre(params))


@eqx.filter_jit
def paths(
    stacked: Policy,
    params: EnvParams,
    key: Array,
    numeric: Reference | None,
    *,
    env: Economy,
    n: int,
    steps: int,
    kept: int,
):
    """`simulate` for each of the stacked policies; every leaf starts with their axis."""

    def one(policy: Policy):
        return simulate(policy_action(policy, env, params), params, key, env, n, steps, kept, numeric)

    return jax.lax.map(one, stacked)


@eqx.filter_jit
def anchor_paths(params: EnvParams, key: Array, numeric: Reference | None, *, env: Economy, n: int, steps: int):
    """The same paths under the reference and under uniformly random actions."""
    reference = reference_of(env, params, numeric)
    assert reference is not None
    space = env.action_space(params)
    best = simulate(lambda s, k: reference.policy(s), params, key, env, n, steps, 1, numeric)
    uniform = simulate(lambda s, k: space.sample(jax.random.fold_in(k, 1)), params, key, env, n, steps, 1, numeric)
    return best, uniform


def simulate(
    act: Act,
    params: EnvParams,
    key: Array,
    env: Economy,
    n: int,
    steps: int,
    kept: int,
    numeric: Reference | None = None,
):
    """Follow a policy along `n` paths of `steps` periods, whatever the time limit.

    Shocks depend on `key` only, so policies can be compared path by path. Where the reference's value V* is known
    exactly, the shocks' own noise is taken out too: a path is worth `V*(s_0)` less the discounted sum of what each
    action gives up, `V*(s) - u(s, a) - beta E[V*(s')]`, which has the same mean (Kakade and Langford 2002, lemma 6.1).
    Where V* is known but not exactly, a path is worth its discounted utility plus V* of its last state. An economy that
    is played once has no state after the first.

    Args:
        act: from a state and a key to the action.
        params, key, env, n, steps: as above.
        kept: periods whose states and actions are kept, the first ones.
        numeric: a solver's answer; None takes the economy's closed form, if there is one.

    Returns:
        `value` of each path, `[N]`; `floored`, `[N]`; `effective_discount`, its mean; `states` and `actions` of the
        first `kept` periods, `[kept * N, ...]`.
    """
    reference = reference_of(env, params, numeric)
    worth = None if reference is None or env.one_shot else reference.value
    exact = worth if reference is not None and numeric is None and reference.tolerance == 0 else None
    key_start, key_steps = jax.random.split(key)
    start = jax.vmap(env.initial_state, (0, None))(jax.random.split(key_start, n), params)
    dtype = jnp.result_type(float)

    def step(carry, key_step):
        state, total, weight, floored, growth = carry

        def one(k, s):
            action = env.legal_action(act(s, k), params)[0]
            _, following, _, _, info = env.step_env(k, s, action, params)
            discount = jnp.mean(env.step_discount(s, following, params))
            earned = info["utility"]
            if exact is not None:
                earned = earned + continuation(env, params, exact, s, action) - exact(s)
            effective = jnp.mean(env.effective_discount(s, action, params))
            return following, action, jnp.mean(earned), discount, info["floored"], effective

        following, action, earned, discount, held, effective = jax.vmap(one)(jax.random.split(key_step, n), state)
        carry = (following, total + weight * earned, weight * discount, floored | held, growth + effective.mean())
        return carry, (state, action)

    keys = jax.random.split(key_steps, steps)
    total = jnp.zeros((n,), dtype) if exact is None else per_path(exact, start)
    carry = (start, total, jnp.ones((n,), dtype), jnp.zeros((n,), bool), jnp.zeros((), dtype))
    carry, visited = jax.lax.scan(step, carry, keys[:kept])
    if steps > kept:
        carry, _ = jax.lax.scan(lambda c, k: (step(c, k)[0], None), carry, keys[kept:])
    state, total, weight, floored, growth = carry
    if worth is not None and exact is None:
        total = total + weight * per_path(worth, state)
    states, actions = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), visited)
    result = {"value": total, "floored": floored, "effective_discount": growth / steps}
    return result | {"states": states, "actions": actions}


def continuation(env: Economy, params: EnvParams, worth, state: EnvState, action: PyTree) -> Float[Array, "..."]:
    """Discounted expected value of next period's state, by quadrature."""
    nodes, weights = expectation_nodes(env, params, state)

    def one(shock):
        following = env.transition(state, action, shock, params)
        return env.step_discount(state, following, params) * worth(following)

    return jnp.tensordot(weights, jax.vmap(one)(nodes), axes=1)


def per_path(worth, states: EnvState) -> Float[Array, " N"]:
    """The value of each state, averaged over agents where there are several."""
    values = jax.vmap(worth)(states)
    return values.reshape(values.shape[0], -1).mean(axis=-1)


def policy_action(policy: Policy, env: Environment, params: EnvParams, *, sample: bool = False) -> Act:
    """The policy as a map from a state and a key to the action that `step` takes: deterministic, or sampled."""

    def act(state: EnvState, key: Array) -> PyTree:
        observation = add_agent_axis(env, env.observe(key, state, None, params))
        view = View(observation, env.agent_mask(state, params), env.action_mask(state, params))
        return drop_agent_axis(env, policy(view, key if sample else None))

    return act
