"""Real business cycles with a choice of labour: two controls, and a version in which a cap on labour often binds.

Aruoba, Fernandez-Villaverde and Rubio-Ramirez (2006), "Comparing solution methods for dynamic equilibrium economies",
JEDC 30.
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

from ...errors import UserError, unknown
from .. import spaces
from ..complementarity import fischer_burmeister
from ..economy import Decision, Economy, Residuals
from ..environment import POSITIVE, SHARE, Domain, EnvParams, EnvState, parameter
from ..shocks import Normal

CAPS = (None, "mean")
FLOOR = 1e-8
LABOR_FLOOR = 1e-6
# Utility is held where it is e^50 times the steady state's, which float32 can still hold at tau = 50.
MOST = 50.0
INITIAL_WIDTH = 0.3
# Ergodic standard deviation of log k over that of log z, as measured: 1.74 (benchmark) and 1.73 (volatile).
K_OVER_Z = 1.75
# Mean labour of the benchmark without a cap: a simulation of 1e6 periods of the Chebyshev solution, s.e. 7e-6.
MEAN_LABOR = 0.31051


@struct.dataclass
class State(EnvState):
    """Beginning-of-period capital `k` and productivity `z`, both scalars."""

    k: Float[Array, ""]
    z: Float[Array, ""]


@struct.dataclass
class Params(EnvParams):
    """Calibration; the defaults are quarterly, the benchmark of Aruoba et al. (2006)."""

    alpha: float = parameter(0.4, SHARE, "capital's share of output")
    beta: float = parameter(0.9896, SHARE, "discount factor per period")
    delta: float = parameter(0.0196, SHARE, "depreciation per period")
    theta: float = parameter(0.357, SHARE, "consumption's share in the composite of consumption and leisure")
    tau: float = parameter(2.0, POSITIVE, "relative risk aversion over that composite, not 1")
    rho: float = parameter(0.95, Domain(-1.0, 1.0), "autocorrelation of log z")
    sigma: float = parameter(0.007, POSITIVE, "standard deviation of the innovation to log z")
    cap: float = parameter(MEAN_LABOR, SHARE, "most labour, read with labor_cap='mean'")
    max_steps_in_episode: int = parameter(200, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class RBCLabor(Economy):
    """Choose the saved share of cash and labour l: c + k' = z k^alpha l^(1-alpha) + (1 - delta) k.

    Utility is (c^theta (1-l)^(1-theta))^(1-tau) / (1-tau); log z' = rho log z + sigma eps.

    With `labor_cap="mean"` labour is at most `params.cap`, by default the mean it has in the benchmark without a cap:
    an action above the cap works as the cap, which `flags` tells as "capped", and the intratemporal condition is
    Fischer-Burmeister.

    Action: Box(0, 1), shape (2,): saved share of cash and labour, centred on the steady state. Observation: log k over
    half the width of its initial distribution and log z in standard deviations.

    Attributes:
        labor_cap: None, or "mean".
    """

    labor_cap: str | None = None

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 2

    def __post_init__(self):
        super().__post_init__()
        if self.labor_cap not in CAPS:
            raise unknown(f"labor_cap of {self.name}", str(self.labor_cap), [str(cap) for cap in CAPS])

    @property
    def solver(self) -> str:
        """Chebyshev collocation, or the solver that keeps the kink exact."""
        return "chebyshev" if self.labor_cap is None else "capped_labor"

    @property
    def complementarity(self) -> tuple[str, ...]:
        """The choice of labour, where it is capped."""
        return () if self.labor_cap is None else ("intratemporal",)

    def check_params(self, params: Params) -> None:
        """Power utility, and a cap only where it is read."""
        if np.any(np.asarray(params.tau) == 1.0):
            raise UserError(f"{self.name}: tau = 1 is log utility, which power utility leaves out; try tau = 1.001")
        if self.labor_cap is None and not np.allclose(params.cap, MEAN_LABOR):
            cap = float(np.max(params.cap))
            raise UserError(f"{self.name}: cap = {cap:g} is not read without a cap on labour; add labor_cap='mean'")

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The saved share of cash, and labour as a share of the time there is."""
        return spaces.Box(0.0, 1.0, (2,), jnp.result_type(float))

    def centre(self, params: Params) -> Float[Array, " 2"]:
        """The steady state's."""
        k, c, labor, _ = self.steady_quantities(params)
        return jnp.stack([k / (k + c), labor])

    def initial_state(self, key: Array, params: Params) -> State:
        """Log capital uniform around its steady state, at least 30 % wide; z from its stationary law."""
        key_k, key_z = jax.random.split(key)
        shift = 2 * scale_k(params) * jax.random.uniform(key_k, (), jnp.result_type(float), -1.0, 1.0)
        z = jnp.exp(spread_z(params) * jax.random.normal(key_z, (), jnp.result_type(float)))
        return State(time=jnp.int32(0), k=self.steady_quantities(params)[0] * jnp.exp(shift), z=z)

    def observation(self, state: State, params: Params) -> Float[Array, " 2"]:
        """Log capital around its steady state and log productivity, scaled."""
        k = jnp.log(state.k / self.steady_quantities(params)[0]) / scale_k(params)
        return jnp.stack([k, jnp.log(state.z) / spread_z(params)])

    def shocks(self, params: Params) -> Normal:
        """The innovation to log z, standardised."""
        return Normal(1)

    def labor(self, action: Array, params: Params) -> Float[Array, ""]:
        """Hours worked: the action's, at most the cap, off 0 and 1 by the floor."""
        most = 1 - LABOR_FLOOR if self.labor_cap is None else params.cap
        return jnp.clip(action[1], LABOR_FLOOR, most)

    def use(self, state: State, action: Array, params: Params) -> tuple[Array, Array, Array]:
        """Consumption, labour and next period's capital."""
        labor = self.labor(action, params)
        cash = output(state.k, state.z, labor, params) + (1 - params.delta) * state.k
        c = jnp.maximum(1 - action[0], FLOOR) * cash
        return c, labor, jnp.maximum(action[0], FLOOR) * cash

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """k' is the saved share of cash; z' = z^rho exp(sigma eps)."""
        z = jnp.exp(params.rho * jnp.log(state.z) + params.sigma * shock[0])
        return state.replace(k=self.use(state, action, params)[2], z=z)

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, ""]:
        """(c^theta (1-l)^(1-theta))^(1-tau) / (1-tau)."""
        return self.utility(*self.use(state, action, params)[:2], params)

    def utility(self, c: Array, labor: Array, params: Params) -> Float[Array, ""]:
        """Power utility of the composite, held where it is e^50 times the steady state's."""
        _, c_ss, l_ss, _ = self.steady_quantities(params)
        power = jnp.minimum((1 - params.tau) * (composite(c, labor, params) - composite(c_ss, l_ss, params)), MOST)
        return jnp.exp(power + (1 - params.tau) * composite(c_ss, l_ss, params)) / (1 - params.tau)

    def marginal_utility(self, c: Array, labor: Array, params: Params) -> Float[Array, ""]:
        """Of consumption: theta (1-tau) u / c."""
        return params.theta * (1 - params.tau) * self.utility(c, labor, params) / c

    def reward_units(self, params: Params) -> tuple[Array, Array]:
        """At the steady state: u, and c u_c."""
        _, c, labor, _ = self.steady_quantities(params)
        u = self.utility(c, labor, params)
        return u, params.theta * (1 - params.tau) * u

    def floored(self, state: State, action: Array, params: Params) -> Bool[Array, ""]:
        """Whether capital, consumption, labour, leisure or utility had to be held."""
        c, labor, _ = self.use(state, action, params)
        _, c_ss, l_ss, _ = self.steady_quantities(params)
        power = (1 - params.tau) * (composite(c, labor, params) - composite(c_ss, l_ss, params))
        top = jnp.zeros((), bool) if self.labor_cap else 1 - action[1] < LABOR_FLOOR
        return (action[0] < FLOOR) | (1 - action[0] < FLOOR) | (action[1] < LABOR_FLOOR) | top | (power > MOST)

    def flags(self, state: State, action: Array, params: Params) -> dict[str, Bool[Array, ""]]:
        """Whether more labour was asked for than the cap allows."""
        return {} if self.labor_cap is None else {"capped": action[1] > params.cap}

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
        """Marginal utility next period times the gross return to capital."""
        c, labor, _ = self.use(next_state, next_decision.action, params)
        gross = 1 - params.delta + params.alpha * output(next_state.k, next_state.z, labor, params) / next_state.k
        return {"saving": gross * self.marginal_utility(c, labor, params)}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """Euler equation beta E[R' u_c'] / u_c - 1; and the wage in utility over the cost of labour, less 1.

        With a cap the second is complementary to the distance of labour from it.
        """
        c, labor, _ = self.use(state, decision.action, params)
        euler = params.beta * expected["saving"] / self.marginal_utility(c, labor, params) - 1
        wanted = wanted_consumption(state.k, state.z, labor, params) / c - 1
        if self.labor_cap is None:
            return {"euler": euler, "intratemporal": wanted}
        # Beyond the cap the slack is 0, but keeps the slope it has below: asking for less is how a policy gets away.
        slack = self.slacks(state, decision, params)["labor"]
        raw = 1 - decision.action[1] / params.cap
        slack = jax.lax.stop_gradient(slack - raw) + raw
        return {"euler": euler, "intratemporal": fischer_burmeister(wanted, slack)}

    def slacks(self, state: State, decision: Decision, params: Params) -> Residuals:
        """The share of the cap that is not worked."""
        if self.labor_cap is None:
            return {}
        return {"labor": 1 - self.labor(decision.action, params) / params.cap}

    def euler_error(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """Shares by which consumption misses what the Euler equation and, without a cap, the wage ask for."""
        c, labor, _ = self.use(state, decision.action, params)
        ratio = params.beta * expected["saving"] / self.marginal_utility(c, labor, params)
        errors = {"euler": ratio ** (1 / (params.theta * (1 - params.tau) - 1)) - 1}
        if self.labor_cap is None:
            errors["intratemporal"] = wanted_consumption(state.k, state.z, labor, params) / c - 1
        return errors

    def steady_quantities(self, params: Params) -> tuple[Array, Array, Array, Array]:
        """Capital, consumption, labour and output that stay as they are at z = 1."""
        per_hour = ((1 / params.beta - 1 + params.delta) / params.alpha) ** (1 / (params.alpha - 1))
        y, c = per_hour**params.alpha, per_hour**params.alpha - params.delta * per_hour
        wage = params.theta / (1 - params.theta) * (1 - params.alpha) * y
        labor = wage / (c + wage)
        if self.labor_cap is not None:
            labor = jnp.minimum(labor, params.cap)
        return labor * per_hour, labor * c, labor, labor * y

    def steady_state(self, params: Params) -> tuple[State, Decision]:
        """Of the economy without shocks, at z = 1; at the cap where the cap is below."""
        k = self.steady_quantities(params)[0]
        return State(time=jnp.int32(0), k=k, z=jnp.ones((), jnp.result_type(float))), Decision(self.centre(params))

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Output, consumption, labour and investment."""
        c, labor, k = self.use(state, action, params)
        y = output(state.k, state.z, labor, params)
        return {"output": y, "consumption": c, "labor": labor, "investment": k - (1 - params.delta) * state.k}

    def consumption_equivalent(self, value: Array, reference: Array, params: Params) -> Array:
        """1 - (V / V*)^(1 / (theta (1-tau))): utility is homogeneous of that degree in consumption."""
        return 1 - (value / reference) ** (1 / (params.theta * (1 - params.tau)))


def output(k: Array, z: Array, labor: Array, params: Params) -> Float[Array, ""]:
    """z k^alpha l^(1-alpha)."""
    return z * k**params.alpha * labor ** (1 - params.alpha)


def composite(c: Array, labor: Array, params: Params) -> Float[Array, ""]:
    """Log of c^theta (1-l)^(1-theta)."""
    return params.theta * jnp.log(c) + (1 - params.theta) * jnp.log1p(-labor)


def wanted_consumption(k: Array, z: Array, labor: Array, params: Params) -> Float[Array, ""]:
    """The consumption at which this labour is the best choice: theta / (1-theta) times the wage times leisure."""
    wage = (1 - params.alpha) * z * (k / labor) ** params.alpha
    return params.theta / (1 - params.theta) * wage * (1 - labor)


def spread_z(params: Params) -> Float[Array, ""]:
    """Stationary standard deviation of log z."""
    return params.sigma / jnp.sqrt(1 - params.rho**2)


def scale_k(params: Params) -> Float[Array, ""]:
    """Half the width of the initial distribution of log capital."""
    return jnp.maximum(INITIAL_WIDTH / 2, K_OVER_Z * spread_z(params))
