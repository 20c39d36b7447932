"""Many households that insure themselves by saving: what Aiyagari's and Krusell and Smith's economies share.

Timing: a household enters with assets a, its own state s and the aggregate state z are known, it chooses a'. Budget:
c + a' = R a + income(s), a' >= amin; it saves a share of R a + income - amin.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from ...errors import UserError, unknown
from .. import spaces
from ..complementarity import fischer_burmeister
from ..economy import Decision, Economy, Residuals
from ..environment import Domain, drop_agent_axis
from ._cross_section import State, gini, move, population_mean
from ._household_shocks import HouseholdShocks, invert

NON_POSITIVE = Domain(high=0.0, open_high=False)

FLOOR = 1e-8
LEAST_CAPITAL = 1e-3  # relative to full insurance: marginal products are infinite at 0
BINDING = 1e-6  # a smaller saved share is none: a sigmoid never gets to 0
OFF_GRID = 1e-6
NUM_HOUSEHOLDS, GRID_SIZE, CURVATURE = 20, 60, 3
SPREAD_LOG_K = 0.2

HOUSEHOLDS = ("agents", "histogram")


class Budget(NamedTuple):
    """Prices and incomes of a period: gross return on assets, wage, and each agent's income `[A]`."""

    gross_return: Float[Array, ""]
    wage: Float[Array, ""]
    income: Float[Array, " A"]


class Means(NamedTuple):
    """A typical household's assets and cash (assets with their return, and income), to centre and scale by."""

    assets: Float[Array, ""]
    cash: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class HouseholdEconomy(Economy):
    """Households that face risk of their own and a borrowing limit.

    The cross-section is the state. With `households="agents"` it is a sample: every household is an agent. With
    `households="histogram"` it is a distribution on a grid (Young 2010, JEDC 34): the agents are the grid's points,
    each deciding for the households there, who are moved by lotteries between neighbouring points. Nobody stays on a
    grid point, so no slot is a point's successor: only conditions teach its policy, rewards do not.

    Aggregate labour is what the law of large numbers makes it, so that a sample's prices vary with its capital only.
    Aggregates carry no gradient: every household takes prices as given. What it sees of the cross-section is mean
    assets (restricted perceptions).

    Attributes:
        households: "agents" or "histogram".
        num_households: agents of a sample, at least 2; None is 20.
        grid_size: points of the histogram's grid in assets, at least 10; None is 60.
    """

    concepts: ClassVar[tuple[str, ...]] = ("competitive",)
    complementarity: ClassVar[tuple[str, ...]] = ("borrowing",)
    agent_role: ClassVar[str] = "household"
    num_aggregate: ClassVar[int] = 1

    concept: str = "competitive"
    households: str = "agents"
    num_households: int | None = None
    grid_size: int | None = None

    # -- what one of them adds ------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def num_own(self) -> int:
        """How many states of its own a household can be in."""

    @property
    def prices_move(self) -> bool:
        """Whether prices follow the cross-section."""
        return True

    @abc.abstractmethod
    def chances(self, params: Any) -> tuple[Float[Array, "Z Z"], Float[Array, "Z Z S S"]]:
        """`aggregate` and `own` of the shocks' law."""

    @abc.abstractmethod
    def shares(self, params: Any) -> tuple[Float[Array, " Z"], Float[Array, "Z S"]]:
        """The long-run chance of each aggregate state, and the share of households in each own state there."""

    @abc.abstractmethod
    def budget(self, state: State, params: Any) -> Budget:
        """Prices and incomes."""

    @abc.abstractmethod
    def means(self, params: Any) -> Means:
        """A typical household's."""

    @abc.abstractmethod
    def own_signal(self, params: Any) -> Float[Array, " S"]:
        """What a household sees of its own state, of order one."""

    # -- the population -------------------------------------------------------------------------------------------

    def __post_init__(self):
        super().__post_init__()
        if self.households not in HOUSEHOLDS:
            raise unknown(f"option households of {self.name}", str(self.households), HOUSEHOLDS)
        applies = {"num_households": ("agents", 2, "grid_size"), "grid_size": ("histogram", 10, "num_households")}
        for name, (variant, least, other) in applies.items():
            value = getattr(self, name)
            if value is None:
                continue
            if self.households != variant:
                raise UserError(
                    f"{self.name}: {name} = {value} applies to households={variant!r}; with "
                    f"households={self.households!r} set {other}"
                )
            if value < least:
                raise UserError(f"{self.name}: {name} = {value} must be at least {least}")

    def least_capital(self, params: Any) -> Float[Array, ""]:
        """The lowest mean assets of a first state where prices move: the interest is highest there, the wage lowest."""
        return (1 - SPREAD_LOG_K) * self.means(params).assets

    def check_grid(self, params: Any) -> None:
        """Raise `UserError` where the grid in assets ends below a typical household's."""
        most, typical = float(np.min(params.amax)), float(np.max(self.means(params).assets))
        if most <= typical:
            raise UserError(
                f"{self.name}: amax = {most:g} must exceed the mean assets under full insurance, {typical:g}; "
                "raise amax"
            )

    def check_debt(self, least: ArrayLike, params: Any, other: str = "") -> None:
        """Raise `UserError` unless the lowest income less interest, `least`, is above 0; `other` is another way out."""
        if not bool(np.all(np.asarray(least) > 0)):
            raise UserError(
                f"{self.name}: with the lowest income the interest on the debt amin = {float(np.min(params.amin)):g} "
                f"leaves nothing to consume; raise amin towards 0{other}"
            )

    @property
    def num_agents(self) -> int:
        """Households, or points of the grid."""
        if self.households == "histogram":
            return self.num_own * (self.grid_size or GRID_SIZE)
        return self.num_households or NUM_HOUSEHOLDS

    @property
    def observation_size(self) -> int:
        """Cash and one's own state; mean assets where prices follow it; the aggregate state where it moves."""
        return 2 + self.prices_move + (self.num_aggregate > 1)

    def grid(self, params: Any) -> Float[Array, " n"]:
        """The histogram's assets, from amin to amax, denser below."""
        step = jnp.linspace(0.0, 1.0, self.grid_size or GRID_SIZE, dtype=jnp.result_type(float))
        return params.amin + (params.amax - params.amin) * step**CURVATURE

    def initial_state(self, key: Array, params: Any) -> State:
        """Assets above the limit with a gamma law of shape 2; where prices move, their mean up to 20 % off."""
        key_z, key_mean, key_a, key_own = jax.random.split(key, 4)
        dtype = jnp.result_type(float)
        chance, shares = self.shares(params)
        z = invert(chance, jax.random.uniform(key_z, (), dtype))
        width = SPREAD_LOG_K if self.prices_move else 0.0
        mean = self.means(params).assets * (1 + width * jax.random.uniform(key_mean, (), dtype, -1.0, 1.0))
        mean = jnp.maximum(mean - params.amin, FLOOR)
        if self.households == "histogram":
            grid = self.grid(params)
            x = (grid - params.amin) / mean
            density = x * jnp.exp(-2 * x) * jnp.gradient(grid)
            mass = (shares[z][:, None] * density / density.sum()).ravel()
            a = jnp.tile(grid, self.num_own)
            own = jnp.repeat(jnp.arange(self.num_own, dtype=jnp.int32), grid.shape[0])
        else:
            count = self.num_agents
            a = params.amin + mean * jax.random.exponential(key_a, (count, 2), dtype).sum(axis=-1) / 2
            own = invert(shares[z], jax.random.uniform(key_own, (count,), dtype))
            mass = jnp.full((count,), 1 / count, dtype)
        return State(time=jnp.int32(0), a=a, own=own, mass=mass, capital=population_mean(mass, a), z=z)

    @property
    def capabilities(self) -> frozenset[str]:
        """An economy's, and "distribution" where the agents are points of a histogram."""
        return super().capabilities | ({"distribution"} if self.households == "histogram" else set())

    def successor(self, state: State, next_state: State, params: Any) -> Int[Array, " A"]:
        """Households keep their slots; nobody keeps to a point of the grid."""
        slots = jnp.arange(self.num_agents, dtype=jnp.int32)
        return jnp.full_like(slots, -1) if self.households == "histogram" else slots

    # -- the economics --------------------------------------------------------------------------------------------

    def agent_action_space(self, params: Any) -> spaces.Box:
        """The saved share of cash above the borrowing limit."""
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))

    def centre(self, params: Any) -> Float[Array, " 1"]:
        """The share with which a typical household keeps its assets."""
        assets, cash = self.means(params)
        return jnp.asarray((assets - params.amin) / (cash - params.amin), jnp.result_type(float))[None]

    def observation(self, state: State, params: Any) -> Float[Array, "..."]:
        """Log cash above the limit, the own state, and the log of mean assets and the aggregate state if they move."""
        mean = self.means(params)
        seen = [
            jnp.log(self.available(state, params) / (mean.cash - params.amin)),
            self.own_signal(params)[state.own],
        ]
        if self.prices_move:
            capital = jnp.maximum(state.capital, LEAST_CAPITAL * mean.assets)
            seen.append(jnp.broadcast_to(jnp.log(capital / mean.assets) / SPREAD_LOG_K, state.a.shape))
        if self.num_aggregate > 1:
            signal = (2 * state.z / (self.num_aggregate - 1) - 1).astype(state.a.dtype)
            seen.append(jnp.broadcast_to(signal, state.a.shape))
        return drop_agent_axis(self, jnp.stack(seen, axis=-1))

    def shocks(self, params: Any) -> HouseholdShocks:
        """The aggregate state's law and the households' own."""
        aggregate, own = self.chances(params)
        return HouseholdShocks(aggregate, own, 0 if self.households == "histogram" else self.num_agents)

    def transition(self, state: State, action: Array, shock: Array, params: Any) -> State:
        """Assets as chosen and own states as drawn; or the mass that lotteries and the chances of own states move."""
        saved, law = self.saved(state, action, params), self.shocks(params)
        z = law.next_aggregate(state, shock)
        if self.households == "histogram":
            grid = self.grid(params)
            mass = move(state.mass, saved, grid, law.own[state.z, z])
            return state.replace(mass=mass, capital=population_mean(mass, jnp.tile(grid, self.num_own)), z=z)
        own = law.next_own(state, z, shock)
        return state.replace(a=saved, own=own, capital=population_mean(state.mass, saved), z=z)

    def reward(self, state: State, action: Array, params: Any) -> Float[Array, "..."]:
        """Utility of consumption."""
        return drop_agent_axis(self, utility(self.consumption(state, action, params), params.mu))

    def reward_units(self, params: Any) -> tuple[Array, Array]:
        """At the consumption of a typical household that keeps its assets."""
        assets, cash = self.means(params)
        return utility(cash - assets, params.mu), (cash - assets) ** (1 - params.mu)

    def floored(self, state: State, action: Array, params: Any) -> Array:
        """Whether a household's consumption or cash, or the capital that prices follow, was held up."""
        least = LEAST_CAPITAL * self.means(params).assets
        poor = jnp.any((1 - shares_of(action) < FLOOR) | (self.available(state, params) <= FLOOR))
        return poor | (self.prices_move & (state.capital < least))

    def flags(self, state: State, action: Array, params: Any) -> dict[str, Array]:
        """For a histogram, "off_grid": some households want more assets than the grid has, and do not get them."""
        if self.households == "agents":
            return {}
        return {"off_grid": jnp.sum(state.mass * (self.saved(state, action, params) > params.amax)) > OFF_GRID}

    def expectation_terms(
        self,
        state: State,
        decision: Decision,
        next_state: State,
        next_decision: Decision,
        params: Any,
        *,
        next_policy: Callable[[State], Decision],
    ) -> Residuals:
        """R' u'(c'); for a histogram its expectation over the own states that a grid point's households come to."""

        def inside(state: State, decision: Decision) -> Float[Array, " A"]:
            marginal = self.consumption(state, decision.action, params) ** -params.mu
            return self.budget(state, params).gross_return * marginal

        if self.households == "agents":
            return {"saving": drop_agent_axis(self, inside(next_state, next_decision))}
        saved = self.saved(state, decision.action, params)

        def arrived(own: Array) -> Float[Array, " A"]:
            there = next_state.replace(a=saved, own=jnp.broadcast_to(own, saved.shape))
            return inside(there, next_policy(there))

        chances = self.shocks(params).own[state.z, next_state.z][state.own]
        terms = jax.vmap(arrived)(jnp.arange(self.num_own, dtype=jnp.int32))
        return {"saving": jnp.sum(chances.T * terms, axis=0)}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Any) -> Residuals:
        """Fischer-Burmeister: either the Euler equation holds, or nothing is saved and more would be consumed."""
        wanted = (params.beta * expected["saving"]) ** (-1 / params.mu)
        c = drop_agent_axis(self, self.consumption(state, decision.action, params))
        return {"borrowing": fischer_burmeister(wanted / c - 1, self._slack(decision))}

    def euler_error(self, state: State, decision: Decision, expected: Residuals, params: Any) -> Residuals:
        """Share by which consumption misses the one that the Euler equation asks for and the limit allows."""
        wanted = (params.beta * expected["saving"]) ** (-1 / params.mu)
        c = drop_agent_axis(self, self.consumption(state, decision.action, params))
        allowed = drop_agent_axis(self, self.available(state, params))
        return {"euler": jnp.minimum(wanted, allowed) / c - 1}

    def slacks(self, state: State, decision: Decision, params: Any) -> Residuals:
        """Saved share of cash above the limit."""
        return {"borrowing": self._slack(decision)}

    def _slack(self, decision: Decision) -> Float[Array, "..."]:
        return drop_agent_axis(self, shares_of(decision.action))

    def definitions(self, state: State, action: Array, params: Any) -> dict[str, Array]:
        """Means over households of assets and consumption, prices, and the inequality of assets."""
        budget = self.budget(state, params)
        return {
            "capital": state.capital,
            "interest_rate": budget.gross_return - 1,
            "wage": budget.wage,
            "consumption": population_mean(state.mass, self.consumption(state, action, params)),
            "gini": gini(state.a - params.amin, state.mass),
        }

    def consumption_equivalent(self, value: Array, reference: Array, params: Any) -> Array:
        """1 - [(1 + x V) / (1 + x V*)]^(1 / (1 - mu)), x = (1 - mu) (1 - beta)."""

        def log_level(v: Array) -> Array:
            flow, curve = (1 - params.beta) * v, 1 - params.mu
            return jnp.where(curve == 0, flow, jnp.log1p(curve * flow) / jnp.where(curve == 0, 1, curve))

        return -jnp.expm1(log_level(value) - log_level(reference))

    # -- the household's budget -----------------------------------------------------------------------------------

    def available(self, state: State, params: Any) -> Float[Array, " A"]:
        """Cash above the borrowing limit."""
        budget = self.budget(state, params)
        return jnp.maximum(budget.gross_return * state.a + budget.income - params.amin, FLOOR)

    def saved(self, state: State, action: Array, params: Any) -> Float[Array, " A"]:
        """Next period's assets."""
        return params.amin + shares_of(action) * self.available(state, params)

    def consumption(self, state: State, action: Array, params: Any) -> Float[Array, " A"]:
        """The rest of the cash, held above a hundred-millionth of what is available."""
        return jnp.maximum(1 - shares_of(action), FLOOR) * self.available(state, params)

    def priced_capital(self, state: State, params: Any) -> Float[Array, ""]:
        """The capital that prices follow, held above a thousandth of a typical one; nobody moves it."""
        return jax.lax.stop_gradient(jnp.maximum(state.capital, LEAST_CAPITAL * self.means(params).assets))


def shares_of(action: Array) -> Float[Array, " A"]:
    """Saved shares; one below a millionth is none, with the gradient of what it was."""
    share = action.reshape(-1)
    return share - jax.lax.stop_gradient(jnp.where(share < BINDING, share, 0))


def utility(c: ArrayLike, mu: ArrayLike) -> Array:
    """(c^(1 - mu) - 1) / (1 - mu), log c at mu = 1."""
    c, curve = jnp.asarray(c), 1 - jnp.asarray(mu)
    return jnp.where(curve == 0, jnp.log(c), jnp.expm1(curve * jnp.log(c)) / jnp.where(curve == 0, 1, curve))
