"""A network that starts from an answer economists already have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams, add_agent_axis
from ...errors import UserError
from ..agent import check_applies, check_range
from ..policies.actor import Actor, flat_observation
from ..policies.heads import AuxiliaryHead, Head, make_auxiliary_head
from ..steppers import Terms, make_stepper

if TYPE_CHECKING:
    from .agent import DEQN

WARM_STARTS = ("steady_state", "linear")
STEPS, STATES = 100, 512


def check_warm_start(agent: DEQN) -> None:
    """Refuse what does not go together, whatever the environment."""
    check_applies("warm_start_steps", agent.warm_start_steps, agent.warm_start is not None, "without warm_start")
    check_range("warm_start_steps", agent.warm_start_steps, 1)
    if agent.linear_plus and agent.warm_start is not None:
        raise UserError("warm_start does not apply with linear_plus=True, which starts at the linear rule itself")


def check_warm_outputs(agent: DEQN, env: Environment, params: EnvParams) -> None:
    """Refuse a start at a steady state that there is not, or in which a decision lies on its bound."""
    if agent.warm_start != "steady_state":
        return
    if not isinstance(env, Economy) or env.steady_state(params) is None:
        raise UserError(f"{env.name} has no steady state, so warm_start='steady_state' does not apply; leave it out")
    outputs = _steady_outputs(agent.head(env, params), make_auxiliary_head(env, params), env, params)
    if not bool(jnp.all(jnp.isfinite(outputs))):
        raise UserError(
            f"{env.name}: a decision lies on its bound in the steady state, which no output of the network reaches; "
            "leave warm_start='steady_state' out"
        )


def warm_start(
    agent: DEQN,
    nets: Actor,
    head: Head,
    auxiliary: AuxiliaryHead | None,
    env: Environment,
    params: EnvParams,
    key: Array,
) -> Actor:
    """Networks whose outputs, before the squash, fit the steady state's or the linear rule's in 512 fresh states.

    By L-BFGS with a line search (Nocedal and Wright 2006, section 7.2).
    """
    assert isinstance(env, Economy)

    def inputs(key: Array) -> Float[Array, "A O"]:
        state = env.initial_state(key, params)
        return flat_observation(add_agent_axis(env, env.observation(state, params)), env.agent_mask(state, params))

    flat = jax.vmap(inputs)(jax.random.split(key, STATES))
    wanted = _steady_outputs(head, auxiliary, env, params) if agent.warm_start == "steady_state" else agent.linear(flat)
    stepper = make_stepper("lbfgs")

    def objective(nets: Actor) -> Terms:
        gap = nets(flat) - wanted
        return Terms({"warm_start": jnp.mean(gap**2)}, {"warm_start": gap}, {})

    def step(carry, _):
        nets, state = carry
        return stepper.step(objective, nets, state, jnp.ones(()))[:2], None

    steps = STEPS if agent.warm_start_steps is None else agent.warm_start_steps
    return jax.lax.scan(step, (nets, stepper.init(nets)), None, steps)[0][0]


def _steady_outputs(
    head: Head, auxiliary: AuxiliaryHead | None, env: Economy, params: EnvParams
) -> Float[Array, "A out"]:
    """What the network puts out where it decides as in the steady state."""
    found = env.steady_state(params)
    assert found is not None
    decision = add_agent_axis(env, found[1])
    parts = [head.inverse(decision.action)]  # type: ignore[attr-defined]
    if auxiliary is not None:
        parts.append(auxiliary.inverse(decision.auxiliary))
    return jnp.concatenate(parts, axis=-1)
