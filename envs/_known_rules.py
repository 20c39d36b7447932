"""The rules of `checks` about what an environment knows of itself: references, capabilities, an economy's equations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..errors import did_you_mean
from ._probe import TOLERANCE, Probe, finite, gap, is_float, kind, named_leaves, outside
from .economy import Decision, Economy
from .economy_wrappers import EconomyWrapper
from .environment import Environment, EnvParams, EnvState
from .shocks import Discrete, Normal
from .wrappers import Wrapper

Rule = Callable[[Probe], Iterator[str]]


def reference_answers(probe: Probe) -> Iterator[str]:
    """A reference acts inside the action space, its value is finite, and it answers the environment's concept."""
    env, state = probe.env, probe.transition[0]
    reference = env.reference(probe.params)
    if reference is None:
        return
    if reference.concept != env.concept:
        yield f"the reference answers {reference.concept!r} where the environment's concept is {env.concept!r}"
    if wrong := outside(env.action_space(probe.params), jax.jit(reference.policy)(state)):
        yield f"the reference's action is not in the action space: {wrong}"
    if reference.value is not None:
        value = jnp.asarray(jax.jit(reference.value)(state))
        if value.shape not in ((), (env.num_agents,)) or not finite(value):
            yield f"the reference's value is {value}; a finite scalar or [{env.num_agents}] is asked for"


def capabilities_are_true(probe: Probe) -> Iterator[str]:
    """What `capabilities` names is there and works; what is there is named."""
    env = probe.env
    for name in sorted(env.capabilities):
        if name in BACKING:
            yield from (f"capability {name!r} is declared, but {found}" for found in BACKING[name](probe))
        elif hint := did_you_mean(name, BACKING):
            yield f"capability {name!r} is unknown.{hint}"
    for name, base in (("score", Environment), ("conditions", Economy)):
        own = env
        # it passes on what it does not override
        while isinstance(own, Wrapper) and (name in vars(Wrapper) or isinstance(own, EconomyWrapper)):
            own = own.inner
        if (
            isinstance(own, base)
            and getattr(type(own), name) is not getattr(base, name)
            and name not in env.capabilities
        ):
            yield f"{name} is defined, but capability {name!r} is not declared; add it to capabilities"


def _economy(probe: Probe) -> Iterator[str]:
    if not isinstance(probe.env, Economy):
        yield "it is not an Economy"


def _score(probe: Probe) -> Iterator[str]:
    score = jax.jit(probe.env.score)(probe.transition[2], probe.params)
    if score.shape != () or not is_float(score) or not finite(score):
        yield f"score returned {score}; a finite float scalar is asked for"


def _events(probe: Probe) -> Iterator[str]:
    event_log_prob = getattr(probe.env, "event_log_prob", None)
    if event_log_prob is None:
        yield "there is no event_log_prob(state, action, next_state, params)"
        return
    scores = jax.jit(event_log_prob)(*probe.transition, probe.params)
    if scores.shape != (probe.env.num_agents,) or not is_float(scores) or not finite(scores) or np.any(scores > 0):
        yield f"event_log_prob returned {scores}; finite log-probabilities [{probe.env.num_agents}] are asked for"


def _differentiable(probe: Probe) -> Iterator[str]:
    state, action, _ = probe.transition
    by = "the action" if any(is_float(leaf) for leaf in jax.tree.leaves(action)) else "the state"
    slopes = jax.tree.leaves(jax.jit(lambda inputs: _slopes(probe, by, *inputs))((state, action)))
    if not finite(slopes):
        yield f"a derivative of reward and next observation with respect to {by} is not finite"
    if not any(np.any(slope != 0) for slope in slopes):
        yield f"all derivatives of reward and next observation with respect to {by} are zero; declare it no longer"


def _slopes(probe: Probe, by: str, state: EnvState, action: PyTree) -> PyTree:
    floats, rest = eqx.partition(action if by == "the action" else state, eqx.is_inexact_array)

    def weighted(floats: PyTree) -> Array:
        inputs = eqx.combine(floats, rest)
        at = (state, inputs) if by == "the action" else (inputs, action)
        observation, _, reward, *_ = probe.env.step_env(probe.key, *at, probe.params)
        outputs = [leaf for leaf in jax.tree.leaves((observation, reward)) if is_float(leaf)]
        # Random weights, so that slopes of opposite signs do not cancel.
        products = [jnp.vdot(jax.random.normal(probe.key, leaf.shape, leaf.dtype), leaf) for leaf in outputs]
        return jnp.sum(jnp.stack(products))

    return jax.grad(weighted)(floats)


def _conditions(probe: Probe) -> Iterator[str]:
    env = probe.env
    if not isinstance(env, Economy) or type(env).conditions is Economy.conditions:
        yield "there are no conditions; define expectation_terms and conditions of an Economy"
        return
    residuals = jax.jit(lambda state: _residuals(env, state, probe.params))(probe.transition[0])
    if not residuals or not finite(residuals):
        yield f"at the centre's actions the conditions are {residuals}; finite residuals by name are asked for"


def _residuals(env: Economy, state: EnvState, params: EnvParams) -> dict[str, Array]:
    law = env.shocks(params)
    nodes, weights = law.nodes(law.rules[0], _order(law), state)

    def decide(state: EnvState) -> Decision:
        box = env.auxiliary(params)
        auxiliary = None if box is None else jnp.clip(jnp.ones(box.shape), box.low, box.high)
        one = Decision(env.centre(params), auxiliary)
        return one if env.num_agents == 1 else jax.tree.map(lambda leaf: jnp.stack([leaf] * env.num_agents), one)

    def terms(shock: Array) -> dict[str, Array]:
        decision, next_state = decide(state), env.transition(state, decide(state).action, shock, params)
        return env.expectation_terms(state, decision, next_state, decide(next_state), params, next_policy=decide)

    expected = jax.tree.map(lambda h: jnp.tensordot(weights, h, 1), jax.vmap(terms)(nodes))
    return env.conditions(state, decide(state), expected, params)


def _order(law: Any) -> int:
    return 3 if getattr(law, "d", 1) <= 6 else 1


def _distribution(probe: Probe) -> Iterator[str]:
    if np.any(probe.records["successor"] >= 0):
        yield "an agent has a successor; points of a distribution have none"


BACKING: dict[str, Rule] = {
    "conditions": _conditions,
    "differentiable": _differentiable,
    "distribution": _distribution,
    "economy": _economy,
    "events": _events,
    "score": _score,
}


# -- economies -----------------------------------------------------------------------------------------------------


def economies_go_on(probe: Probe) -> Iterator[str]:
    """An economy that is not played once never terminates: its time limit truncates."""
    ended = probe.short_records["terminated"]
    if probe.env.one_shot and not np.all(ended):
        yield "it is played once, but a step did not terminate; leave step_env as Economy derives it"
    if not probe.env.one_shot and np.any(ended):
        yield "it terminated; an economy goes on for ever, and its time limit truncates"


def transition_is_steps(probe: Probe) -> Iterator[str]:
    """What a residual learner differentiates is what `step` does: `transition` and `reward` at the sampled shock."""
    advice = "leave step_env as Economy derives it"
    for (path, taken), (_, predicted) in zip(
        named_leaves(probe.records["next_state"]), named_leaves(probe.records["predicted_state"]), strict=True
    ):
        if gap(predicted, taken) > TOLERANCE:
            yield f"state{path} after step differs from transition's at the shock of the same key; {advice}"
    if gap(probe.records["predicted_reward"], probe.records["reward"]) > TOLERANCE:
        yield f"step's reward differs from scaled_reward(earned(reward(state, action))); {advice}"


def nodes_integrate(probe: Probe) -> Iterator[str]:
    """Every rule's weights are finite and sum to 1 (some are negative in monomial rules); nodes have a draw's shape."""
    law, state = probe.env.shocks(probe.params), probe.transition[0]
    draw = law.sample(probe.key, state)
    for rule in law.rules:
        nodes, weights = law.nodes(rule, _order(law), state)
        if nodes.shape[1:] != draw.shape or nodes.dtype != draw.dtype or weights.shape != nodes.shape[:1]:
            yield f"{rule}: nodes {kind(nodes)} and weights {kind(weights)} do not go with a draw {kind(draw)}"
        if not finite((nodes, weights)) or gap(jnp.sum(weights), np.ones(())) > TOLERANCE:
            yield f"{rule}: nodes must be finite and weights must sum to 1, they are {nodes} and {weights}"


def steady_state_is_fixed(probe: Probe) -> Iterator[str]:
    """The steady state is a fixed point of the transition at the mean shock, its action is legal."""
    env, params = probe.env, probe.params
    found, law = env.steady_state(params), env.shocks(params)
    if found is None:
        return
    state, decision = found
    if wrong := outside(env.action_space(params), decision.action):
        yield f"the steady state's action is not in the action space: {wrong}"
    mean = jnp.zeros(law.d) if isinstance(law, Normal) else None
    if isinstance(law, Discrete) and is_float(law.values):
        mean = jnp.tensordot(law.probabilities, law.values, 1)
    if mean is None:
        return
    after = jax.jit(env.transition)(state, decision.action, mean, params)
    for (path, old), (_, new) in zip(named_leaves(state), named_leaves(after), strict=True):
        if path != ".time" and gap(new, old) > TOLERANCE:
            yield f"state{path} moves from {old} to {new} at the steady state and the mean shock"
