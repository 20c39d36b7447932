"""Consumption and saving with risky income and a borrowing limit that binds for the poor.

Deaton (1991), "Saving and liquidity constraints", Econometrica 59; Carroll (1997), "Buffer-stock saving and the life
cycle/permanent income hypothesis", QJE 112. Everything is divided by permanent income, which grows.
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
from ..environment import NON_NEGATIVE, POSITIVE, REAL, SHARE, Domain, EnvParams, EnvState, parameter
from ..shocks import Discrete

FLOOR = 1e-8
NO_SAVING = 1e-6
POINTS = 7
POOREST, RICHEST = 0.1, 15.0
OFFSET = 0.1
TRANSITORY = ("lognormal", "normal", "two_point")


@struct.dataclass
class State(EnvState):
    """Cash on hand `m`, income included, and the last growth factor of permanent income; scalars.

    The growth factor has already acted on m; it is kept because it discounts the transition that led here.
    """

    m: Float[Array, ""]
    growth: Float[Array, ""]


@struct.dataclass
class Params(EnvParams):
    """Calibration; the defaults are annual, amounts are relative to permanent income."""

    beta: float = parameter(0.96, SHARE, "discount factor per period")
    gamma: float = parameter(2.0, POSITIVE, "relative risk aversion, not 1")
    interest: float = parameter(1.03, POSITIVE, "gross return R on savings")
    growth: float = parameter(1.01, POSITIVE, "growth factor G of permanent income")
    sd_permanent: float = parameter(0.1, NON_NEGATIVE, "standard deviation of the log permanent shock")
    sd_transitory: float = parameter(0.1, NON_NEGATIVE, "standard deviation of theta, of its log where lognormal")
    unemployment: float = parameter(0.05, Domain(0.0, 1.0, open_low=False), "probability of unemployment")
    benefit: float = parameter(0.3, NON_NEGATIVE, "income of the unemployed")
    limit: float = parameter(0.0, REAL, "least end-of-period assets; below 0 is debt")
    max_steps_in_episode: int = parameter(100, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class BufferStock(Economy):
    """Choose the saved share s of what may be saved: a = limit + s (m - limit), c = m - a, power utility.

    m' = R a / (G psi') + theta'. Permanent income grows by G psi', so next period's utility is discounted by
    `beta (G psi')^(1-gamma)`. The borrowing limit a >= limit binds below a cash on hand that the solver finds; a share
    below a millionth is none.

    Action: Box(0, 1), shape (1,), centred on 1/2. Observation: log cash on hand above the limit, shifted.

    Attributes:
        transitory: the law of theta: "lognormal" (7 equiprobable points, mean 1), "normal" (mean 1, 7 Gauss-Hermite
            points) or "two_point" (1 plus or minus its standard deviation); the unemployed earn `benefit`, and the
            others so much more that the mean stays 1.
        permanent_points: equiprobable points of the lognormal psi, mean 1; 1 where permanent income is sure.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 1
    solver: ClassVar[str | None] = "endogenous_grid"
    complementarity: ClassVar[tuple[str, ...]] = ("borrowing",)

    transitory: str = "lognormal"
    permanent_points: int = POINTS

    def __post_init__(self):
        super().__post_init__()
        if self.transitory not in TRANSITORY:
            raise unknown(f"transitory law of {self.name}", str(self.transitory), TRANSITORY)
        if self.permanent_points < 1:
            raise UserError(f"{self.name}: permanent_points = {self.permanent_points} must be at least 1")

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The saved share of cash on hand above the limit."""
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))

    def check_params(self, params: Params) -> None:
        """Power utility, a value that is finite, and a debt that can be borne whatever income comes."""
        leaves, structure = jax.tree.flatten(params)
        swept = np.broadcast_arrays(*map(np.asarray, leaves))
        for values in zip(*(leaf.ravel() for leaf in swept), strict=True):
            self._check_one(jax.tree.unflatten(structure, values))

    def _check_one(self, params: Params) -> None:
        if params.gamma == 1.0:
            raise UserError(f"{self.name}: gamma = 1 is log utility, which power utility leaves out; try gamma = 1.001")
        law = self.shocks(params)
        discount = float(growth_discount(law, params))
        if not discount < 1:
            raise UserError(
                f"{self.name}: beta E[(G psi)^(1-gamma)] = {discount:g} must be below 1, or no value is finite; "
                "lower beta"
            )
        saved = float((params.beta * params.interest) ** (1 / params.gamma) / params.interest)
        if not saved < 1:
            raise UserError(
                f"{self.name}: (beta R)^(1/gamma) / R = {saved:g} must be below 1, or the rich save all that they "
                "have; lower beta"
            )
        psi, theta = law.values[:, 0], law.values[:, 1]
        worst = float(jnp.min(params.interest / (params.growth * psi) * params.limit + theta))
        if worst < params.limit:
            poorest = float(jnp.min(theta))
            if poorest < 0:
                raise UserError(
                    f"{self.name}: sd_transitory = {params.sd_transitory:g} makes the lowest income {poorest:g}, below "
                    "0; lower sd_transitory"
                )
            kind, remedy = ("a debt", "raise") if params.limit < 0 else ("least assets", "lower")
            raise UserError(
                f"{self.name}: {kind} at limit = {params.limit:g} cannot be kept in the worst case, which leaves "
                f"{worst:g}; {remedy} limit"
            )

    def initial_state(self, key: Array, params: Params) -> State:
        """Cash on hand above the limit log-uniform between a tenth and fifteen times permanent income."""
        spread = jax.random.uniform(key, (), jnp.result_type(float), jnp.log(POOREST), jnp.log(RICHEST))
        return State(time=jnp.int32(0), m=params.limit + jnp.exp(spread), growth=jnp.asarray(params.growth))

    def observation(self, state: State, params: Params) -> Float[Array, " 1"]:
        """log(0.1 + m - limit), finite where there is nothing."""
        return jnp.log(OFFSET + state.m - params.limit)[None]

    def shocks(self, params: Params) -> Discrete:
        """The pairs (psi, theta), independent."""
        theta, chances = transitory_law(self.transitory, params)
        psi = equiprobable_lognormal(params.sd_permanent, self.permanent_points)
        pairs = jnp.stack(jnp.meshgrid(psi, theta, indexing="ij"), axis=-1).reshape(-1, 2)
        return Discrete(pairs, jnp.tile(chances, self.permanent_points) / self.permanent_points)

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """m' = R a / (G psi') + theta'."""
        growth = params.growth * shock[0]
        return state.replace(m=params.interest / growth * assets(state, action, params) + shock[1], growth=growth)

    def step_discount(self, state: State, next_state: State, params: Params) -> Float[Array, ""]:
        """beta (G psi')^(1-gamma)."""
        return params.beta * next_state.growth ** (1 - params.gamma)

    def effective_discount(self, state: State, action: Array, params: Params) -> Float[Array, ""]:
        """beta E[(G psi')^(1-gamma)]."""
        return growth_discount(self.shocks(params), params)

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, ""]:
        """c^(1-gamma) / (1-gamma)."""
        return utility(consumption(state, action, params), params)

    def reward_units(self, params: Params) -> tuple[Array, float]:
        """At the consumption of permanent income, where c u'(c) = 1."""
        return utility(jnp.ones((), jnp.result_type(float)), params), 1.0

    def floored(self, state: State, action: Array, params: Params) -> Bool[Array, ""]:
        """Whether nothing was left to consume, so that consumption was held up."""
        return (1 - saved_share(action)) * (state.m - params.limit) < FLOOR

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
        """R (G psi' c')^-gamma."""
        c = consumption(next_state, next_decision.action, params)
        return {"saving": params.interest * (next_state.growth * c) ** -params.gamma}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """Either c is what the Euler equation asks for, or that is more and nothing can be borrowed against."""
        excess = wanted(expected, params) / consumption(state, decision.action, params) - 1
        return {"borrowing": fischer_burmeister(excess, saved_share(decision.action))}

    def euler_error(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """The share by which c misses what the Euler equation asks for, or all there is to spend where that is less."""
        feasible = jnp.minimum(wanted(expected, params), jnp.maximum(state.m - params.limit, FLOOR))
        return {"euler": feasible / consumption(state, decision.action, params) - 1}

    def slacks(self, state: State, decision: Decision, params: Params) -> Residuals:
        """Savings above the limit, as a share of what could be saved."""
        return {"borrowing": saved_share(decision.action)}

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Cash on hand, consumption and end-of-period assets, relative to permanent income."""
        a = assets(state, action, params)
        return {"cash": state.m, "consumption": consumption(state, action, params), "assets": a}

    def consumption_equivalent(self, value: Array, reference: Array, params: Params) -> Array:
        """1 - (V / V*)^(1/(1-gamma)), for power utility."""
        return 1 - (value / reference) ** (1 / (1 - params.gamma))


def saved_share(action: Array) -> Float[Array, ""]:
    """The share, none below a millionth."""
    return jnp.where(action[0] < NO_SAVING, 0.0, action[0])


def assets(state: State, action: Array, params: Params) -> Float[Array, ""]:
    """End-of-period assets, limit + s (m - limit)."""
    return params.limit + saved_share(action) * (state.m - params.limit)


def consumption(state: State, action: Array, params: Params) -> Float[Array, ""]:
    """(1 - s) (m - limit), held above a hundred-millionth of permanent income."""
    return jnp.maximum((1 - saved_share(action)) * (state.m - params.limit), FLOOR)


def wanted(expected: Residuals, params: Params) -> Float[Array, ""]:
    """The consumption whose marginal utility is beta E[R (G psi' c')^-gamma]."""
    return (params.beta * expected["saving"]) ** (-1 / params.gamma)


def growth_discount(law: Discrete, params: Params) -> Float[Array, ""]:
    """beta E[(G psi')^(1-gamma)]."""
    return params.beta * (law.probabilities @ (params.growth * law.values[:, 0]) ** (1 - params.gamma))


def utility(c: Array, params: Params) -> Array:
    """Power utility."""
    return c ** (1 - params.gamma) / (1 - params.gamma)


def equiprobable_lognormal(sd: float | Array, points: int) -> Float[Array, " P"]:
    """The means of a lognormal of mean 1 over `points` intervals of equal probability."""
    edges = jax.scipy.special.ndtri(jnp.linspace(0.0, 1.0, points + 1, dtype=jnp.result_type(float)))
    return points * jnp.diff(jax.scipy.special.ndtr(edges - sd))


def transitory_law(kind: str, params: Params) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    """Values and probabilities of theta, mean 1; the first is the unemployed's."""
    dtype = jnp.result_type(float)
    chances = np.full(POINTS, 1 / POINTS)
    if kind == "lognormal":
        values = equiprobable_lognormal(params.sd_transitory, POINTS)
    elif kind == "normal":
        nodes, weights = np.polynomial.hermite_e.hermegauss(POINTS)
        values, chances = 1 + params.sd_transitory * jnp.asarray(nodes, dtype), weights / weights.sum()
    else:
        values, chances = 1 + params.sd_transitory * jnp.asarray([-1.0, 1.0], dtype), np.full(2, 0.5)
    employed = (1 - params.unemployment * params.benefit) / (1 - params.unemployment)
    theta = jnp.concatenate([jnp.asarray(params.benefit, dtype)[None], employed * values])
    work = (1 - params.unemployment) * jnp.asarray(chances, dtype)
    return theta, jnp.concatenate([jnp.asarray(params.unemployment, dtype)[None], work])
