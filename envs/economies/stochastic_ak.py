"""Saving at a risky linear return: the answer depends on the law of the shock.

Levhari and Srinivasan (1969), "Optimal savings under uncertainty", REStud 36. Unlike in Brock and Mirman's economy the
shock does not drop out of the Euler equation, so a biased expectation shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from ...errors import UserError
from .. import spaces
from ..economy import Decision, Economy, Residuals
from ..environment import POSITIVE, REAL, SHARE, Domain, EnvParams, EnvState, Reference, parameter
from ..shocks import Normal

LOW, CENTRE = 0.8, 0.9
FLOOR = 1e-8
INITIAL_SPREAD = 0.5


@struct.dataclass
class State(EnvState):
    """Beginning-of-period wealth `k`, its return included; scalar."""

    k: Float[Array, ""]


@struct.dataclass
class Params(EnvParams):
    """Calibration; the defaults are annual."""

    beta: float = parameter(0.95, SHARE, "discount factor per period")
    gamma: float = parameter(2.0, POSITIVE, "relative risk aversion, not 1")
    mu: float = parameter(0.03, REAL, "mean of the log return")
    sigma: float = parameter(0.1, POSITIVE, "standard deviation of the log return")
    max_steps_in_episode: int = parameter(32, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class StochasticAK(Economy):
    """Choose the saved share s of wealth: c = (1 - s) k, k' = R' s k, log R' normal(mu, sigma^2), power utility.

    The best share is `(beta E[R^(1-gamma)])^(1/gamma)` at every wealth. There is no steady state.

    Action: Box(0.8, 1), shape (1,), centred on 0.9. Observation: log wealth over 0.5.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 1

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The saved share of wealth."""
        return spaces.Box(LOW, 1.0, (1,), jnp.result_type(float))

    def check_params(self, params: Params) -> None:
        """Power utility, and a best policy inside the bounds whose value is finite."""
        if np.any(np.asarray(params.gamma) == 1.0):
            raise UserError(f"{self.name}: gamma = 1 is log utility, which power utility leaves out; try gamma = 1.001")
        share = np.asarray(saved_share(params))
        outside = share[~((share > LOW) & (share < 1.0))]
        if outside.size:
            raise UserError(
                f"{self.name}: the best saved share at these parameters is {outside[0]:g}, outside ({LOW}, 1); "
                "change beta, gamma, mu or sigma"
            )

    def initial_state(self, key: Array, params: Params) -> State:
        """Log wealth normal around 0."""
        return State(jnp.int32(0), jnp.exp(INITIAL_SPREAD * jax.random.normal(key, (), jnp.result_type(float))))

    def observation(self, state: State, params: Params) -> Float[Array, " 1"]:
        """Log wealth in units of its initial spread."""
        return jnp.log(state.k)[None] / INITIAL_SPREAD

    def shocks(self, params: Params) -> Normal:
        """The log return, standardised."""
        return Normal(1)

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """k' = R' s k."""
        return state.replace(k=jnp.exp(params.mu + params.sigma * shock[0]) * action[0] * state.k)

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, ""]:
        """c^(1-gamma) / (1-gamma)."""
        return utility(consumption(state, action), params)

    def reward_units(self, params: Params) -> tuple[Array, Array]:
        """At the consumption of the centre at wealth 1."""
        c = jnp.array(1 - CENTRE, jnp.result_type(float))
        return utility(c, params), c ** (1 - params.gamma)

    def centre(self, params: Params) -> Float[Array, " 1"]:
        """0.9, whose infinite-horizon value is not even finite in the default calibration."""
        return jnp.full((1,), CENTRE, jnp.result_type(float))

    def floored(self, state: State, action: Array, params: Params) -> Array:
        """Whether the share was so near 1 that consumption was held up."""
        return 1 - action[0] < FLOOR

    def expectation_terms(
        self,
        state: State,
        decision: Decision,
        next_state: State,
        next_decision: Decision,
        params: Params,
        *,
        next_policy: Callable[[State], Decision],
    ) -> Residuals:
        """R' u'(c')."""
        gross_return = next_state.k / (decision.action[0] * state.k)
        return {"saving": gross_return * consumption(next_state, next_decision.action) ** -params.gamma}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """Euler equation, unit-free: beta E[R' u'(c')] / u'(c) - 1."""
        marginal = consumption(state, decision.action) ** -params.gamma
        return {"euler": params.beta * expected["saving"] / marginal - 1}

    def euler_error(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """(u')^-1 (beta E[R' u'(c')]) / c - 1."""
        wanted = (params.beta * expected["saving"]) ** (-1 / params.gamma)
        return {"euler": wanted / consumption(state, decision.action) - 1}

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Wealth and consumption."""
        return {"wealth": state.k, "consumption": consumption(state, action)}

    def effective_discount(self, state: State, action: Array, params: Params) -> Float[Array, ""]:
        """s^(1-gamma) beta E[R^(1-gamma)]: utility scales with wealth^(1-gamma)."""
        return action[0] ** (1 - params.gamma) * discounted_return(params)

    def consumption_equivalent(self, value: Array, reference: Array, params: Params) -> Array:
        """1 - (V / V*)^(1/(1-gamma)), for power utility."""
        return 1 - (value / reference) ** (1 / (1 - params.gamma))

    def reference(self, params: Params) -> Reference:
        """The best share, and its value (1-s)^-gamma k^(1-gamma) / (1-gamma)."""
        share = saved_share(params)

        def value(state: State) -> Array:
            return (1 - share) ** -params.gamma * utility(state.k, params)

        return Reference(lambda state: share[None], value, self.concept)


def utility(c: Array, params: Params) -> Array:
    """Power utility."""
    return c ** (1 - params.gamma) / (1 - params.gamma)


def consumption(state: State, action: Array) -> Float[Array, ""]:
    """(1 - s) k, held above a hundred-millionth of wealth."""
    return jnp.maximum(1 - action[0], FLOOR) * state.k


def discounted_return(params: Params) -> Float[Array, ""]:
    """beta E[R^(1-gamma)] for a lognormal return."""
    exponent = 1 - params.gamma
    return params.beta * jnp.exp(exponent * params.mu + exponent**2 * params.sigma**2 / 2)


def saved_share(params: Params) -> Float[Array, ""]:
    """(beta E[R^(1-gamma)])^(1/gamma)."""
    return discounted_return(params) ** (1 / params.gamma)


def constant_value(state: State, share: Array, params: Params) -> Float[Array, ""]:
    """Value of saving `share` for ever; not finite unless `effective_discount` is below 1."""
    discount = share ** (1 - params.gamma) * discounted_return(params)
    return utility((1 - share) * state.k, params) / (1 - discount)
