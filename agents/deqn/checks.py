"""What the residual learner refuses of an environment, before anything is traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

from ...envs import spaces
from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams
from ...errors import UserError, unknown
from ..agent import check_applies
from ..policies.actor import observation_shape
from ..policies.heads import make_auxiliary_head
from ..policies.networks import check_network
from .expectations import check_affine, check_expected, check_law
from .states import check_sources
from .warm_start import check_warm_outputs

if TYPE_CHECKING:
    from .agent import DEQN


def check_fits(agent: DEQN, env: Environment, params: EnvParams, total: int, product: str) -> None:
    """Raise `UserError` where an agent does not fit an environment.

    Args:
        agent, env, params: the pair.
        total: states of a rollout.
        product: how a message names them.
    """
    if not isinstance(env.agent_action_space(params), spaces.Box):
        raise UserError(f"{env.name}: DEQN needs a continuous action (Box); train it with 'mappo' or 'reinforce'")
    agent.head(env, params)
    make_auxiliary_head(env, params)
    check_network(agent.widths, agent.activation, agent.network, observation_shape(env, params))
    if total % agent.batch_size:
        works = [n for n in range(1, total + 1) if total % n == 0]
        raise UserError(
            f"{product} = {total} states do not divide into batches of {agent.batch_size}; batch_size can be "
            f"{', '.join(map(str, works[-12:]))}"
        )
    check_sources(agent, env, params, total)
    if agent.derives(env):
        _check_derived(agent, env)
    if isinstance(env, Economy):
        if not agent.derives(env):
            check_expected(agent, env, params)
        check_law(agent, env, params)
        if agent.expectation == "all_in_one" and not agent.derives(env):
            check_affine(env, params)
    check_warm_outputs(agent, env, params)
    _check_names(agent.prepare(env, params), env, params)


def _check_derived(agent: DEQN, env: Environment) -> None:
    """Refuse what derived conditions do not have."""
    why = f"with conditions derived for {env.name}"
    check_applies("next_policy", agent.next_policy if agent.next_policy != "full" else None, False, why)
    check_applies("linear_plus", agent.linear_plus or None, False, why)
    check_applies("anchor", agent.anchor or None, False, why)
    check_applies("warm_start", agent.warm_start, False, why)
    if isinstance(env, Economy):
        return
    explicit = f"for {env.name}, whose chance is not explicit; use 'all_in_one' or 'mc'"
    check_applies("expectation", agent.expectation, agent.expectation != "quadrature", explicit)
    for name in ("rule", "order", "shock_mask", "curriculum"):
        check_applies(name, getattr(agent, name), False, explicit)
    check_applies("antithetic", agent.antithetic or None, False, explicit)
    if agent.stepper.needs_residuals and agent.expectation != "mc":
        raise UserError(
            f"stepper {agent.stepper.name!r} needs residuals, and the loss for {env.name} is a product of two "
            "estimates over keys; use expectation='mc' with draws=64, or 'adam'"
        )


def _check_names(agent: DEQN, env: Environment, params: EnvParams) -> None:
    """Refuse weights of terms, and bounds and moments of definitions, that there are not or that would do nothing."""
    for option in ("bounds", "moments"):
        given = getattr(agent, option)
        known = _definition_names(env, params) if given else []
        if given and not known:
            raise UserError(f"{env.name} has no definitions, so {option} does not apply; leave it out")
        for name, *_ in given:
            if name not in known:
                raise unknown(f"definition of {env.name} in {option}", name, known)
    if not agent.weights and agent.adaptive is None:
        return
    terms, weights = agent.term_names(env, params), dict(agent.weights)
    for name in weights:
        if name not in terms:
            raise unknown(f"term of {env.name} in weights", name, terms)
    if all(weights.get(name, 1.0) == 0 for name in terms):
        raise UserError(f"weights are 0 for every term of {env.name} ({', '.join(terms)}); leave one above 0")
    alone = f"to {env.name}, whose loss is the term {terms[0]!r} alone; leave it out, or add a term"
    check_applies("adaptive", agent.adaptive, len(terms) > 1, alone)


def _definition_names(env: Environment, params: EnvParams) -> list[str]:
    if not isinstance(env, Economy):
        return []

    def one(key):
        state = env.initial_state(key, params)
        return env.definitions(state, env.action_space(params).sample(key), params)

    return list(jax.eval_shape(one, jax.random.key(0)))
