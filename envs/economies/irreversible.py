"""Optimal growth with investment that can hardly be undone: a floor under it that binds in bad times.

The test economy of Guerrieri and Iacoviello (2015), "OccBin: a toolkit for solving dynamic models with occasionally
binding constraints easily", JME 70, section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float

from ...errors import UserError
from .. import spaces
from ..complementarity import fischer_burmeister
from ..economy import Decision, Economy, Residuals
from ..environment import POSITIVE, SHARE, Domain, EnvParams, EnvState, parameter
from ..shocks import Normal

FLOOR = 1e-8
WIDTH_K = 0.25


@struct.dataclass
class State(EnvState):
    """Beginning-of-period capital `k` and productivity `z`, both scalars."""

    k: Float[Array, ""]
    z: Float[Array, ""]


@struct.dataclass
class Params(EnvParams):
    """Calibration; the defaults are annual."""

    alpha: float = parameter(0.33, SHARE, "capital's share of output")
    beta: float = parameter(0.96, SHARE, "discount factor per period")
    gamma: float = parameter(2.0, POSITIVE, "relative risk aversion, not 1")
    delta: float = parameter(0.1, Domain(0.0, 1.0, open_high=False), "depreciation per period")
    phi: float = parameter(
        0.975, Domain(0.0, 1.0, open_low=False), "least investment, as a share of the steady state's"
    )
    rho: float = parameter(0.9, Domain(-1.0, 1.0), "autocorrelation of log z")
    sigma: float = parameter(0.013, POSITIVE, "standard deviation of the innovation to log z")
    max_steps_in_episode: int = parameter(100, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class Irreversible(Economy):
    """Choose investment i = phi i_ss + (y - phi i_ss) s, with power utility of c = y - i.

    y = z k^alpha, k' = (1 - delta) k + i, log z' = rho log z + sigma eps. Investment cannot fall below `phi` times its
    steady state i_ss; where it would, the multiplier mu is positive. With phi = 0 the floor all but never binds.

    Action: Box(0, 1), shape (1,), centred on the steady state's share. Auxiliary: mu c^gamma, Box(0, 1), shape (1,), so
    that c^-gamma - mu stays positive. Observation: log k over a tenth and log z in standard deviations.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 2
    solver: ClassVar[str | None] = "irreversible"
    complementarity: ClassVar[tuple[str, ...]] = ("irreversibility",)

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The share of output above the least investment that is invested too."""
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))

    def auxiliary(self, params: Params) -> spaces.Box:
        """The multiplier of the floor in units of marginal utility, mu c^gamma."""
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))

    def check_params(self, params: Params) -> None:
        """Power utility."""
        if np.any(np.asarray(params.gamma) == 1.0):
            raise UserError(f"{self.name}: gamma = 1 is log utility, which power utility leaves out; try gamma = 1.001")

    def initial_state(self, key: Array, params: Params) -> State:
        """Capital uniform within a quarter of its steady state; z from its stationary law."""
        key_k, key_z = jax.random.split(key)
        share = 1 + WIDTH_K * jax.random.uniform(key_k, (), jnp.result_type(float), -1.0, 1.0)
        z = jnp.exp(spread_z(params) * jax.random.normal(key_z, (), jnp.result_type(float)))
        return State(time=jnp.int32(0), k=share * steady_capital(params), z=z)

    def observation(self, state: State, params: Params) -> Float[Array, " 2"]:
        """Log capital over a tenth and log productivity in standard deviations, around the steady state."""
        return jnp.stack([10 * jnp.log(state.k / steady_capital(params)), jnp.log(state.z) / spread_z(params)])

    def shocks(self, params: Params) -> Normal:
        """The innovation to log z, standardised."""
        return Normal(1)

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """k' = (1 - delta) k + i and z' = z^rho exp(sigma eps)."""
        k = (1 - params.delta) * state.k + investment(state, action, params)
        return state.replace(k=k, z=jnp.exp(params.rho * jnp.log(state.z) + params.sigma * shock[0]))

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, ""]:
        """c^(1-gamma) / (1-gamma)."""
        return utility(consumption(state, action, params), params)

    def reward_units(self, params: Params) -> tuple[Array, Array]:
        """At steady-state consumption."""
        k = steady_capital(params)
        c = k**params.alpha - params.delta * k
        return utility(c, params), c ** (1 - params.gamma)

    def centre(self, params: Params) -> Float[Array, " 1"]:
        """The steady state's share."""
        return self.steady_state(params)[1].action

    def floored(self, state: State, action: Array, params: Params) -> Bool[Array, ""]:
        """Whether output does not pay for the least investment, or all of it was invested."""
        y = output(state, params)
        return (1 - action[0]) * (y - least_investment(params)) < FLOOR * y

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
        """u'(c') (alpha y' / k' + 1 - delta) - (1 - delta) mu'."""
        marginal = consumption(next_state, next_decision.action, params) ** -params.gamma
        product = params.alpha * output(next_state, params) / next_state.k
        return {"saving": marginal * (product + (1 - params.delta) * (1 - next_decision.auxiliary[0]))}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """c^gamma (beta E + mu) - 1, and either the floor or its multiplier is 0."""
        marginal = consumption(state, decision.action, params) ** -params.gamma
        multiplier = decision.auxiliary[0]
        slack = self.slacks(state, decision, params)["irreversibility"]
        return {
            "euler": params.beta * expected["saving"] / marginal + multiplier - 1,
            "irreversibility": fischer_burmeister(multiplier, slack),
        }

    def euler_error(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """(u')^-1 (beta E + mu) / c - 1."""
        c = consumption(state, decision.action, params)
        wanted = params.beta * expected["saving"] + decision.auxiliary[0] * c**-params.gamma
        return {"euler": wanted ** (-1 / params.gamma) / c - 1}

    def slacks(self, state: State, decision: Decision, params: Params) -> Residuals:
        """Investment above the floor, relative to the steady state's."""
        above = decision.action[0] * (output(state, params) - least_investment(params))
        return {"irreversibility": above / steady_investment(params)}

    def steady_state(self, params: Params) -> tuple[State, Decision]:
        """At z = 1, where the floor does not bind."""
        k = steady_capital(params)
        state = State(time=jnp.int32(0), k=k, z=jnp.ones((), jnp.result_type(float)))
        least = least_investment(params)
        share = (params.delta * k - least) / (output(state, params) - least)
        return state, Decision(share[None], jnp.zeros((1,), jnp.result_type(float)))

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Output, consumption and investment."""
        return {
            "output": output(state, params),
            "consumption": consumption(state, action, params),
            "investment": investment(state, action, params),
        }

    def consumption_equivalent(self, value: Array, reference: Array, params: Params) -> Array:
        """1 - (V / V*)^(1/(1-gamma)), for power utility."""
        return 1 - (value / reference) ** (1 / (1 - params.gamma))


def output(state: State, params: Params) -> Float[Array, ""]:
    """z k^alpha."""
    return state.z * state.k**params.alpha


def investment(state: State, action: Array, params: Params) -> Float[Array, ""]:
    """phi i_ss + (y - phi i_ss) s, paid for by at most all but a hundred-millionth of output."""
    return output(state, params) - consumption(state, action, params)


def consumption(state: State, action: Array, params: Params) -> Float[Array, ""]:
    """(1 - s) (y - phi i_ss), held above a hundred-millionth of output."""
    y = output(state, params)
    return jnp.maximum((1 - action[0]) * (y - least_investment(params)), FLOOR * y)


def utility(c: Array, params: Params) -> Array:
    """Power utility."""
    return c ** (1 - params.gamma) / (1 - params.gamma)


def steady_capital(params: Params) -> Float[Array, ""]:
    """[alpha / (1/beta - 1 + delta)]^(1/(1-alpha))."""
    return jnp.asarray((params.alpha / (1 / params.beta - 1 + params.delta)) ** (1 / (1 - params.alpha)))


def steady_investment(params: Params) -> Float[Array, ""]:
    """delta k_ss."""
    return params.delta * steady_capital(params)


def least_investment(params: Params) -> Float[Array, ""]:
    """phi i_ss."""
    return params.phi * steady_investment(params)


def spread_z(params: Params) -> Float[Array, ""]:
    """Stationary standard deviation of log z."""
    return params.sigma / jnp.sqrt(1 - params.rho**2)
