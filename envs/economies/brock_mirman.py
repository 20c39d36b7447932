"""Optimal growth with log utility and full depreciation: the answer is known in every state.

Brock and Mirman (1972), "Optimal economic growth and uncertainty: the discounted case", JET 4. With an external effect
of aggregate capital (Romer 1986) the competitive equilibrium and the planner's solution come apart.
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
from ..environment import NON_NEGATIVE, POSITIVE, SHARE, Domain, EnvParams, EnvState, Reference, parameter
from ..shocks import Normal

FLOOR = 1e-8


@struct.dataclass
class State(EnvState):
    """Beginning-of-period capital `k` and productivity `z`, both scalars."""

    k: Float[Array, ""]
    z: Float[Array, ""]


@struct.dataclass
class Params(EnvParams):
    """Calibration; the defaults are annual."""

    alpha: float = parameter(0.36, SHARE, "capital's share of output")
    beta: float = parameter(0.96, SHARE, "discount factor per period")
    eta: float = parameter(0.0, NON_NEGATIVE, "elasticity of output to aggregate capital, beyond one's own")
    rho: float = parameter(0.9, Domain(-1.0, 1.0), "autocorrelation of log z")
    sigma: float = parameter(0.04, POSITIVE, "standard deviation of the innovation to log z")
    max_steps_in_episode: int = parameter(100, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class BrockMirman(Economy):
    """Choose the saved share s of output: y = z k^alpha K^eta, k' = s y, c = (1 - s) y, utility log c.

    log z' = rho log z + sigma eps. K = k in equilibrium. The planner internalises K and saves `(alpha + eta) beta`; the
    competitive household takes K as given and saves `alpha beta`. Without the external effect (eta = 0) they agree.

    Action: Box(0, 1), shape (1,), centred on 1/2. Observation: log k and log z in ergodic standard deviations.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 2
    concepts: ClassVar[tuple[str, ...]] = ("planner", "competitive")

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The saved share of output."""
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))

    def check_params(self, params: Params) -> None:
        """Returns to capital must diminish."""
        total = float(np.max(params.alpha + params.eta))
        if total >= 1.0:
            raise UserError(
                f"{self.name}: alpha + eta = {total:g} must be below 1 (alpha is up to "
                f"{float(np.max(params.alpha)):g}); lower eta"
            )

    def initial_state(self, key: Array, params: Params) -> State:
        """Capital uniform around its steady state, within 30 % and 3 standard deviations; z from its stationary law."""
        key_k, key_z = jax.random.split(key)
        width = jnp.minimum(0.3, 3 * spread_k(params))
        share = 1 + width * jax.random.uniform(key_k, (), jnp.result_type(float), -1.0, 1.0)
        z = jnp.exp(spread_z(params) * jax.random.normal(key_z, (), jnp.result_type(float)))
        return State(time=jnp.int32(0), k=share * self.steady_capital(params), z=z)

    def observation(self, state: State, params: Params) -> Float[Array, " 2"]:
        """Log capital and log productivity, in ergodic standard deviations around the steady state."""
        k = jnp.log(state.k / self.steady_capital(params)) / spread_k(params)
        return jnp.stack([k, jnp.log(state.z) / spread_z(params)])

    def shocks(self, params: Params) -> Normal:
        """The innovation to log z, standardised."""
        return Normal(1)

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """k' = s y and z' = z^rho exp(sigma eps)."""
        k = jnp.maximum(action[0], FLOOR) * output(state, params)
        return state.replace(k=k, z=jnp.exp(params.rho * jnp.log(state.z) + params.sigma * shock[0]))

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, ""]:
        """Log consumption."""
        return jnp.log(consumption(state, action, params))

    def reward_units(self, params: Params) -> tuple[Array, float]:
        """Steady-state log consumption; c u'(c) = 1."""
        k = self.steady_capital(params)
        return jnp.log((1 - self.saved_share(params)) * k ** (params.alpha + params.eta)), 1.0

    def floored(self, state: State, action: Array, params: Params) -> Array:
        """Whether the share was so near 0 or 1 that capital or consumption was held up."""
        return (action[0] < FLOOR) | (1 - action[0] < FLOOR)

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
        """Marginal return to saving times marginal utility, R' / c'."""
        own = params.alpha + (params.eta if self.concept == "planner" else 0.0)
        marginal_return = own * output(next_state, params) / next_state.k
        return {"saving": marginal_return / consumption(next_state, next_decision.action, params)}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """Euler equation, unit-free: beta E[R' / c'] c - 1."""
        c = consumption(state, decision.action, params)
        return {"euler": params.beta * expected["saving"] * c - 1}

    def euler_error(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """The share by which consumption misses the one that the Euler equation asks for."""
        c = consumption(state, decision.action, params)
        return {"euler": 1 / (params.beta * expected["saving"] * c) - 1}

    def steady_state(self, params: Params) -> tuple[State, Decision]:
        """Of the reference policy, at z = 1."""
        state = State(time=jnp.int32(0), k=self.steady_capital(params), z=jnp.ones((), jnp.result_type(float)))
        return state, Decision(self.saved_share(params)[None])

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Output, consumption, investment and the saved share."""
        y = output(state, params)
        return {"output": y, "consumption": consumption(state, action, params), "investment": action[0] * y}

    def consumption_equivalent(self, value: Array, reference: Array, params: Params) -> Array:
        """1 - exp(-(1 - beta) regret), for log utility."""
        return -jnp.expm1(-(1 - params.beta) * (reference - value))

    def reference(self, params: Params) -> Reference:
        """The concept's saved share, and the value of saving it for ever."""
        share = self.saved_share(params)
        return Reference(lambda state: share[None], lambda state: constant_value(state, share, params), self.concept)

    def saved_share(self, params: Params) -> Float[Array, ""]:
        """alpha beta, or the planner's (alpha + eta) beta."""
        own = params.alpha + (params.eta if self.concept == "planner" else 0.0)
        return jnp.asarray(own * params.beta)

    def steady_capital(self, params: Params) -> Float[Array, ""]:
        """s^(1 / (1 - alpha - eta)) at the concept's share."""
        return self.saved_share(params) ** (1 / (1 - params.alpha - params.eta))


def output(state: State, params: Params) -> Float[Array, ""]:
    """z k^alpha K^eta with K = k."""
    return state.z * state.k ** (params.alpha + params.eta)


def consumption(state: State, action: Array, params: Params) -> Float[Array, ""]:
    """(1 - s) y, held above a hundred-millionth of output."""
    return jnp.maximum(1 - action[0], FLOOR) * output(state, params)


def spread_z(params: Params) -> Float[Array, ""]:
    """Stationary standard deviation of log z."""
    return params.sigma / jnp.sqrt(1 - params.rho**2)


def spread_k(params: Params) -> Float[Array, ""]:
    """Stationary standard deviation of log k under any constant share: an AR(1) driven by the AR(1) log z."""
    total = params.alpha + params.eta
    ratio = (1 + total * params.rho) / ((1 - total * params.rho) * (1 - total**2))
    return spread_z(params) * jnp.sqrt(ratio)


def constant_value(state: State, share: Array, params: Params) -> Float[Array, ""]:
    """Value of saving `share` of output for ever: A + B log k + D log z, exact for any share."""
    total = params.alpha + params.eta
    b = total / (1 - total * params.beta)
    d = (1 + params.beta * b) / (1 - params.beta * params.rho)
    a = (jnp.log(1 - share) + params.beta * b * jnp.log(share)) / (1 - params.beta)
    return a + b * jnp.log(state.k) + d * jnp.log(state.z)
