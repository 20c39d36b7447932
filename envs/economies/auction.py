"""Sealed bids under private values: a first-price auction, and a double auction of a buyer and a seller.

Vickrey (1961), "Counterspeculation, auctions, and competitive sealed tenders", Journal of Finance 16; Chatterjee and
Samuelson (1983), "Bargaining under incomplete information", Operations Research 31. Values are uniform on (0, 1), and
the game is played once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from ...errors import UserError, unknown
from .. import spaces
from ..economy import Decision, Economy, Residuals
from ..environment import Domain, EnvParams, EnvState, Reference, parameter
from ..shocks import Discrete, no_shock

VALUES, BIDS = 513, 1025
"""Points on (0, 1) at which types are integrated over and bids tried for `exploitability`."""


@struct.dataclass
class State(EnvState):
    """Each player's value `[A]` (a seller's is its cost), and the bids of the round before; 0 at first."""

    value: Float[Array, " A"]
    bid: Float[Array, " A"]


@struct.dataclass
class Params(EnvParams):
    """Nothing to calibrate: values and bids lie in (0, 1)."""

    max_steps_in_episode: int = parameter(1, Domain(1, open_low=False), "rounds; the first one terminates")


def auction(
    format: str = "first_price", num_bidders: int = 2, concept: str = "nash", reward_scale: str = "consumption"
) -> Economy:
    """An auction by its format.

    Args:
        format: "first_price" or "double".
        num_bidders: of a first-price auction; a double auction has 2, the buyer and the seller.
        concept: "nash".
        reward_scale: the same for both: payoffs are money.

    Raises:
        UserError: an unknown format, or a number of players that it cannot have.
    """
    if format not in FORMATS:
        raise unknown("format of Auction-v0", str(format), FORMATS)
    return FORMATS[format](concept=concept, reward_scale=reward_scale, num_bidders=num_bidders)


@dataclasses.dataclass(frozen=True)
class _Auction(Economy):
    """What both formats share: private values, one bid each, one round."""

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 1
    concepts: ClassVar[tuple[str, ...]] = ("nash",)
    agent_role: ClassVar[str] = "bidder"

    concept: str = "nash"
    num_bidders: int = 2

    @property
    def name(self) -> str:
        """The id of both formats."""
        return "Auction-v0"

    @property
    def num_agents(self) -> int:
        """Who bids."""
        return self.num_bidders

    @property
    def one_shot(self) -> bool:
        """It is."""
        return True

    def agent_action_space(self, params: Params) -> spaces.Box:
        """A bid."""
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))

    def initial_state(self, key: Array, params: Params) -> State:
        """Independent uniform values."""
        dtype = jnp.result_type(float)
        return State(
            jnp.int32(0),
            jax.random.uniform(key, (self.num_agents,), dtype),
            jnp.zeros((self.num_agents,), dtype),
        )

    def shocks(self, params: Params) -> Discrete:
        """None: the values are drawn at the start."""
        return no_shock()

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """The bids are on the table."""
        return state.replace(bid=action[:, 0])


@dataclasses.dataclass(frozen=True)
class FirstPriceAuction(_Auction):
    """The highest bid wins and is paid: v - b for the winner, 0 for the others; equal bids share by lot.

    The symmetric equilibrium bids `(A - 1) v / A`.

    Action: Box(0, 1), shape (1,), the bid, centred on 1/2. Observation: the own value, standardised. The reward's own
    derivative misses that a higher bid wins more often: a learner of derivatives uses the conditions.

    Attributes:
        num_bidders: at least 2.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.num_bidders < 2:
            raise UserError(f"{self.name}: num_bidders = {self.num_bidders} must be at least 2: one bidder wins for 0")

    def observation(self, state: State, params: Params) -> Float[Array, "A 1"]:
        """The own value, in standard deviations from its mean."""
        return standardised(state.value)[:, None]

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, " A"]:
        """v - b for the winner."""
        won = action[:, 0] >= action[:, 0].max()
        return won / won.sum() * (state.value - action[:, 0])

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
        """The slope of the strategy at the own value, `[A]`; nothing is expected."""
        moved = jax.jvp(
            lambda value: next_policy(state.replace(value=value)).action[:, 0],
            (state.value,),
            (jnp.ones_like(state.value),),
        )
        return {"slope": moved[1]}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """`(A - 1) (v - b) - v b'(v)` `[A]`, as a share of the highest value: gain and cost of a higher bid.

        Against rivals who bid by b, bidding b(x) with value v earns (v - b(x)) x^(A-1); its derivative at x = v is this
        times v^(A-2). It holds for a strategy that all share.
        """
        bid = decision.action[:, 0]
        return {"bid": (self.num_agents - 1) * (state.value - bid) - state.value * expected["slope"]}

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Revenue, the winner's value (the surplus) and its share of the highest value."""
        bid = action[:, 0]
        surplus = jnp.where(bid >= bid.max(), state.value, 0).sum() / (bid >= bid.max()).sum()
        return {"bid": bid, "revenue": bid.max(), "surplus": surplus, "efficiency": surplus / state.value.max()}

    def reference(self, params: Params) -> Reference:
        """Bid (A - 1) / A of the value; the one who values most earns v / A."""

        def policy(state: State) -> Array:
            return ((self.num_agents - 1) / self.num_agents * state.value)[:, None]

        return Reference(policy, lambda state: self.reward(state, policy(state), params), self.concept)

    def exploitability(self, policy: Callable[[State], Any], params: Params) -> Float[Array, " A"]:
        """Before values are drawn: what the best bid at every value would add, while rivals keep to `policy`.

        The others' bids are distributed as at 513 equally spaced values, with straight lines between; 1025 bids and
        everyone's own are tried. Exact for linear strategies up to the spacing squared.
        """
        return _first_price_gains(*strategies(self, policy))


@dataclasses.dataclass(frozen=True)
class DoubleAuction(_Auction):
    """A buyer (agent 0) bids b, a seller (agent 1) asks s; where b >= s they trade at the middle, (b + s) / 2.

    The buyer earns v - price, the seller price - c. The linear equilibrium bids 2 v / 3 + 1/12 and asks 2 c / 3 + 1/4:
    84.375 % of the surplus.

    Action: Box(0, 1), shape (1,), centred on 1/2. Observation: the own value or cost, standardised, and the side: 1
    buys, -1 sells. No conditions and no derivatives: which bids are answered depends on the inverse of the rival's
    strategy, first-order conditions are void where nobody trades, and they have other solutions than the linear one.
    """

    observation_size: ClassVar[int] = 2
    _supports_transition_gradients: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        if self.num_bidders != 2:
            raise UserError(
                f"{self.name}: num_bidders = {self.num_bidders}, but format='double' has 2: a buyer, a seller"
            )

    def observation(self, state: State, params: Params) -> Float[Array, "2 2"]:
        """The own value or cost, in standard deviations from its mean, and the side."""
        side = jnp.array([1.0, -1.0], jnp.result_type(float))
        return jnp.stack([standardised(state.value), side], axis=1)

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, " 2"]:
        """v - price and price - c where they trade."""
        price = action[:, 0].mean()
        gains = jnp.stack([state.value[0] - price, price - state.value[1]])
        return jnp.where(action[0, 0] >= action[1, 0], gains, 0)

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Whether they trade, at what price, and the surplus v - c that is realised and possible."""
        trade = (action[0, 0] >= action[1, 0]).astype(action.dtype)
        worth = state.value[0] - state.value[1]
        return {
            "bid": action[:, 0],
            "trade": trade,
            "price": action[:, 0].mean(),
            "surplus": trade * worth,
            "possible_surplus": jnp.maximum(worth, 0),
        }

    def reference(self, params: Params) -> Reference:
        """The linear equilibrium."""

        def policy(state: State) -> Array:
            return (2 / 3 * state.value + jnp.array([1 / 12, 1 / 4], state.value.dtype))[:, None]

        return Reference(policy, lambda state: self.reward(state, policy(state), params), self.concept)

    def exploitability(self, policy: Callable[[State], Any], params: Params) -> Float[Array, " 2"]:
        """Before values are drawn: what the best bid and the best ask would add at every value.

        As in the first-price auction. A seller is a buyer of its own good seen from 1: it asks 1 - b and costs 1 - v.
        """
        values, bids = strategies(self, policy)
        mirrored = (1 - bids)[::-1]
        return jnp.stack(
            [_buyer_gain(values, bids[:, 0], bids[:, 1]), _buyer_gain(values, mirrored[:, 1], mirrored[:, 0])]
        )


FORMATS = {"first_price": FirstPriceAuction, "double": DoubleAuction}


@jax.jit
def _first_price_gains(values: Float[Array, " V"], bids: Float[Array, "V A"]) -> Float[Array, " A"]:
    """Each bidder's gain from the best bid at every value, from everyone's bid at each."""
    tried = jnp.concatenate([jnp.linspace(0, 1, BIDS), jnp.ravel(bids)])
    players = jnp.arange(bids.shape[1])

    def win(bid: Array, i: Array) -> Array:
        below = jax.vmap(lambda column: share_below(bid, column), in_axes=1)(bids)
        return jnp.prod(jnp.where(players[:, None] == i, 1.0, below), axis=0)

    def gain(i: Array) -> Array:
        best = jnp.max((values[:, None] - tried) * win(tried, i), axis=1)
        kept = (values - bids[:, i]) * win(bids[:, i], i)
        return mean_over_types(jnp.maximum(best - kept, 0))

    return jax.lax.map(gain, players)


@jax.jit
def _buyer_gain(values: Float[Array, " V"], own: Float[Array, " V"], asks: Float[Array, " V"]) -> Float[Array, ""]:
    """Gain of a buyer's best bid over its `own`, against the distribution of `asks`: E[(v - (b + s) / 2) 1(s <= b)]."""
    asks = jnp.sort(asks)
    steps = jnp.concatenate([jnp.zeros(1, asks.dtype), (asks[1:] + asks[:-1]) / 2 / (asks.shape[0] - 1)])

    def earned(value: Array, bid: Array) -> Array:
        trade = share_below(bid, asks)
        paid = jnp.interp(trade, jnp.linspace(0, 1, asks.shape[0]), jnp.cumsum(steps))
        return (value - bid / 2) * trade - paid / 2

    tried = jnp.concatenate([jnp.linspace(0, 1, BIDS), asks])
    best = earned(values[:, None], tried).max(1)
    return mean_over_types(jnp.maximum(best - earned(values, own), 0))


def standardised(value: Array) -> Array:
    """A uniform value in standard deviations from its mean."""
    return (value - 0.5) * math.sqrt(12)


def strategies(env: Economy, policy: Callable[[State], Any]) -> tuple[Float[Array, " V"], Float[Array, "V A"]]:
    """Equally spaced values from 0 to 1, and everyone's bid at each."""
    values = jnp.linspace(0, 1, VALUES, dtype=jnp.result_type(float))

    def at(value: Array) -> Array:
        everyone = jnp.full((env.num_agents,), value)
        return policy(State(jnp.int32(0), everyone, jnp.zeros_like(everyone)))[:, 0]

    return values, jax.vmap(at)(values)


def share_below(bid: Array, bids: Float[Array, " V"]) -> Array:
    """The share of types who bid less, by straight lines between the sorted bids of equally spaced types."""
    return jnp.interp(bid, jnp.sort(bids), jnp.linspace(0, 1, bids.shape[0]), left=0.0, right=1.0)


def mean_over_types(earned: Float[Array, " V"]) -> Float[Array, ""]:
    """The mean over uniform types from equally spaced ones, the ends at half weight."""
    return (earned.sum() - (earned[0] + earned[-1]) / 2) / (earned.shape[0] - 1)
