"""Overlapping generations with log utility: every age saves a known share of its income, whatever prices do.

Huffman (1987), "A dynamic equilibrium model of asset prices and transaction volume", JPE 95; Krueger and Kubler (2004),
"Computing equilibrium in OLG models with stochastic production", JEDC 28. Only the young work, so wealth is all that
anyone lives on later, and with log utility its return drops out of the saved share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from ...errors import UserError, unknown
from .. import spaces
from ..economy import Decision, Economy, Residuals
from ..environment import SHARE, Domain, EnvParams, EnvState, Reference, parameter
from ..shocks import Discrete

FLOOR = 1e-8
SPREAD = 0.25
PATHS = 1024
OUTPUTS = ("rates", "levels")
MOST_SAVED = 3.0
DEPRECIATION = Domain(0.0, 1.0, open_low=False, open_high=False)


@struct.dataclass
class State(EnvState):
    """Beginning-of-period capital `k` of each slot `[A]`, productivity `eta` and depreciation `delta`, scalars."""

    k: Float[Array, " A"]
    eta: Float[Array, ""]
    delta: Float[Array, ""]


@struct.dataclass
class Params(EnvParams):
    """Calibration; the defaults go with lives of six periods."""

    alpha: float = parameter(0.3, SHARE, "capital's share of output")
    beta: float = parameter(0.7, SHARE, "discount factor per period")
    spread: float = parameter(0.05, SHARE, "productivity is 1 - spread or 1 + spread, as likely")
    delta_low: float = parameter(0.5, DEPRECIATION, "the lower depreciation rate of capital")
    delta_high: float = parameter(0.9, DEPRECIATION, "the higher one, as likely")
    max_steps_in_episode: int = parameter(100, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class OLG(Economy):
    """Each age chooses the saved share s of its income: k' = s inc at the next age, c = (1 - s) inc, utility log c.

    K sums what the ages own, output is eta K^alpha, and inc is the wage (1 - alpha) eta K^alpha at the first age and
    (alpha eta K^(alpha-1) + 1 - delta) k later. Households take prices as given and save
    `beta (1 - beta^(A-h)) / (1 - beta^(A-h+1))` at age h of A. The last age consumes all: its action has no effect
    and counts as 0.

    Slot `h households + i` holds household i of age h + 1; whoever is in it moves `households` slots up, dies after the
    last age, and newborns own nothing. An age is of size 1 in total. With one household an age a learner of rewards
    moves the capital stock by its own saving, and what it finds nears the equilibrium only as `households` grows.

    Action: Box(0, 1), shape (1,), centred on 1/2. Observation: one-hot age; log own income and log K against the steady
    state's, over 0.25; productivity and depreciation, -1 or 1; each age's mean capital, the same way, in levels.

    With `outputs="levels"` the action is the amount k' itself, in units of what this age saves in the steady state:
    Box(0, 3), centred on 1. The answer then varies with the state, and nothing keeps saving within income: `step` holds
    it down to income, with consumption at its floor, and flags it. For residual learners what is planned beyond income,
    as a share of it, is a condition of its own, "budget", as Azinovic, Gaegauf and Scheidegger (2022, IER 63) charge
    nets for consumption below 0.

    Attributes:
        ages: how many periods a life lasts, A.
        households: of each age.
        outputs: "rates", the saved share of income; "levels", the saved amount.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    concepts: ClassVar[tuple[str, ...]] = ("competitive",)
    agent_role: ClassVar[str] = "household"

    concept: str = "competitive"
    ages: int = 6
    households: int = 1
    outputs: str = "rates"

    def __post_init__(self):
        super().__post_init__()
        if self.outputs not in OUTPUTS:
            raise unknown(f"outputs of {self.name}", str(self.outputs), OUTPUTS)
        for name, least in (("ages", 2), ("households", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UserError(f"{self.name}: {name} = {value!r} must be a whole number of at least {least}")

    @property
    def num_agents(self) -> int:
        """One slot for each household of each age."""
        return self.ages * self.households

    @property
    def observation_size(self) -> int:
        """Age, own income, capital stock, two shocks, and the capital of every age but the first."""
        return 2 * self.ages + 3

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The saved share of income, or the saved amount."""
        return spaces.Box(0.0, 1.0 if self.outputs == "rates" else MOST_SAVED, (1,), jnp.result_type(float))

    def centre(self, params: Params) -> Float[Array, " 1"]:
        """The middle of shares, which is not the answer; the steady state's amount, which is not either."""
        return super().centre(params) if self.outputs == "rates" else jnp.ones((1,), jnp.result_type(float))

    def legal_action(self, action: PyTree, params: Params) -> tuple[PyTree, Bool[Array, ""]]:
        """Clipped into the action space, 0 at the last age, which saves nothing."""
        action, clipped = super().legal_action(action, params)
        return action.at[-self.households :].set(0), clipped

    def check_params(self, params: Params) -> None:
        """Depreciation has an order."""
        low, high = np.broadcast_arrays(params.delta_low, params.delta_high)
        if np.any(low > high):
            low, high = low[low > high][0], high[low > high][0]
            raise UserError(f"{self.name}: delta_low = {low:g} must not be above delta_high = {high:g}; swap them")

    def successor(self, state: State, next_state: State, params: Params) -> Int[Array, " A"]:
        """The same household one age up; -1 after the last."""
        slots = jnp.arange(self.num_agents, dtype=jnp.int32) + self.households
        return jnp.where(slots < self.num_agents, slots, -1)

    def initial_state(self, key: Array, params: Params) -> State:
        """Capital of each slot uniform within 30 % of the steady state's, shocks from their law."""
        key_k, key_shock = jax.random.split(key)
        k = self.steady_state(params)[0].k
        k = k * jax.random.uniform(key_k, k.shape, k.dtype, 0.7, 1.3)
        eta, delta = self.shocks(params).sample(key_shock, None)
        return State(jnp.int32(0), k, eta, delta)

    def observation(self, state: State, params: Params) -> Float[Array, "A O"]:
        """As the class says."""
        steady = self.steady_state(params)[0]
        own = jnp.log(self.income(state, params) / self.income(steady, params)) / SPREAD
        stock = jnp.log(self.capital(state) / self.capital(steady)) / SPREAD
        eta = (state.eta - 1) / params.spread
        middle, half = (params.delta_high + params.delta_low) / 2, (params.delta_high - params.delta_low) / 2
        delta = (state.delta - middle) / jnp.where(half > 0, half, 1)
        cohorts = (self.by_age(state.k).mean(1)[1:] / self.by_age(steady.k).mean(1)[1:] - 1) / SPREAD
        shared = jnp.concatenate([jnp.stack([stock, eta, delta]), cohorts])
        age = jnp.repeat(jnp.eye(self.ages, dtype=own.dtype), self.households, axis=0)
        shared = jnp.broadcast_to(shared, (self.num_agents, shared.size))
        return jnp.concatenate([age, own[:, None], shared], axis=1)

    def shocks(self, params: Params) -> Discrete:
        """Productivity and depreciation, `[4, 2]`: independent, each of two values as likely as the other."""
        low, high = 1 - params.spread, 1 + params.spread
        rows = [(eta, delta) for delta in (params.delta_low, params.delta_high) for eta in (low, high)]
        values = jnp.stack([jnp.stack(jnp.broadcast_arrays(*row)) for row in rows])
        return Discrete(values, jnp.full((4,), 0.25, values.dtype))

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """Everyone one age up with k' = s inc; newborns own nothing."""
        saved = jnp.maximum(self.share(state, action, params), FLOOR) * self.income(state, params)
        newborn = jnp.zeros((self.households,), saved.dtype)
        k = jnp.concatenate([newborn, saved[: -self.households]])
        return state.replace(k=k, eta=shock[0], delta=shock[1])

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, " A"]:
        """Log consumption of each slot."""
        return jnp.log(self.consumption(state, action, params))

    def reward_units(self, params: Params) -> tuple[Array, float]:
        """Log consumption of each slot in the steady state; c u'(c) = 1."""
        state, decision = self.steady_state(params)
        return self.reward(state, decision.action, params), 1.0

    def floored(self, state: State, action: Array, params: Params) -> Array:
        """Whether a share was so near 0 or 1, or an amount beyond income, that capital or consumption was held up."""
        share = self.share(state, action, params)[: -self.households]
        return jnp.any((share < FLOOR) | (1 - share < FLOOR))

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
        """R' / c' of everyone who will live, `[A - households]`."""
        following = self.consumption(next_state, next_decision.action, params)[self.households :]
        return {"saving": self.gross_return(next_state, params) / following}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """Euler equation of every age but the last, unit-free: beta E[R' / c'] c - 1; of amounts the budget too."""
        c = self.consumption(state, decision.action, params)[: -self.households]
        found = {"euler": params.beta * expected["saving"] * c - 1}
        if self.outputs == "levels":
            # beyond income consumption stays at its floor and no longer says which way to go
            planned = self.planned_share(state, decision.action, params)[: -self.households]
            found["budget"] = jnp.maximum(planned - 1, 0)
        return found

    def euler_error(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """The share by which consumption misses the one that the Euler equation asks for."""
        c = self.consumption(state, decision.action, params)[: -self.households]
        return {"euler": 1 / (params.beta * expected["saving"] * c) - 1}

    def steady_state(self, params: Params) -> tuple[State, Decision]:
        """Of the known shares at mean productivity and depreciation."""
        shares = saved_shares(params, self.ages)[:-1]
        kept = jnp.cumprod(shares)
        delta = jnp.asarray(params.delta_low + params.delta_high) / 2

        def holdings(capital):
            wage = (1 - params.alpha) * capital**params.alpha
            growth = params.alpha * capital ** (params.alpha - 1) + 1 - delta
            return wage * kept * growth ** jnp.arange(self.ages - 1)

        capital = jax.lax.fori_loop(0, 60, lambda _, k: holdings(k).sum(), jnp.ones_like(delta))
        k = jnp.repeat(jnp.append(0.0, holdings(capital)), self.households)
        state = State(jnp.int32(0), k, jnp.ones_like(delta), delta)
        if self.outputs == "levels":
            return state, Decision(jnp.ones((self.num_agents, 1), k.dtype).at[-self.households :].set(0))
        return state, Decision(self._known_shares(params)[:, None])

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Capital, output, the wage, the gross return, and mean consumption."""
        output = state.eta * self.capital(state) ** params.alpha
        prices = {"wage": (1 - params.alpha) * output, "gross_return": self.gross_return(state, params)}
        consumed = self.by_age(self.consumption(state, action, params)).mean(1).sum()
        return {"capital": self.capital(state), "output": output, **prices, "consumption": consumed}

    def reference(self, params: Params) -> Reference:
        """The known shares; exact for any prices. There is no one value: lives overlap."""
        share = self._known_shares(params)

        def policy(state: State) -> Array:
            return (share if self.outputs == "rates" else share / self._shares_of_one(state, params))[:, None]

        return Reference(policy, None, self.concept)

    def exploitability(self, policy: Callable[[State], PyTree], params: Params) -> Float[Array, " A"]:
        """What whoever is in each slot would gain over the rest of its life by saving the known shares instead.

        One household does not move prices, and returns raise log income by the same at any share. So a share s with n
        periods to come adds `log(1 - s) + (beta + ... + beta^n) log s` to the sum that is maximised, and the gain is
        that of the known share less that of the policy's, along the paths that the policy itself leads to: 1024 of
        them from the steady state, with the same shocks at each call.
        """
        start, law = self.steady_state(params)[0], self.shocks(params)

        def period(state, key):
            action = policy(state)
            following = self.transition(state, action, law.sample(key, state), params)
            return following, self._gains(self.share(state, action, params), params)

        keys = jax.random.split(jax.random.key(0), (PATHS, self.ages))
        gains = jax.vmap(lambda k: jax.lax.scan(period, start, k)[1])(keys).mean(0)
        ahead = jnp.arange(self.ages)[:, None]
        age = ahead + jnp.arange(self.ages)
        along = gains[ahead, jnp.minimum(age, self.ages - 1)]
        weight = jnp.where(age < self.ages, params.beta**ahead, 0)
        return (weight[..., None] * along).sum(0).reshape(-1)

    # -- shared formulas ------------------------------------------------------------------------------------------

    def by_age(self, x: Float[Array, " A"]) -> Float[Array, "ages households"]:
        """Slots as a table."""
        return x.reshape(self.ages, self.households)

    def capital(self, state: State) -> Float[Array, ""]:
        """K: ages are of size 1."""
        return state.k.sum() / self.households

    def gross_return(self, state: State, params: Params) -> Float[Array, ""]:
        """alpha eta K^(alpha-1) + 1 - delta."""
        return params.alpha * state.eta * self.capital(state) ** (params.alpha - 1) + 1 - state.delta

    def income(self, state: State, params: Params) -> Float[Array, " A"]:
        """The wage at the first age, wealth with its return later."""
        wage = (1 - params.alpha) * state.eta * self.capital(state) ** params.alpha
        return (self.gross_return(state, params) * state.k).at[: self.households].set(wage)

    def consumption(self, state: State, action: Array, params: Params) -> Float[Array, " A"]:
        """(1 - s) inc, held above a hundred-millionth of income; all of it at the last age."""
        share = self.share(state, action, params).at[-self.households :].set(0)
        return jnp.maximum(1 - share, FLOOR) * self.income(state, params)

    def share(self, state: State, action: Array, params: Params) -> Float[Array, " A"]:
        """The saved share of income, at most all of it."""
        return jnp.minimum(self.planned_share(state, action, params), 1)

    def planned_share(self, state: State, action: Array, params: Params) -> Float[Array, " A"]:
        """What the action asks to save as a share of income; above 1 where an amount is beyond it."""
        return action[:, 0] if self.outputs == "rates" else action[:, 0] * self._shares_of_one(state, params)

    def _shares_of_one(self, state: State, params: Params) -> Float[Array, " A"]:
        """The share of income that an amount of 1 is; the last age's, which has no effect, is 1."""
        unit = self.steady_state(params)[0].k[self.households :] / self.income(state, params)[: -self.households]
        return jnp.concatenate([unit, jnp.ones((self.households,), unit.dtype)])

    def _known_shares(self, params: Params) -> Float[Array, " A"]:
        return jnp.repeat(saved_shares(params, self.ages), self.households)

    def _gains(self, share: Float[Array, " A"], params: Params) -> Float[Array, "ages households"]:
        """What the known share adds to a life's log consumption beyond `share`, by age and household."""
        best = saved_shares(params, self.ages)[:-1, None]
        to_come = jnp.cumsum(params.beta ** jnp.arange(1, self.ages))[::-1, None]

        def worth(share):
            return jnp.log(jnp.maximum(1 - share, FLOOR)) + to_come * jnp.log(jnp.maximum(share, FLOOR))

        gains = worth(best) - worth(self.by_age(share)[:-1])
        return jnp.concatenate([gains, jnp.zeros((1, self.households), gains.dtype)])


def saved_shares(params: Params, ages: int) -> Float[Array, " ages"]:
    """beta (1 - beta^(A-h)) / (1 - beta^(A-h+1)) for h = 1 to A, of which the last is 0."""
    left = ages - jnp.arange(1, ages + 1)
    return params.beta * (1 - params.beta**left) / (1 - params.beta ** (left + 1))
