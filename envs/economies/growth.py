"""Stochastic growth with power utility and partial depreciation: the workhorse of computational economics.

Brock and Mirman (1972), JET 4; the quarterly calibration is that of Maliar and Maliar (2014), "Numerical methods for
large-scale dynamic economic models", Handbook of Computational Economics 3. Its Solow rule (a constant share of output)
has Euler errors of a percent and costs a few hundredths of a percent of consumption: both scales are reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from ...errors import UserError
from .. import spaces
from ..economy import Decision, Economy, Residuals
from ..environment import POSITIVE, SHARE, Domain, EnvParams, EnvState, parameter
from ..shocks import Normal

FLOOR = 1e-8
BEND = 5.0


@struct.dataclass
class State(EnvState):
    """Beginning-of-period capital `k` and productivity `z`, both scalars."""

    k: Float[Array, ""]
    z: Float[Array, ""]


@struct.dataclass
class Params(EnvParams):
    """Calibration; the defaults are quarterly."""

    alpha: float = parameter(0.36, SHARE, "capital's share of output")
    beta: float = parameter(0.99, SHARE, "discount factor per period")
    gamma: float = parameter(2.0, POSITIVE, "relative risk aversion; 1 is log utility")
    delta: float = parameter(0.025, Domain(0.0, 1.0, open_high=False), "depreciation per period")
    rho: float = parameter(0.95, Domain(-1.0, 1.0), "autocorrelation of log z")
    sigma: float = parameter(0.01, POSITIVE, "standard deviation of the innovation to log z")
    scale: float = parameter(1.0, POSITIVE, "productivity A, only with normalised=False")
    max_steps_in_episode: int = parameter(200, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class Growth(Economy):
    """Choose the saved share s of cash m = A z k^alpha + (1 - delta) k: k' = s m, c = (1 - s) m, power utility of c.

    log z' = rho log z + sigma eps. Cash, not output, is shared, so that capital may be eaten.

    Action: Box(0, 1), shape (1,), centred on the steady state's share. Observation: log k and log z in ergodic standard
    deviations, that of k to first order; far away compressed.

    Attributes:
        normalised: A is such that steady-state capital is 1; otherwise A is the parameter `scale`.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 2
    solver: ClassVar[str | None] = "chebyshev"

    normalised: bool = True

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The saved share of cash."""
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))

    def check_params(self, params: Params) -> None:
        """A productivity of one's own needs `normalised=False`."""
        if self.normalised and np.any(np.asarray(params.scale) != 1):
            raise UserError(
                f"{self.name}: scale = {float(np.max(params.scale)):g} does not apply with normalised=True, which "
                "chooses productivity so that steady-state capital is 1; set normalised=False"
            )

    def centre(self, params: Params) -> Float[Array, " 1"]:
        """The steady state's saved share of cash."""
        return self.steady_state(params)[1].action

    def initial_state(self, key: Array, params: Params) -> State:
        """Capital uniform around its steady state, within 30 % and 3 standard deviations; z from its stationary law."""
        key_k, key_z = jax.random.split(key)
        spread_k, spread_z = spreads(params)
        width = jnp.minimum(0.3, 3 * spread_k)
        share = 1 + width * jax.random.uniform(key_k, (), jnp.result_type(float), -1.0, 1.0)
        z = jnp.exp(spread_z * jax.random.normal(key_z, (), jnp.result_type(float)))
        return State(time=jnp.int32(0), k=share * self.steady_capital(params), z=z)

    def observation(self, state: State, params: Params) -> Float[Array, " 2"]:
        """Log capital and log productivity, in ergodic standard deviations around the steady state.

        Capital that shrinks to a fortieth, as under random shares, is 60 of them away: BEND arcsinh(x / BEND) keeps
        that of order one.
        """
        logs = jnp.stack([jnp.log(state.k / self.steady_capital(params)), jnp.log(state.z)])
        return BEND * jnp.arcsinh(logs / jnp.stack(spreads(params)) / BEND)

    def shocks(self, params: Params) -> Normal:
        """The innovation to log z, standardised."""
        return Normal(1)

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """k' = s m and z' = z^rho exp(sigma eps)."""
        k = jnp.maximum(action[0], FLOOR) * self.cash(state, params)
        return state.replace(k=k, z=jnp.exp(params.rho * jnp.log(state.z) + params.sigma * shock[0]))

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, ""]:
        """(c^(1-gamma) - 1) / (1-gamma), or log c."""
        return utility(self.consumption(state, action, params), params)

    def reward_units(self, params: Params) -> tuple[Array, Array]:
        """At steady-state consumption."""
        c = steady_ratios(params).consumption * self.steady_capital(params)
        return utility(c, params), c ** (1 - params.gamma)

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
        """R' u'(c') with R' = alpha A z' k'^(alpha-1) + 1 - delta."""
        gross_return = params.alpha * self.output(next_state, params) / next_state.k + 1 - params.delta
        return {"saving": gross_return * self.consumption(next_state, next_decision.action, params) ** -params.gamma}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """Euler equation, unit-free: beta E[R' u'(c')] / u'(c) - 1."""
        c = self.consumption(state, decision.action, params)
        return {"euler": params.beta * expected["saving"] * c**params.gamma - 1}

    def euler_error(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """(u')^-1 (beta E[R' u'(c')]) / c - 1."""
        wanted = (params.beta * expected["saving"]) ** (-1 / params.gamma)
        return {"euler": wanted / self.consumption(state, decision.action, params) - 1}

    def steady_state(self, params: Params) -> tuple[State, Decision]:
        """Where beta R = 1, at z = 1."""
        state = State(time=jnp.int32(0), k=self.steady_capital(params), z=jnp.ones((), jnp.result_type(float)))
        share = 1 / (steady_ratios(params).output + 1 - params.delta)
        return state, Decision(share[None])

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Output, consumption, investment, and investment's share of output."""
        y, c = self.output(state, params), self.consumption(state, action, params)
        return {"output": y, "consumption": c, "investment": y - c, "invested_share": 1 - c / y}

    def consumption_equivalent(self, value: Array, reference: Array, params: Params) -> Array:
        """1 - [(1 + (1-g)(1-b) V) / (1 + (1-g)(1-b) V*)]^(1/(1-g)), or 1 - exp(-(1-b)(V* - V)) for log utility."""
        gain, curve = (1 - params.beta) * (value - reference), 1 - params.gamma
        worth = gain / (1 + curve * (1 - params.beta) * reference)
        is_log = curve == 0
        power = jnp.log1p(curve * worth) / jnp.where(is_log, 1, curve)
        return -jnp.expm1(jnp.where(is_log, gain, power))

    def productivity(self, params: Params) -> Float[Array, ""]:
        """A: at which steady-state capital is 1, or the parameter `scale`."""
        return steady_ratios(params).output if self.normalised else jnp.asarray(params.scale)

    def steady_capital(self, params: Params) -> Float[Array, ""]:
        """[A / (y/k)]^(1/(1-alpha)) at the steady state's y/k."""
        return (self.productivity(params) / steady_ratios(params).output) ** (1 / (1 - params.alpha))

    def output(self, state: State, params: Params) -> Float[Array, ""]:
        """A z k^alpha."""
        return self.productivity(params) * state.z * state.k**params.alpha

    def cash(self, state: State, params: Params) -> Float[Array, ""]:
        """Output and what is left of capital."""
        return self.output(state, params) + (1 - params.delta) * state.k

    def consumption(self, state: State, action: Array, params: Params) -> Float[Array, ""]:
        """(1 - s) m, held above a hundred-millionth of cash."""
        return jnp.maximum(1 - action[0], FLOOR) * self.cash(state, params)


class Ratios(NamedTuple):
    """Output and consumption per unit of capital in the steady state."""

    output: Float[Array, ""]
    consumption: Float[Array, ""]


def steady_ratios(params: Params) -> Ratios:
    """From beta R = 1: y/k = (1/beta - 1 + delta) / alpha, c/k = y/k - delta."""
    output = jnp.asarray((1 / params.beta - 1 + params.delta) / params.alpha)
    return Ratios(output, output - params.delta)


def utility(c: Array, params: Params) -> Array:
    """(c^(1-gamma) - 1) / (1-gamma), and its limit log c at gamma = 1."""
    curve = 1 - params.gamma
    log = jnp.log(c)
    return jnp.where(curve == 0, log, jnp.expm1(curve * log) / jnp.where(curve == 0, 1, curve))


def spreads(params: Params) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Standard deviations of log k and log z in the long run, to first order.

    With log c = p log k + q log z the Euler equation gives next period's log k = root log k + load log z, by the method
    of undetermined coefficients (Campbell 1994, JME 33, section 3.1).
    """
    ratios = steady_ratios(params)
    return_share = 1 - params.beta * (1 - params.delta)
    pull = return_share * (1 - params.alpha) / params.gamma
    half = (1 + 1 / params.beta + pull * ratios.consumption) / 2
    root = (1 / params.beta) / (half + jnp.sqrt(half**2 - 1 / params.beta))
    by_capital = (1 / params.beta - root) / ratios.consumption + pull
    surprise = by_capital * ratios.output - return_share * params.rho / params.gamma
    by_shock = surprise / (1 - params.rho + by_capital * ratios.consumption)
    load = ratios.output - ratios.consumption * by_shock
    spread_z = params.sigma / jnp.sqrt(1 - params.rho**2)
    ratio = (1 + root * params.rho) / ((1 - root * params.rho) * (1 - root**2))
    return jnp.abs(load) * spread_z * jnp.sqrt(ratio), spread_z
