"""The terms of a residual learner's loss at a batch of states."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams, EnvState, add_agent_axis, drop_agent_axis
from ..agent import View
from ..policies.actor import Actor, ActorPolicy, flat_observation
from ..steppers import Terms
from .expectations import draws_at, nodes_at
from .losses import assemble
from .residuals import policy_decision, residuals
from .states import Pool

if TYPE_CHECKING:
    from .agent import DEQN

SIZES = "sizes"
"""Name of the per-state sizes of the residuals in `Terms.aux`; it is taken out before metrics are made."""

Named = dict[str, Array]


class Problem(NamedTuple):
    """What an objective knows besides the networks.

    Attributes:
        agent, env, params: the pair.
        make_policy: from networks to the policy.
        target: networks of next period's policy with `next_policy="target"`, else None.
        size: of the shocks, in a curriculum; else None.
    """

    agent: DEQN
    env: Environment
    params: EnvParams
    make_policy: Callable[[Actor], ActorPolicy]
    target: Actor | None
    size: Float[Array, ""] | None


def objective(problem: Problem, nets: Actor, pool: Pool, weights: Float[Array, " E"] | None, key: Array) -> Terms:
    """Named losses at the states of a minibatch, and the residuals behind them.

    Args:
        problem: what is fixed.
        nets: the networks, differentiated.
        pool: the states `[B, ...]` and their importance.
        weights: of the terms, in the order of `names`; None: 1 each.
        key: of the draws.
    """
    first, second = all_terms(problem, nets, pool.states, key)
    sizes = sum(jnp.abs(g).reshape(g.shape[0], -1).mean(1) for name, g in first.items() if _is_condition(name))
    count = sum(_is_condition(name) for name in first)
    if weights is None:
        weights = jnp.ones(len(first), jnp.result_type(float))
    terms = assemble(problem.agent, tuple(first), first, second, pool.importance, weights)
    sizes = jax.lax.stop_gradient(sizes / count)
    return terms._replace(aux={"policy/residual": sizes.mean(), SIZES: sizes})


def names(problem: Problem, nets: Actor) -> tuple[str, ...]:
    """Names of the terms: conditions in alphabetical order, then anchors, bounds and moments."""
    found: list[str] = []

    def run(key):
        key_state, key_draw = jax.random.split(key)
        state = jax.tree.map(lambda x: x[None], problem.env.reset_env(key_state, problem.params)[1])
        terms = all_terms(problem, nets, state, key_draw)[0]
        found.extend(terms)
        return terms

    jax.eval_shape(run, jax.random.key(0))
    return tuple(found)


def all_terms(problem: Problem, nets: Actor, states: EnvState, key: Array) -> tuple[Named, Named | None]:
    """Residuals of every term, and those of an independent group of draws where the loss is a product."""
    first, second = _conditions(problem, nets, states, key)
    extra = _anchors(problem, nets, states) | _definitions(problem, nets, states)
    return first | extra, None if second is None else second | extra


def _is_condition(name: str) -> bool:
    return not name.startswith(("anchor/", "bound/", "moment/"))


def _conditions(problem: Problem, nets: Actor, states: EnvState, key: Array) -> tuple[Named, Named | None]:
    agent, env, params = problem.agent, problem.env, problem.params
    if not isinstance(env, Economy):
        return _keyed(problem, nets, states, key)
    law = env.shocks(params)
    at = _derived_at(problem, nets) if agent.derived is not None else _declared_at(problem, nets)

    def by_nodes(state: EnvState) -> Named:
        return at(state, *nodes_at(agent, law, state, problem.size))

    def by_draws(state: EnvState, key: Array) -> Named:
        nodes = draws_at(agent, law, state, problem.size, key)
        return at(state, nodes, jnp.full(nodes.shape[0], 1 / nodes.shape[0], jnp.result_type(float)))

    if agent.expectation in (None, "quadrature"):
        return jax.vmap(by_nodes)(states), None
    count = jax.tree.leaves(states)[0].shape[0]
    groups = 2 if agent.expectation == "all_in_one" else 1
    keys = jax.random.split(key, (groups, count))
    first = jax.vmap(by_draws)(states, keys[0])
    return first, jax.vmap(by_draws)(states, keys[1]) if groups == 2 else None


def _declared_at(problem: Problem, nets: Actor) -> Callable[[EnvState, Array, Array], Named]:
    """The economy's own conditions at one state, given nodes and weights."""
    agent, env, params = problem.agent, problem.env, problem.params
    assert isinstance(env, Economy)
    decide = policy_decision(problem.make_policy(nets), env, params)
    tomorrow = decide
    if agent.next_policy == "stop":
        tomorrow = policy_decision(problem.make_policy(jax.lax.stop_gradient(nets)), env, params)
    elif agent.next_policy == "target":
        assert problem.target is not None
        tomorrow = policy_decision(problem.make_policy(problem.target), env, params)
    return lambda state, nodes, weights: residuals(decide, state, nodes, weights, env, params, next_decide=tomorrow)


def _derived_at(problem: Problem, nets: Actor) -> Callable[[EnvState, Array, Array], Named]:
    env, params, derived = problem.env, problem.params, problem.agent.derived
    outputs = outputs_of(problem, nets)
    return lambda state, nodes, weights: derived.residuals(outputs, state, nodes, weights, env, params)


def _keyed(problem: Problem, nets: Actor, states: EnvState, key: Array) -> tuple[Named, Named | None]:
    """Derived conditions of an environment whose chance is in its keys."""
    agent, env, params = problem.agent, problem.env, problem.params
    outputs, count = outputs_of(problem, nets), jax.tree.leaves(states)[0].shape[0]
    draws = 1 if agent.draws is None else agent.draws

    def group(key: Array) -> Named:
        keys = jax.random.split(key, (count, draws))
        return jax.vmap(lambda s, k: agent.derived.keyed_residuals(outputs, s, k, env, params))(states, keys)

    key_first, key_second = jax.random.split(key)
    return group(key_first), None if agent.expectation == "mc" else group(key_second)


def outputs_of(problem: Problem, nets: Actor) -> Callable[[EnvState], tuple[PyTree, Array]]:
    """From a state to actions in the environment's shape, and the costates' raw outputs `[A, n]`."""
    env, params = problem.env, problem.params
    policy = problem.make_policy(nets)

    def outputs(state: EnvState) -> tuple[PyTree, Array]:
        observation = env.observe(jax.random.key(0), state, None, params)
        view = View(add_agent_axis(env, observation), env.agent_mask(state, params), env.action_mask(state, params))
        decision, rest = policy.decision_and_rest(view)
        return drop_agent_axis(env, decision.action), rest

    return outputs


def _anchors(problem: Problem, nets: Actor, states: EnvState) -> Named:
    """Differences from the linear rule, of the networks' outputs (before the squash) and of their slopes."""
    agent, env, params = problem.agent, problem.env, problem.params
    if not agent.anchor:
        return {}
    policy = problem.make_policy(nets)

    def both(flat: Float[Array, "A O"]) -> tuple[Array, Array]:
        return policy.outputs(flat), agent.linear(flat)

    def flat(state: EnvState) -> Float[Array, "A O"]:
        view = add_agent_axis(env, env.observe(jax.random.key(0), state, None, params))
        return flat_observation(view, env.agent_mask(state, params))

    inputs = jax.vmap(flat)(states)
    found = {}
    if "value" in agent.anchor:
        ours, linear = jax.vmap(both)(inputs)
        found["anchor/value"] = ours - linear
    if "slope" in agent.anchor:
        ours, linear = jax.vmap(jax.jacfwd(both))(inputs)
        found["anchor/slope"] = ours - linear
    return found


def _definitions(problem: Problem, nets: Actor, states: EnvState) -> Named:
    """Soft bounds on definitions, and gaps of their means from moments that are known."""
    agent, env, params = problem.agent, problem.env, problem.params
    if not agent.bounds and not agent.moments:
        return {}
    assert isinstance(env, Economy)
    decide = policy_decision(problem.make_policy(nets), env, params)
    values = jax.vmap(lambda s: env.definitions(s, decide(s).action, params))(states)
    found: dict[str, Array] = {}
    for name, low, high in agent.bounds:
        y = values[name]
        found[f"bound/{name}"] = (jax.nn.relu(low - y) + jax.nn.relu(y - high)) / (high - low)
    for name, target in agent.moments:
        found[f"moment/{name}"] = (jnp.mean(values[name]) / target - 1 if target else jnp.mean(values[name]))[None]
    return found
