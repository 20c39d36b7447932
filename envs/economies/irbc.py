"""International real business cycles: a planner moves capital between any number of countries.

Two calibrations: one smooth and symmetric, and one with adjustment costs and countries that differ in risk aversion
(Juillard and Villemot 2011, JEDC 35, "Multi-country real business cycle models"; Brumm and Scheidegger 2017,
Econometrica 85, "Using adaptive sparse grids to solve high-dimensional dynamic models", which adds investment that
cannot be undone).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ...errors import UserError
from .. import spaces
from ..complementarity import fischer_burmeister
from ..economy import Decision, Economy, Residuals
from ..environment import NON_NEGATIVE, POSITIVE, SHARE, Domain, EnvParams, EnvState, parameter
from ..shocks import Normal

LIMIT = 4.0
FLOOR = 1e-8
# Investment below this share of the steady state's counts as none, which a sigmoid only comes near to.
NONE_LEFT = 1e-6
SPLIT_STEPS = 6
INITIAL_WIDTH = 0.2
# Countries whose joint state collocation can still cover.
FEW = 2


@struct.dataclass
class State(EnvState):
    """Beginning-of-period capital `k` and productivity `a`, both `[A]`."""

    k: Float[Array, " A"]
    a: Float[Array, " A"]


@struct.dataclass
class Params(EnvParams):
    """Calibration; the defaults are quarterly."""

    alpha: float = parameter(0.36, SHARE, "capital's share of output")
    beta: float = parameter(0.99, SHARE, "discount factor per period")
    delta: float = parameter(0.025, SHARE, "depreciation per period")
    rho: float = parameter(0.95, Domain(-1.0, 1.0), "autocorrelation of log a")
    sigma_idio: float = parameter(0.01, NON_NEGATIVE, "standard deviation of a country's own innovation to log a")
    sigma_common: float = parameter(0.01, NON_NEGATIVE, "standard deviation of the common innovation to log a")
    ka: float = parameter(0.0, Domain(0.0, 1.0, open_low=False, open_high=False), "adjustment cost")
    ies_first: float = parameter(1.0, POSITIVE, "intertemporal elasticity of substitution of the first country")
    ies_last: float = parameter(1.0, POSITIVE, "that of the last; the others' are evenly spaced between")
    max_steps_in_episode: int = parameter(200, Domain(1, open_low=False), "periods before truncation")


class Uses(NamedTuple):
    """What becomes of a period's resources.

    Attributes:
        consumption, capital, investment: of each country, `[A]`; capital is next period's.
        marginal: lambda, the marginal utility that the planner gives every country; scalar.
        feasible: whether adjustment costs left anything; scalar.
    """

    consumption: Float[Array, " A"]
    capital: Float[Array, " A"]
    investment: Float[Array, " A"]
    marginal: Float[Array, ""]
    feasible: Bool[Array, ""]


@dataclasses.dataclass(frozen=True)
class IRBC(Economy):
    """Choose where the world's output goes: consumption, or next period's capital of each country.

    Resources: sum_j [c_j + k_j' + (ka/2) k_j (k_j'/k_j - 1)^2] = sum_j [a_j A k_j^alpha + (1-delta) k_j], with
    log a_j' = rho log a_j + sigma_idio eps_j + sigma_common eps_0, and A such that steady-state capital is 1. The
    planner gives country j the weight tau_j = A^(1/ies_j), so that lambda = tau_j c_j^(-1/ies_j) is one for all. The
    reward of country j is tau_j u_j(c_j), and all earn the mean.

    Action: Box(-4, 4), shape (1,) for each country, centred on 0: a logit. Consumption and each country's next capital
    (with `irreversible`, its investment) stand to each other as in the steady state where all are 0, and country j's
    part is e^logit times as large relative to consumption; the scale makes the constraint hold, adjustment costs
    included. With `irreversible`, -4 is no investment.

    Observation of country j: log k and log a of itself and of the countries j+1, j+2, ... in a circle, scaled, and the
    log of its ies relative to the mean.

    Attributes:
        num_agents: countries, at least 2.
        irreversible: k_j' >= (1-delta) k_j; the multiplier is an auxiliary output, as a share of marginal cost.
    """

    num_agents: int = 2
    irreversible: bool = False

    params_type: ClassVar[type[EnvParams]] = Params
    agent_role: ClassVar[str] = "country"

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.num_agents, int) or self.num_agents < 2:
            raise UserError(
                f"{self.name}: num_agents = {self.num_agents} must be a whole number of at least 2; for one country "
                "use Growth-v0"
            )

    @property
    def observation_size(self) -> int:
        """Two numbers a country, and one's own elasticity."""
        return 2 * self.num_agents + 1

    @property
    def solver(self) -> str | None:
        """Collocation for two countries, whose four states it can cover; the log-linear rule for more.

        None with irreversible investment: both miss the limit, and policies are known by their conditions alone.
        """
        if self.irreversible:
            return None
        return "chebyshev" if self.num_agents <= FEW else "log_linear"

    @property
    def complementarity(self) -> tuple[str, ...]:
        """Investment that cannot be negative, where it cannot."""
        return ("irreversibility",) if self.irreversible else ()

    def agent_action_space(self, params: Params) -> spaces.Box:
        """A logit."""
        return spaces.Box(-LIMIT, LIMIT, (1,), jnp.result_type(float))

    def auxiliary(self, params: Params) -> spaces.Box | None:
        """The multiplier on k' >= (1-delta) k, as a share of lambda (1 + ka (k'/k - 1))."""
        return spaces.Box(0.0, 1.0, (), jnp.result_type(float)) if self.irreversible else None

    def initial_state(self, key: Array, params: Params) -> State:
        """Log capital uniform within 20 % of the steady state; productivity from its stationary law."""
        dtype, shape = jnp.result_type(float), (self.num_agents,)
        key_k, key_a, key_0 = jax.random.split(key, 3)
        k = jax.random.uniform(key_k, shape, dtype, -INITIAL_WIDTH, INITIAL_WIDTH)
        own, common = jax.random.normal(key_a, shape, dtype), jax.random.normal(key_0, (), dtype)
        innovation = params.sigma_idio * own + params.sigma_common * common
        return State(jnp.int32(0), jnp.exp(k), jnp.exp(innovation / jnp.sqrt(1 - params.rho**2)))

    def observation(self, state: State, params: Params) -> Float[Array, "A O"]:
        """Logs of capital over the initial width, of productivity in standard deviations; oneself first."""
        countries = jnp.arange(self.num_agents)
        order = (countries[:, None] + countries[None, :]) % self.num_agents
        k = jnp.log(state.k) / INITIAL_WIDTH
        a = jnp.log(state.a) / jnp.maximum(spread_a(params), FLOOR)
        log_ies = jnp.log(self.ies(params))
        own = (log_ies - log_ies.mean())[:, None]
        return jnp.concatenate([k[order], a[order], own], axis=1)

    def shocks(self, params: Params) -> Normal:
        """The common innovation first, then each country's own; standardised."""
        return Normal(self.num_agents + 1)

    def ies(self, params: Params) -> Float[Array, " A"]:
        """Intertemporal elasticities of substitution, evenly spaced."""
        steps = jnp.arange(self.num_agents) / (self.num_agents - 1)
        return params.ies_first + (params.ies_last - params.ies_first) * steps.astype(jnp.result_type(float))

    def uses(self, state: State, action: Array, params: Params) -> Uses:
        """From logits to consumption and capital, on the resource constraint.

        Next period's capital is r k + t v and consumption t w, r = 0 or, with irreversible investment, 1 - delta; the
        scale t is the positive root of a quadratic that adjustment costs make of the constraint.
        """
        scale_a, kept = productivity(params), 1 - params.delta
        logit = action[:, 0]
        if self.irreversible:
            v = (jnp.exp(logit) - jnp.exp(-LIMIT)) / (1 - jnp.exp(-LIMIT))
            v = params.delta * jnp.where(v < NONE_LEFT, 0, v)
            remains = kept
        else:
            v, remains = jnp.exp(logit), jnp.zeros_like(kept)
        w = self.num_agents * (scale_a - params.delta)
        resources = (output(state, params) + (kept - remains) * state.k).sum()
        square = params.ka / 2 * (v**2 / state.k).sum()
        linear = w + (1 - params.ka * (1 - remains)) * v.sum()
        fixed = params.ka / 2 * (1 - remains) ** 2 * state.k.sum()
        feasible = fixed < (1 - FLOOR) * resources
        left = jnp.maximum(resources - fixed, FLOOR * resources)
        t = 2 * left / (linear + jnp.sqrt(linear**2 + 4 * square * left))
        capital = jnp.maximum(remains * state.k + t * v, FLOOR)
        consumption, marginal = split(t * w, self.ies(params), params)
        return Uses(consumption, capital, t * v if self.irreversible else capital - kept * state.k, marginal, feasible)

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """k' as decided; log a' = rho log a + sigma_common eps_0 + sigma_idio eps_j."""
        innovation = params.sigma_common * shock[0] + params.sigma_idio * shock[1:]
        a = jnp.exp(params.rho * jnp.log(state.a) + innovation)
        return state.replace(k=self.uses(state, action, params).capital, a=a)

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, " A"]:
        """Each country's utility times its weight, tau_j (c_j^(1-g_j) - 1) / (1-g_j) with g_j = 1/ies_j."""
        return weighted_utility(self.uses(state, action, params).consumption, self.ies(params), params)

    def reward_units(self, params: Params) -> tuple[Array, Array]:
        """Means over countries at the steady state: of weighted utility, and of c times lambda."""
        total = productivity(params) - params.delta
        ies = self.ies(params)
        c, marginal = split(self.num_agents * total, ies, params)
        return weighted_utility(c, ies, params).mean(), marginal * total

    def floored(self, state: State, action: Array, params: Params) -> Bool[Array, ""]:
        """Whether adjustment costs left nothing, or capital was held up."""
        found = self.uses(state, action, params)
        return ~found.feasible | jnp.any(found.capital <= FLOOR)

    def marginal_cost(self, state: State, found: Uses, params: Params) -> Float[Array, " A"]:
        """lambda (1 + ka (k'/k - 1)): what a unit of next period's capital costs."""
        return found.marginal * (1 + params.ka * (found.capital / state.k - 1))

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
        """lambda' [1 - delta + alpha A a' k'^(alpha-1) + (ka/2) ((k''/k')^2 - 1)], less (1-delta) mu'."""
        found = self.uses(next_state, next_decision.action, params)
        growth = found.capital / next_state.k
        gross = 1 - params.delta + params.alpha * output(next_state, params) / next_state.k
        worth = found.marginal * (gross + params.ka / 2 * (growth**2 - 1))
        if self.irreversible:
            multiplier = next_decision.auxiliary * self.marginal_cost(next_state, found, params)
            worth = worth - (1 - params.delta) * multiplier
        return {"capital": worth}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """beta E[.] over marginal cost, less 1: one for each country, `[A]`; with its multiplier if irreversible."""
        found = self.uses(state, decision.action, params)
        euler = params.beta * expected["capital"] / self.marginal_cost(state, found, params) - 1
        if not self.irreversible:
            return {"euler": euler}
        multiplier, slack = decision.auxiliary, found.investment / params.delta
        return {"euler": euler + multiplier, "irreversibility": fischer_burmeister(multiplier, slack)}

    def slacks(self, state: State, decision: Decision, params: Params) -> Residuals:
        """Investment over the steady state's, `[A]`, where it cannot be negative."""
        if not self.irreversible:
            return {}
        return {"irreversibility": self.uses(state, decision.action, params).investment / params.delta}

    def euler_error(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """The share by which each country's consumption misses what its Euler equation asks for, `[A]`."""
        euler = self.conditions(state, decision, expected, params)["euler"]
        return {"euler": jnp.maximum(1 + euler, FLOOR) ** -self.ies(params) - 1}

    def steady_state(self, params: Params) -> tuple[State, Decision]:
        """All capital and productivity 1, all logits 0."""
        ones = jnp.ones((self.num_agents,), jnp.result_type(float))
        zeros = jnp.zeros((self.num_agents, 1), jnp.result_type(float))
        return State(jnp.int32(0), ones, ones), Decision(zeros, zeros[:, 0] if self.irreversible else None)

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Output, consumption, investment and next period's capital, `[A]`; lambda."""
        found = self.uses(state, action, params)
        named = {"output": output(state, params), "consumption": found.consumption, "investment": found.investment}
        return named | {"capital": found.capital, "lambda": found.marginal}

    def consumption_equivalent(self, value: Array, reference: Array, params: Params) -> Array:
        """The share of world consumption by which the two values' constant equivalents differ.

        A value's equivalent is the world consumption that, shared out by the planner and the same for ever, is worth
        it: exact where all countries have one risk aversion.

        Args:
            value, reference: means over countries.
            params: the parameters.
        """
        ies = self.ies(params)
        log_equivalent = [log_world_consumption((1 - params.beta) * v, ies, params) for v in (value, reference)]
        return -jnp.expm1(log_equivalent[0] - log_equivalent[1])


def productivity(params: Params) -> Float[Array, ""]:
    """A = (1/beta - 1 + delta) / alpha, at which steady-state capital is 1."""
    return jnp.asarray((1 / params.beta - 1 + params.delta) / params.alpha)


def output(state: State, params: Params) -> Float[Array, " A"]:
    """a_j A k_j^alpha."""
    return state.a * productivity(params) * state.k**params.alpha


def split(total: Array, ies: Float[Array, " A"], params: Params) -> tuple[Float[Array, " A"], Float[Array, ""]]:
    """The planner's split of world consumption, and lambda: c_j = A lambda^(-ies_j), which sum to `total`.

    The log of the sum is convex in log lambda, so that Newton's method converges from anywhere; with one elasticity its
    first step is exact. Only the last two steps are differentiated: from the root, each doubles the order to which its
    derivatives are exact.
    """
    per_head = jnp.log(total / (ies.shape[0] * productivity(params)))

    def stepper(per_head: Array, ies: Array) -> Callable[[int, Array], Array]:
        def step(_: int, at: Array) -> Array:
            exponent = -ies * at
            top = exponent.max()
            parts = jnp.exp(exponent - top)
            level = top + jnp.log(parts.mean())
            return at + (level - per_head) * parts.sum() / (parts * ies).sum()

        return step

    frozen = jax.lax.stop_gradient((per_head, ies))
    root = jax.lax.fori_loop(0, SPLIT_STEPS - 2, stepper(*frozen), -frozen[0] / frozen[1].mean(), unroll=True)
    log_marginal = jax.lax.fori_loop(0, 2, stepper(per_head, ies), root, unroll=True)
    return productivity(params) * jnp.exp(-ies * log_marginal), jnp.exp(log_marginal)


def weighted_utility(c: Float[Array, " A"], ies: Float[Array, " A"], params: Params) -> Float[Array, " A"]:
    """tau_j (c_j^(1-g_j) - 1) / (1-g_j), or tau_j log c_j, with tau_j = A^g_j and g_j = 1/ies_j."""
    curve = 1 - 1 / ies
    is_log = jnp.abs(curve) < 1e-6
    power = jnp.expm1(curve * jnp.log(c)) / jnp.where(is_log, 1, curve)
    return productivity(params) ** (1 / ies) * jnp.where(is_log, jnp.log(c), power)


def log_world_consumption(utility: Array, ies: Float[Array, " A"], params: Params) -> Float[Array, ""]:
    """Log of the world consumption that, split by the planner, gives this mean weighted utility."""
    scale_a = productivity(params)

    def gap(log_marginal: Array) -> Array:
        return weighted_utility(scale_a * jnp.exp(-ies * log_marginal), ies, params).mean() - utility

    def step(_: int, at: Array) -> Array:
        value, slope = jax.jvp(gap, (at,), (jnp.ones_like(at),))
        return at - jnp.clip(value / slope, -1, 1)

    start = jnp.log(split((scale_a - params.delta) * ies.shape[0], ies, params)[1])
    log_marginal = jax.lax.fori_loop(0, 8 * SPLIT_STEPS, step, start)
    return jnp.log(scale_a) + jax.nn.logsumexp(-ies * log_marginal)


def spread_a(params: Params) -> Float[Array, ""]:
    """Stationary standard deviation of log a."""
    return jnp.sqrt((params.sigma_idio**2 + params.sigma_common**2) / (1 - params.rho**2))
