"""How a residual learner takes the expectation over next period's shock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...envs.economy import Decision, Economy
from ...envs.environment import EnvParams, EnvState, drop_agent_axis
from ...envs.quadrature import DEFAULT_ORDER, MAX_NODES, normal_nodes
from ...envs.shocks import ShockLaw
from ...errors import UserError, unknown
from ..agent import check_applies, check_range
from ..policies.heads import make_auxiliary_head

if TYPE_CHECKING:
    from .agent import DEQN

EXPECTATIONS = ("quadrature", "all_in_one", "mc")
FEWEST_DRAWS = 64
DRAWS = {"all_in_one": 4, "mc": 1}


def check_expectation(agent: DEQN) -> None:
    """Refuse what does not go together, whatever the environment."""
    if agent.expectation is not None and agent.expectation not in EXPECTATIONS:
        raise unknown("expectation", str(agent.expectation), EXPECTATIONS)
    check_range("order", agent.order, 1)
    check_range("draws", agent.draws, 1)
    check_range("curriculum", agent.curriculum, 1e-6, 1)
    if num_draws(agent) > MAX_NODES:
        raise UserError(
            f"draws = {num_draws(agent)} in every state are above the limit of {MAX_NODES}; use fewer, and more states "
            "in a batch (batch_size)"
        )
    method = agent.expectation
    if method is not None:
        _check_options(agent, method)
    if agent.antithetic and num_draws(agent) % 2:
        raise UserError(f"draws = {num_draws(agent)} must be even with antithetic=True: draws come in pairs")
    if agent.shock_mask is not None and not (agent.shock_mask and all(type(on) is bool for on in agent.shock_mask)):
        raise UserError(f"shock_mask = {agent.shock_mask!r} must be a True or False for each shock")
    if method == "mc" and num_draws(agent) < FEWEST_DRAWS:
        raise UserError(
            f"expectation='mc' with {num_draws(agent)} draws: a squared residual adds the sampling variance to what "
            "is minimised and moves the answer (one draw costs up to 90 % of consumption on StochasticAK-v0); use "
            f"expectation='quadrature', 'all_in_one', or at least {FEWEST_DRAWS} draws"
        )


def _check_options(agent: DEQN, method: str) -> None:
    nodes, given = method == "quadrature", f"with expectation={method!r}"
    check_applies("draws", agent.draws, not nodes, f"{given}; set order instead")
    check_applies("rule", agent.rule, nodes, f"{given}; leave it out")
    check_applies("order", agent.order, nodes, f"{given}; set draws instead")
    check_applies("antithetic", agent.antithetic or None, not nodes, f"{given}, whose nodes are symmetric anyway")


def num_draws(agent: DEQN) -> int:
    """Draws in a group."""
    return agent.draws if agent.draws is not None else DRAWS.get(agent.expectation or "", 0)


def check_expected(agent: DEQN, env: Economy, params: EnvParams) -> None:
    """Refuse options of an expectation, and of next period's policy, where conditions hold none."""
    if jax.eval_shape(lambda: _central_terms(env, params)[2]):
        return
    for name in ("expectation", "rule", "order", "draws", "antithetic", "shock_mask", "curriculum", "next_policy"):
        value = getattr(agent, name)
        unset = value is None or value is False or (name == "next_policy" and value == "full")
        check_applies(name, None if unset else value, False, f"to {env.name}, whose conditions hold no expectation")


def check_law(agent: DEQN, env: Economy, params: EnvParams) -> None:
    """Refuse what does not fit the economy's shocks."""
    law, state = env.shocks(params), env.initial_state(jax.random.key(0), params)
    mask, options = agent.shock_mask, ("antithetic", "shock_mask", "curriculum")
    asked = [name for name in options if getattr(agent, name) not in (None, False)]
    if asked and law.normals is None:
        raise UserError(
            f"{env.name}: {asked[0]} does not apply to {type(law).__name__} shocks, which are not made of normal "
            "draws; leave it out"
        )
    if mask is not None and len(mask) != law.normals:
        raise UserError(f"{env.name} has {law.normals} shocks, but shock_mask has {len(mask)} entries")
    if mask is not None and not any(mask):
        raise UserError("shock_mask turns every shock off; leave one True")
    if agent.expectation not in (None, "quadrature"):
        return
    _check_options(agent, "quadrature")
    rule = agent.rule or law.rules[0]
    nodes_at(agent, law, state, jnp.ones(()))
    other = next((f"use rule={name!r}" for name in law.rules if law.takes_order(name)), "leave it out")
    check_applies("order", agent.order, law.takes_order(rule), f"with rule={rule!r}, whose nodes are fixed; {other}")


def nodes_at(
    agent: DEQN, law: ShockLaw, state: EnvState, size: Float[Array, ""] | None
) -> tuple[Array, Float[Array, " J"]]:
    """Quadrature nodes and weights of the shock, by the configured rule.

    Args:
        agent: the options.
        law, state: of the shock, and what it is given.
        size: of the shocks, as a share of their own, in a curriculum; None without one.
    """
    rule = agent.rule or law.rules[0]
    order = DEFAULT_ORDER.get(rule, 5) if agent.order is None else agent.order
    if agent.shock_mask is None and agent.curriculum is None:
        return law.nodes(rule, order, state)
    law.check_rule(rule)
    kept = _kept(agent, law)
    nodes, weights = normal_nodes(rule, len(kept), order)
    return law.from_normal(*_spread(jnp.asarray(nodes), kept, law, size)), jnp.asarray(weights, jnp.result_type(float))


def draws_at(agent: DEQN, law: ShockLaw, state: EnvState, size: Float[Array, ""] | None, key: Array) -> Array:
    """Draws of the shock, `[draws, ...]`; in pairs of opposite sign with `antithetic`."""
    if agent.shock_mask is None and agent.curriculum is None and not agent.antithetic:
        return law.draws(key, num_draws(agent), state)
    kept, total = _kept(agent, law), num_draws(agent)
    fresh = jax.random.normal(key, (total // 2 if agent.antithetic else total, len(kept)), jnp.result_type(float))
    normal = jnp.concatenate([fresh, -fresh]) if agent.antithetic else fresh
    return law.from_normal(*_spread(normal, kept, law, size))


def _kept(agent: DEQN, law: ShockLaw) -> list[int]:
    mask = agent.shock_mask or (True,) * (law.normals or 0)
    return [i for i, on in enumerate(mask) if on]


def _spread(
    normal: Float[Array, "J kept"], kept: list[int], law: ShockLaw, size: Float[Array, ""] | None
) -> tuple[Float[Array, "J d"], Float[Array, " d"]]:
    """Normal draws with zeros where shocks are off, and the size of each shock."""
    dtype, index = jnp.result_type(float), jnp.asarray(kept)
    width = law.normals or 0
    full = jnp.zeros((normal.shape[0], width), dtype).at[:, index].set(normal.astype(dtype))
    return full, jnp.zeros(width, dtype).at[index].set(1.0 if size is None else size)


def curriculum_size(agent: DEQN, count: Array, planned: Array) -> Float[Array, ""] | None:
    """The size of the shocks at gradient step `count` of `planned`: it grows linearly to 1; None without curriculum."""
    if agent.curriculum is None:
        return None
    return jnp.clip(count / jnp.maximum(agent.curriculum * planned, 1), 0.0, 1.0).astype(jnp.result_type(float))


def check_affine(env: Economy, params: EnvParams) -> None:
    """Refuse a product of two estimates where conditions are not affine in the expectation: it would be biased."""
    state, decision, terms = _central_terms(env, params)
    scaled = [jax.tree.map(lambda h, by=by: by * h, terms) for by in (0.5, 1.0, 1.5)]
    at = [env.conditions(state, decision, expected, params) for expected in scaled]
    for name in at[1]:
        curvature = jnp.abs(at[0][name] + at[2][name] - 2 * at[1][name])
        scale = jnp.abs(at[2][name] - at[0][name]) + 1e-6
        if bool(jnp.any(curvature > 1e-3 * scale)):
            raise UserError(
                f"{env.name}: condition {name!r} is not affine in its expectation, so expectation='all_in_one' "
                "would be biased; use expectation='quadrature'"
            )


def _central_terms(env: Economy, params: EnvParams) -> tuple[EnvState, Decision, dict[str, Array]]:
    """A first state, the centre's decision in it, and what stands inside its expectation for one draw."""
    state, decision = env.initial_state(jax.random.key(0), params), _central_decision(env, params)
    shock = env.shocks(params).sample(jax.random.key(1), state)
    following = env.transition(state, decision.action, shock, params)
    terms = env.expectation_terms(state, decision, following, decision, params, next_policy=lambda _: decision)
    return state, decision, terms


def _central_decision(env: Economy, params: EnvParams) -> Decision:
    """The centre's actions, and the auxiliary outputs of a zero network."""
    auxiliary = make_auxiliary_head(env, params)
    one = Decision(
        jnp.asarray(env.centre(params)),
        None if auxiliary is None else auxiliary(jnp.zeros(auxiliary.size, jnp.result_type(float))),
    )
    return drop_agent_axis(env, jax.tree.map(lambda x: jnp.stack([x] * env.num_agents), one))
