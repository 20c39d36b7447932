"""The great fish war: players draw on one stock, and what each equilibrium concept leads to is known exactly.

Levhari and Mirman (1980), "The great fish war: an example using a dynamic Cournot-Nash solution", Bell Journal of
Economics 11; here with N players and a shock to growth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, PyTree

from ...errors import UserError
from .. import spaces
from ..economy import Decision, Economy, Residuals
from ..environment import POSITIVE, SHARE, Domain, EnvParams, EnvState, Reference, parameter
from ..shocks import Normal
from ._common_pool import CommonPool, best_response, profile_value

FLOOR = 1e-8
MOST = 1 - 1e-3  # players can leave no less than a thousandth of the stock
SPREAD = 0.5


@struct.dataclass
class State(EnvState):
    """Beginning-of-period stock `x`, scalar."""

    x: Float[Array, ""]


@struct.dataclass
class Params(EnvParams):
    """Calibration."""

    alpha: float = parameter(0.36, SHARE, "elasticity of next period's stock to what is left")
    beta: float = parameter(0.95, SHARE, "discount factor per period")
    sigma: float = parameter(0.1, POSITIVE, "standard deviation of the log of the shock to growth")
    max_steps_in_episode: int = parameter(100, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class FishWar(Economy):
    """N players each draw a fraction f of the stock: c_i = f_i x, utility log c_i, x' = z' (x - sum c)^alpha.

    log z' is normal(0, sigma^2), independent over time. In the Markov-perfect equilibrium ("mpe", own rewards) each
    draws `(1 - a b) / (N - (N - 1) a b)`; together ("cooperative", the mean as everyone's reward) `(1 - a b) / N`.

    Where the fractions sum to more than 0.999 all are scaled down to that, and `info["rationed"]` says so. Rationing
    has an equilibrium of its own, in which everyone asks for everything; the centre is far from it.

    Action: Box(0, 1), shape (1,), centred on 1 / (2 N). Observation: log x against its steady state, over 0.5.

    Attributes:
        num_players: N.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 1
    concepts: ClassVar[tuple[str, ...]] = ("mpe", "cooperative")
    agent_role: ClassVar[str] = "player"

    concept: str = "mpe"
    num_players: int = 2

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.num_players, int) or self.num_players < 2:
            raise UserError(
                f"{self.name}: num_players = {self.num_players!r} must be a whole number of at least 2; one player "
                "alone is BrockMirman-v0's planner"
            )

    def check_params(self, params: Params) -> None:
        """In the Markov-perfect equilibrium nobody would rather ask for everything and have all rationed."""
        if self.concept != "mpe":
            return
        fraction, others = self.fraction(params), (self.num_players - 1) * self.fraction(params)
        ab = params.alpha * params.beta
        # To deviate once and return: later only the stock differs, worth ab / (1 - ab) for each log of what is left.
        keep = jnp.log(fraction) + ab / (1 - ab) * jnp.log(1 - fraction - others)
        grab = jnp.log(MOST / (1 + others)) + ab / (1 - ab) * jnp.log(1 - MOST)
        if bool(jnp.any(grab > keep)):
            raise UserError(
                f"{self.name}: with num_players = {self.num_players} and these parameters a player would rather ask "
                "for everything and be rationed than keep to the Markov-perfect fraction; lower num_players"
            )

    @property
    def num_agents(self) -> int:
        """The players."""
        return self.num_players

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The fraction of the stock that a player asks for."""
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))

    def centre(self, params: Params) -> Float[Array, " 1"]:
        """Half of the stock is left: with more, rationing would bind and the gradient be zero."""
        return jnp.full((1,), 0.5 / self.num_players, jnp.result_type(float))

    def initial_state(self, key: Array, params: Params) -> State:
        """Log stock normal around its steady state."""
        away = SPREAD * jax.random.normal(key, (), jnp.result_type(float))
        return State(jnp.int32(0), self.steady_stock(params) * jnp.exp(away))

    def observation(self, state: State, params: Params) -> Float[Array, "A 1"]:
        """Log stock in units of its initial spread; every player sees it."""
        seen = jnp.log(state.x / self.steady_stock(params)) / SPREAD
        return jnp.broadcast_to(seen, (self.num_players, 1))

    def shocks(self, params: Params) -> Normal:
        """The log of the shock to growth, standardised."""
        return Normal(1)

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """x' = z' (x - sum c)^alpha."""
        left = state.x * (1 - drawn(action).sum())
        return state.replace(x=jnp.exp(params.sigma * shock[0]) * left**params.alpha)

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, " A"]:
        """Log consumption of each."""
        return jnp.log(drawn(action) * state.x)

    def reward_units(self, params: Params) -> tuple[Array, float]:
        """Log consumption in the steady state; c u'(c) = 1."""
        return jnp.log(self.fraction(params) * self.steady_stock(params)), 1.0

    def floored(self, state: State, action: Array, params: Params) -> Array:
        """Whether a fraction was so near 0 that consumption was held up."""
        return jnp.any(action < FLOOR)

    def flags(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Whether the players asked for more than there is to draw."""
        return {"rationed": action.sum() > MOST}

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
        """What a unit left is worth next period to each, `[A]`: z' f'(S) times the marginal utility of the stock.

        To a player of the game that is `u'(c_i') (1 - sum of dc_j' / dx' over the others)`: the others draw on what
        it leaves. To the players together it is `u'(c')`, their mean.
        """
        left = state.x * (1 - drawn(decision.action).sum())
        growth = params.alpha * next_state.x / left
        marginal = 1 / (drawn(next_decision.action) * next_state.x)
        if self.concept == "cooperative":
            return {"leaving": jnp.full_like(marginal, growth * marginal.mean())}

        def consumed(x):
            return drawn(next_policy(next_state.replace(x=x)).action) * x

        slopes = jax.jvp(consumed, (next_state.x,), (jnp.ones_like(next_state.x),))[1]
        return {"leaving": growth * marginal * (1 - (slopes.sum() - slopes))}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """Euler equation of each in shares of the stock: beta E[.] S f_i - S / x, with S what is left.

        That is beta E[.] c_i - 1 times S / x: its slope in the fractions stays of order one where little is left (with
        five players a tenth is), and where a rival's slope turns E[.] negative it still grows with what is left.
        """
        fractions = drawn(decision.action)
        left = 1 - fractions.sum()
        return {"euler": (params.beta * expected["leaving"] * fractions * state.x - 1) * left}

    def euler_error(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """The share by which consumption misses the one that the Euler equation asks for."""
        return {"euler": 1 / (params.beta * expected["leaving"] * drawn(decision.action) * state.x) - 1}

    def steady_state(self, params: Params) -> tuple[State, Decision]:
        """Of the concept's fractions, at z = 1."""
        return State(jnp.int32(0), self.steady_stock(params)), Decision(self._known_action(params))

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """The stock, total consumption and what is left."""
        total = drawn(action).sum() * state.x
        return {"stock": state.x, "consumption": total, "left": state.x - total}

    def consumption_equivalent(self, value: Array, reference: Array, params: Params) -> Array:
        """1 - exp(-(1 - beta) regret), for log utility."""
        return -jnp.expm1(-(1 - params.beta) * (reference - value))

    def reference(self, params: Params) -> Reference:
        """The concept's fraction, and the value to each of drawing it for ever."""
        action = self._known_action(params)
        return Reference(lambda state: action, lambda state: constant_value(state, action, params), self.concept)

    def exploitability(self, policy: Callable[[State], PyTree], params: Params) -> Float[Array, " A"]:
        """What each would gain from the steady state on by its best policy while the others keep to theirs.

        By dynamic programming on a grid of log x; exact where the others' fractions are constant, up to the precision
        of a golden-section search. A best response to constant fractions of total F is `(1 - a b) (1 - F)`, unless
        F is so near 1 that asking for everything and being rationed is better.
        """
        pool = CommonPool(params, MOST, FLOOR)

        def profile(x):
            return policy(State(jnp.int32(0), x))[:, 0]

        asked = jax.vmap(profile, out_axes=1)(pool.stocks)
        at = jnp.log(self.steady_stock(params))

        def gain(player):
            others = asked.sum(0) - asked[player]
            response = best_response(pool, others)
            return pool.at(response.value, at) - pool.at(profile_value(pool, asked[player], others), at)

        return jnp.maximum(jax.lax.map(gain, jnp.arange(self.num_players)), 0)

    def fraction(self, params: Params) -> Float[Array, ""]:
        """What each player draws under the concept."""
        ab = params.alpha * params.beta
        rivals = 0 if self.concept == "cooperative" else self.num_players - 1
        return jnp.asarray((1 - ab) / (self.num_players - rivals * ab))

    def steady_stock(self, params: Params) -> Float[Array, ""]:
        """(1 - N f)^(alpha / (1 - alpha)) at the concept's fraction f."""
        return (1 - self.num_players * self.fraction(params)) ** (params.alpha / (1 - params.alpha))

    def _known_action(self, params: Params) -> Float[Array, "A 1"]:
        return jnp.full((self.num_players, 1), self.fraction(params))


def drawn(action: Float[Array, "A 1"]) -> Float[Array, " A"]:
    """Fractions of the stock that players get of those they ask for: all of it, or scaled down to 0.999 in total."""
    asked = jnp.maximum(action[:, 0], FLOOR)
    total = asked.sum()
    return asked * jnp.where(total > MOST, MOST / total, 1)


def constant_value(state: State, action: Float[Array, "A 1"], params: Params) -> Float[Array, " A"]:
    """Value to each of the same fractions for ever, A_i + B log x with B = 1 / (1 - alpha beta); exact for any."""
    fractions = drawn(action)
    slope = 1 / (1 - params.alpha * params.beta)
    future = params.beta * slope * params.alpha * jnp.log(1 - fractions.sum())
    return (jnp.log(fractions) + future) / (1 - params.beta) + slope * jnp.log(state.x)
