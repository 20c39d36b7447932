"""Cournot's oligopoly: firms choose quantities once. Its equilibrium is known for any costs, idle firms included.

Cournot (1838), "Recherches sur les principes mathematiques de la theorie des richesses", chapter 7. The game in
which quantities are costly to adjust is in `cournot_adjustment.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PyTree

from ...errors import UserError, unknown
from .. import spaces
from ..complementarity import fischer_burmeister
from ..economy import Decision, Economy, Residuals
from ..environment import NON_NEGATIVE, POSITIVE, SHARE, Domain, EnvParams, EnvState, Reference, parameter
from ..shocks import Discrete

DYNAMICS = ("static", "adjustment")


@struct.dataclass
class State(EnvState):
    """Quantities `q` of the period, `[A]`: in the static game those just sold, 0 before."""

    q: Float[Array, " A"]


@struct.dataclass
class Params(EnvParams):
    """Calibration; `beta` and `gamma` are of the game with adjustment costs."""

    a: float = parameter(10.0, POSITIVE, "price at which nothing is sold")
    b: float = parameter(1.0, POSITIVE, "fall of the price with each unit sold")
    c: float = parameter(1.0, NON_NEGATIVE, "cost of a unit, one number or one for each firm")
    gamma: float = parameter(12.0, POSITIVE, "cost of changing a quantity, per square of the change")
    beta: float = parameter(0.96, SHARE, "discount factor per period, where there are several")
    max_steps_in_episode: int = parameter(100, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class Cournot(Economy):
    """N firms choose quantities q at once, the price is P = a - b sum q, and firm i earns (P - c_i) q_i.

    Played once. Under "nash" each firm maximises its own profit; under "cooperative" they maximise their sum, and the
    firms of the lowest cost share the monopolist's quantity. The price is not held at 0: profits stay quadratic.

    Action: Box(0, a / b), shape (1,), centred on the middle. Observation: how far own cost is below the mean, as a
    share of the mean quantity that it is worth in the equilibrium.

    Attributes:
        num_firms: N.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 1
    concepts: ClassVar[tuple[str, ...]] = ("nash", "cooperative")
    complementarity: ClassVar[tuple[str, ...]] = ("first_order",)
    agent_role: ClassVar[str] = "firm"

    concept: str = "nash"
    num_firms: int = 2
    dynamics: str = dataclasses.field(default="static", init=False)

    def __post_init__(self):
        super().__post_init__()
        check_number(self.name, self.num_firms)

    @property
    def num_agents(self) -> int:
        """The firms."""
        return self.num_firms

    @property
    def one_shot(self) -> bool:
        """Always: firms choose once."""
        return True

    def check_params(self, params: Params) -> None:
        """Costs that go with the firms, and nothing that belongs to the game with adjustment costs."""
        check_costs(self.name, params, self.num_firms)
        for name in ("gamma", "beta"):
            if not np.allclose(getattr(params, name), getattr(Params(), name)):
                raise UserError(
                    f"{self.name}: {name} does not apply with dynamics='static'; leave it out, or use "
                    "dynamics='adjustment'"
                )

    def agent_action_space(self, params: Params) -> spaces.Box:
        """A quantity; the highest alone would bring the price to 0."""
        return spaces.Box(0.0, params.a / params.b, (1,), jnp.result_type(float))

    def initial_state(self, key: Array, params: Params) -> State:
        """Nothing sold yet."""
        return State(jnp.int32(0), jnp.zeros((self.num_firms,), jnp.result_type(float)))

    def observation(self, state: State, params: Params) -> Float[Array, "A 1"]:
        """Own cost; nothing else differs between firms."""
        return cost_advantage(params, self.num_firms)[:, None]

    def shocks(self, params: Params) -> Discrete:
        """None: one value, always drawn."""
        return Discrete(jnp.zeros((1,), jnp.result_type(float)), jnp.ones((1,), jnp.result_type(float)))

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """What was sold."""
        return state.replace(q=action[:, 0])

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, " A"]:
        """Profit of each firm."""
        return profits(action[:, 0], params)

    def reward_units(self, params: Params) -> tuple[float, Array]:
        """A share of the monopolist's profit at the mean cost."""
        return 0.0, monopoly_profit(params)

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
        """Nothing: there is no future."""
        return {}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """No firm gains from another unit, or sells none: `c_i - P + b q_i` over a against `q_i` over a / b.

        Of the "cooperative" firms a unit moves the price of all: `c_i - P + b sum q`.
        """
        q = decision.action[:, 0]
        own = q.sum() if self.concept == "cooperative" else q
        loss = unit_costs(params, self.num_firms) - price(q, params) + params.b * own
        return {"first_order": fischer_burmeister(loss / params.a, params.b * q / params.a)}

    def slacks(self, state: State, decision: Decision, params: Params) -> Residuals:
        """Quantities as shares of a / b."""
        return {"first_order": params.b * decision.action[:, 0] / params.a}

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """The price, total quantity and joint profit."""
        q = action[:, 0]
        return {"price": price(q, params), "quantity": q.sum(), "joint_profit": profits(q, params).sum()}

    def reference(self, params: Params) -> Reference:
        """The concept's quantities and the profits from them."""
        solve = joint_quantities if self.concept == "cooperative" else nash_quantities
        q = solve(params, self.num_firms)
        return Reference(lambda state: q[:, None], lambda state: profits(q, params), self.concept)

    def exploitability(self, policy: Callable[[State], PyTree], params: Params) -> Float[Array, " A"]:
        """What each firm would gain by its best quantity, `(a - c_i - b sum of the others') / 2 b` or 0."""
        q = policy(self.initial_state(jax.random.key(0), params))[:, 0]
        others = q.sum() - q
        c = unit_costs(params, self.num_firms)
        best = jnp.maximum((params.a - c - params.b * others) / (2 * params.b), 0)
        return (params.a - params.b * (best + others) - c) * best - profits(q, params)


def cournot(
    dynamics: str = "static", concept: str | None = None, reward_scale: str = "consumption", num_firms: int = 2
) -> Economy:
    """The oligopoly played once, or for ever with costs of adjusting quantities.

    Args:
        dynamics: "static", `Cournot`, or "adjustment", `CournotAdjustment`.
        concept: None is "nash" of the former and "mpe" of the latter; "cooperative" of both.
        reward_scale: "consumption", a share of a monopolist's profit, or "utility", profit.
        num_firms: at least 2.

    Raises:
        UserError: an unknown word, or fewer firms.
    """
    if dynamics not in DYNAMICS:
        raise unknown("dynamics of Cournot-v0", str(dynamics), DYNAMICS)
    if dynamics == "static":
        return Cournot("nash" if concept is None else concept, reward_scale, num_firms)
    from .cournot_adjustment import CournotAdjustment

    return CournotAdjustment("mpe" if concept is None else concept, reward_scale, num_firms)


def price(q: Float[Array, " A"], params: Params) -> Float[Array, ""]:
    """a - b sum q."""
    return params.a - params.b * q.sum()


def unit_costs(params: Params, num_firms: int) -> Float[Array, " A"]:
    """One for each firm."""
    return jnp.broadcast_to(jnp.asarray(params.c, jnp.result_type(float)), (num_firms,))


def profits(q: Float[Array, " A"], params: Params) -> Float[Array, " A"]:
    """(P - c_i) q_i."""
    return (price(q, params) - unit_costs(params, q.size)) * q


def monopoly_profit(params: Params) -> Float[Array, ""]:
    """(a - c)^2 / 4 b at the mean cost."""
    return (params.a - jnp.mean(jnp.asarray(params.c))) ** 2 / (4 * params.b)


def cost_advantage(params: Params, num_firms: int) -> Float[Array, " A"]:
    """(mean c - c_i) (N + 1) / (a - mean c): by how much more than the mean a firm sells where all sell."""
    c = unit_costs(params, num_firms)
    return (c.mean() - c) * (num_firms + 1) / (params.a - c.mean())


def nash_quantities(params: Params, num_firms: int) -> Float[Array, " A"]:
    """Of the equilibrium, `(P - c_i) / b` or 0.

    Were the n firms of the lowest costs to sell, the price would be `(a + their costs) / (n + 1)`. It falls with every
    firm whose cost is below it and rises with every other, so the lowest of these prices is the equilibrium's.
    """
    c = unit_costs(params, num_firms)
    prices = (params.a + jnp.cumsum(jnp.sort(c))) / jnp.arange(2, num_firms + 2)
    return jnp.maximum(prices.min() - c, 0) / params.b


def joint_quantities(params: Params, num_firms: int) -> Float[Array, " A"]:
    """The monopolist's `(a - c) / 2 b` at the lowest cost, shared equally by the firms that have it."""
    c = unit_costs(params, num_firms)
    cheapest = c == c.min()
    return jnp.where(cheapest, (params.a - c.min()) / (2 * params.b * cheapest.sum()), 0)


def check_number(name: str, num_firms: Any) -> None:
    """Raise `UserError` unless there are at least two firms."""
    if not isinstance(num_firms, int) or num_firms < 2:
        raise UserError(f"{name}: num_firms = {num_firms!r} must be a whole number of at least 2")


def check_costs(name: str, params: Any, num_firms: int) -> None:
    """Raise `UserError` unless costs go with the number of firms and with demand."""
    c = np.asarray(params.c)
    if c.shape not in ((), (num_firms,)):
        raise UserError(f"{name}: c has shape {list(c.shape)}; give one number, or {num_firms}, one for each firm")
    if c.mean() >= np.min(params.a):
        raise UserError(f"{name}: the mean of c is {c.mean():g} and must be below a = {np.min(params.a):g}")
