"""Firms that set prices under logit demand: between the Nash price and the monopoly price.

Calvano, Calzolari, Denicolo and Pastorello (2020), "Artificial intelligence, algorithmic pricing, and collusion", AER
110. Played once, or for ever with last period's prices in view.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, ArrayLike, Bool, Float

from ...errors import UserError
from .. import spaces
from ..economy import Decision, Economy, Residuals
from ..environment import NON_NEGATIVE, POSITIVE, REAL, SHARE, Domain, EnvParams, EnvState, Reference, parameter
from ..shocks import Discrete, no_shock

MEMORIES = (0, 1)
NEWTON_STEPS = 50
MOST_PROFILES = 4096


@struct.dataclass
class State(EnvState):
    """Last period's prices `[A]`; before a game that is played once, the middle of the bounds."""

    price: Float[Array, " A"]


@struct.dataclass
class Params(EnvParams):
    """The baseline of Calvano et al. (2020); `lowest` and `highest` bound prices where there is no grid."""

    beta: float = parameter(0.95, SHARE, "discount factor per period, with memory=1")
    quality: float = parameter(2.0, REAL, "quality a of each product")
    cost: float = parameter(1.0, NON_NEGATIVE, "marginal cost c")
    outside: float = parameter(0.0, REAL, "quality a0 of the outside good")
    mu: float = parameter(0.25, POSITIVE, "horizontal differentiation: scale of the logit")
    lowest: float = parameter(1.0, REAL, "lowest price, without a grid")
    highest: float = parameter(2.5, REAL, "highest price, without a grid")
    overshoot: float = parameter(0.1, POSITIVE, "how far a grid reaches beyond Nash and monopoly, in their distance")
    max_steps_in_episode: int = parameter(100, Domain(1, open_low=False), "periods before truncation, with memory=1")


@dataclasses.dataclass(frozen=True)
class LogitPricing(Economy):
    """Each firm sets a price p_i and sells q_i = exp((a - p_i) / mu) / (sum_j exp((a - p_j) / mu) + exp(a0 / mu)).

    Profit is `(p_i - c) q_i`. Nash: p - c = mu / (1 - q). Cooperative: p - c = mu / (1 - A q), the monopoly's price.

    Action: Box(lowest, highest), shape (1,), centred on its middle; with a grid Discrete, an index into `prices`.
    Observation: last prices, the firm's own first, centred and scaled by the bounds; zeros where it is played once.

    With `memory=1` the static Nash price for ever is one equilibrium among many, so that "nash" has no reference there,
    nor has it on a grid, which can have several: profits are scored by `profit_gain` (`definitions`), policies by
    `exploitability`. Payoffs do not depend on history, so the conditions of a Markov-perfect equilibrium are the static
    ones. On a grid they are what a firm could still gain, as a share of its profit.

    Attributes:
        num_firms: at least 2.
        grid: number of prices on a grid (15 in the paper); None for a continuous price.
        memory: 0, played once; 1, repeated, last prices in view.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    concepts: ClassVar[tuple[str, ...]] = ("nash", "cooperative")
    agent_role: ClassVar[str] = "firm"

    concept: str = "nash"
    num_firms: int = 2
    grid: int | None = None
    memory: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.num_firms < 2:
            raise UserError(f"{self.name}: num_firms = {self.num_firms} must be at least 2: one firm has no rival")
        if self.grid is not None and self.grid < 2:
            raise UserError(f"{self.name}: grid = {self.grid} must be at least 2 prices, or None for continuous ones")
        if self.memory not in MEMORIES:
            raise UserError(f"{self.name}: memory = {self.memory} must be 0 (played once) or 1 (last prices in view)")

    @property
    def num_agents(self) -> int:
        """The firms."""
        return self.num_firms

    @property
    def one_shot(self) -> bool:
        """Whether it is played once."""
        return self.memory == 0

    @property
    def observation_size(self) -> int:
        """One price a firm."""
        return self.num_agents

    @property
    def capabilities(self) -> frozenset[str]:
        """An economy's; prices on a grid have no derivatives."""
        return super().capabilities - ({"differentiable"} if self.grid else set())

    def agent_action_space(self, params: Params) -> spaces.Space:
        """A price, or its index on the grid."""
        if self.grid:
            return spaces.Discrete(self.grid)
        return spaces.Box(params.lowest, params.highest, (1,), jnp.result_type(float))

    def check_params(self, params: Params) -> None:
        """Nothing is set that the variant does not read; the answers can be found and lie within the bounds."""
        unread = {
            "lowest": (bool(self.grid), "with a grid, whose reach is overshoot", "overshoot, or grid=None"),
            "highest": (bool(self.grid), "with a grid, whose reach is overshoot", "overshoot, or grid=None"),
            "overshoot": (not self.grid, "without a grid", "grid=15, or lowest and highest"),
            "beta": (self.one_shot, "with memory=0, which is played once", "memory=1"),
        }
        for name, (idle, variant, remedy) in unread.items():
            if idle and not np.allclose(getattr(params, name), getattr(Params(), name)):
                value = float(np.max(getattr(params, name)))
                raise UserError(
                    f"{self.name}: {name} = {value:g} does not apply {variant}; leave it out, or set {remedy}"
                )
        nash, monopoly = self.nash_price(params), self.monopoly_price(params)
        if not bool(jnp.all(jnp.isfinite(nash) & jnp.isfinite(monopoly))):
            mu = float(np.min(params.mu))
            raise UserError(
                f"{self.name}: mu = {mu:g} is too small beside these qualities and costs for prices to be found; "
                "raise mu"
            )
        if not self.grid and not bool(jnp.all((params.lowest < nash) & (monopoly < params.highest))):
            worst = jnp.min(nash), jnp.max(monopoly), jnp.max(params.lowest), jnp.min(params.highest)
            nash, monopoly, low, high = (f"{float(number):.6g}" for number in worst)
            raise UserError(
                f"{self.name}: the Nash price {nash} and the monopoly price {monopoly} must lie within "
                f"(lowest, highest) = ({low}, {high}); widen the bounds"
            )

    def bounds(self, params: Params) -> tuple[Array, Array]:
        """The lowest and the highest price that can be set."""
        if not self.grid:
            return jnp.asarray(params.lowest), jnp.asarray(params.highest)
        nash, monopoly = self.nash_price(params), self.monopoly_price(params)
        reach = params.overshoot * (monopoly - nash)
        return nash - reach, monopoly + reach

    def prices(self, action: Array, params: Params) -> Float[Array, " A"]:
        """The prices behind actions, in the order of the agents."""
        if not self.grid:
            return action[..., 0]
        return self.grid_prices(params)[action]

    def grid_prices(self, params: Params) -> Float[Array, " m"]:
        """The grid: equal steps from `overshoot` below the Nash price to as much above the monopoly price."""
        low, high = self.bounds(params)
        return low + (high - low) * jnp.linspace(0, 1, self.grid or 2)

    def initial_state(self, key: Array, params: Params) -> State:
        """Uniform last prices, from the grid where there is one; the middle where it is played once."""
        low, high = self.bounds(params)
        if self.one_shot:
            share = jnp.full((self.num_agents,), 0.5, jnp.result_type(float))
        elif self.grid:
            share = jax.random.randint(key, (self.num_agents,), 0, self.grid) / (self.grid - 1)
        else:
            share = jax.random.uniform(key, (self.num_agents,), jnp.result_type(float))
        return State(jnp.int32(0), low + (high - low) * share)

    def observation(self, state: State, params: Params) -> Float[Array, "A A"]:
        """Last prices, own first and rivals' in cyclic order, from -1 to 1; zeros where it is played once."""
        low, high = self.bounds(params)
        firms = jnp.arange(self.num_agents)
        seen = (2 * state.price - low - high) / (high - low)
        return (0.0 if self.one_shot else 1.0) * seen[(firms[:, None] + firms) % self.num_agents]

    def shocks(self, params: Params) -> Discrete:
        """None."""
        return no_shock()

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """The prices set become last period's."""
        return state.replace(price=self.prices(action, params))

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, " A"]:
        """Profits."""
        return profit(self.prices(action, params), params)

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
        """None: nothing is expected."""
        return {}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """First-order conditions `[A]`, own profit's or joint profit's: 0 where price is marginal revenue's mark-up.

        `(p - c) (1 - q) / mu - 1` for Nash and `(p_i - c - sum_j (p_j - c) q_j) / mu - 1` for the cooperative answer.
        """
        p = self.prices(decision.action, params)
        if self.grid:
            return {"price": self._grid_gains(p, params) / jnp.abs(profit(p, params)).max()}
        q = shares(p, params)
        if self.concept == "nash":
            return {"price": (p - params.cost) * (1 - q) / params.mu - 1}
        return {"price": (p - params.cost - jnp.sum((p - params.cost) * q)) / params.mu - 1}

    def _grid_gains(self, p: Float[Array, " A"], params: Params) -> Float[Array, " A"]:
        """The most that a price of the grid adds: to a firm's own profit, or to the mean if all changed together."""
        if self.concept == "nash":
            return deviation_profits(p, self.grid_prices(params), params).max(-1) - profit(p, params)
        together = jnp.broadcast_to(self.grid_prices(params)[:, None], (self.grid or 0, self.num_agents))
        best = profit(together, params).mean(-1).max()
        return jnp.full((self.num_agents,), best - profit(p, params).mean())

    def steady_state(self, params: Params) -> tuple[State, Decision] | None:
        """The concept's price, charged before; None on a grid."""
        if self.grid:
            return None
        price = jnp.full((self.num_agents,), self.answer(params), jnp.result_type(float))
        return State(jnp.int32(0), price), Decision(price[:, None])

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Prices, market shares and profits `[A]`, and the mean profit between Nash (0) and monopoly (1)."""
        p = self.prices(action, params)
        nash, monopoly = (_alike(f(params), params, self.num_agents) for f in (self.nash_price, self.monopoly_price))
        gain = (profit(p, params).mean() - nash) / (monopoly - nash)
        return {"price": p, "market_share": shares(p, params), "profit": profit(p, params), "profit_gain": gain}

    def nash_price(self, params: Params) -> Float[Array, ""]:
        """The price of the one-shot game in continuous prices: p - c = mu / (1 - q)."""
        return solve_price(params, params.outside / params.mu, self.num_agents, 1)

    def monopoly_price(self, params: Params) -> Float[Array, ""]:
        """The price of all firms as one: p - c = mu / (1 - A q)."""
        return solve_price(params, params.outside / params.mu, self.num_agents, self.num_agents)

    def answer(self, params: Params) -> Float[Array, ""]:
        """The concept's price, in continuous prices."""
        return self.nash_price(params) if self.concept == "nash" else self.monopoly_price(params)

    def pure_equilibria(self, params: Params) -> Bool[Array, " m"]:
        """Which prices of the grid, set by all, no firm gains by leaving: the symmetric pure Nash equilibria."""
        p = self.grid_prices(params)
        alone = jax.vmap(lambda price: _deviation(price, p, params, self.num_agents))(p)
        return alone.max(-1) <= jnp.diagonal(alone)

    def reference(self, params: Params) -> Reference | None:
        """The concept's price; for "cooperative" on a grid the best that all set alike. See the class for None."""
        if self.concept == "nash" and (self.grid or self.memory):
            return None
        price = self.answer(params)
        action = jnp.full((self.num_agents, 1), price, jnp.result_type(float))
        if self.grid:
            best = jnp.argmax(jax.vmap(lambda p: _alike(p, params, self.num_agents))(self.grid_prices(params)))
            price, action = self.grid_prices(params)[best], jnp.full((self.num_agents,), best, jnp.int32)
        periods = 1.0 if self.one_shot else 1 / (1 - params.beta)
        value = jnp.full((self.num_agents,), periods * _alike(price, params, self.num_agents))
        return Reference(lambda state: action, lambda state: value, self.concept)

    def exploitability(self, policy: Callable[[State], Any], params: Params) -> Float[Array, " A"] | None:
        """Exact: the best price against the others' where it is played once; dynamic programming on a grid.

        None for continuous prices with memory, and where a grid has more than 4096 profiles of last prices. With memory
        the first state's last prices are uniform on the grid.
        """
        if self.memory:
            known = self.grid is not None and self.grid**self.num_agents <= MOST_PROFILES
            return _repeated_gains(self, policy, params) if known else None
        p = self.prices(policy(self.initial_state(jax.random.key(0), params)), params)
        if self.grid:
            return deviation_profits(p, self.grid_prices(params), params).max(-1) - profit(p, params)
        deviation = best_response(p, params)
        return jnp.diagonal(deviation_profits(p, deviation, params)) - profit(p, params)


def shares(p: Float[Array, "... A"], params: Params) -> Float[Array, "... A"]:
    """Market shares at prices `p`; what is missing to 1 buys the outside good."""
    logits = (params.quality - p) / params.mu
    none = jnp.broadcast_to(params.outside / params.mu, (*p.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([logits, none], axis=-1), axis=-1)[..., :-1]


def profit(p: Float[Array, "... A"], params: Params) -> Float[Array, "... A"]:
    """(p - c) q."""
    return (p - params.cost) * shares(p, params)


@functools.partial(jax.jit, static_argnames=("firms", "owned"))
def solve_price(params: Params, log_outside: Float[ArrayLike, "..."], firms: int, owned: int) -> Float[Array, "..."]:
    """The root of p - c = mu / (1 - owned q(p)) where `firms` charge p, by Newton's method.

    Args:
        params: the parameters.
        log_outside: log of what stands beside the firms' `exp((a - p) / mu)` in demand's denominator, any shape.
        firms: how many charge p.
        owned: of how many the profits count.
    """
    log_outside = jnp.asarray(log_outside, jnp.result_type(float))

    def step(_, p):
        odds = jnp.exp((params.quality - p) / params.mu - log_outside)
        q = odds / (1 + firms * odds)
        gap = p - params.cost - params.mu / (1 - owned * q)
        return p - gap / (1 + owned * q * (1 - firms * q) / (1 - owned * q) ** 2)

    # Above the root, where the equation is almost linear; from below, Newton's steps have the size of mu.
    top = jnp.maximum(params.cost, params.quality - params.mu * log_outside) + params.mu * (2 + np.log(firms))
    return jax.lax.fori_loop(0, NEWTON_STEPS, step, top)


def best_response(p: Float[Array, " A"], params: Params) -> Float[Array, " A"]:
    """Each firm's best price against the others' prices, without bounds."""
    logits = jnp.where(jnp.eye(p.shape[0], dtype=bool), -jnp.inf, (params.quality - p) / params.mu)
    beside = jnp.logaddexp(jax.nn.logsumexp(logits, axis=-1), params.outside / params.mu)
    return solve_price(params, beside, 1, 1)


def deviation_profits(p: Float[Array, " A"], own: Float[Array, " m"], params: Params) -> Float[Array, "A m"]:
    """Each firm's profit at each of the prices `own`, while the others charge `p`."""
    firms = jnp.arange(p.shape[0])
    return jax.vmap(lambda i: jax.vmap(lambda x: profit(p.at[i].set(x), params)[i])(own))(firms)


def _deviation(price: Array, own: Float[Array, " m"], params: Params, firms: int) -> Float[Array, " m"]:
    return deviation_profits(jnp.full((firms,), price), own, params)[0]


def _alike(price: Array, params: Params, firms: int) -> Float[Array, ""]:
    """A firm's profit where all charge `price`."""
    return profit(jnp.full((firms,), price, jnp.result_type(float)), params)[0]


def _repeated_gains(env: LogitPricing, policy: Callable[[State], Any], params: Params) -> Float[Array, " A"]:
    """Value of each firm's best response to a policy of last prices less its own, on the grid, by value iteration."""
    size, firms = int(env.grid or 0), env.num_agents
    grid, own = env.grid_prices(params), jnp.arange(size, dtype=jnp.int32)
    profiles = jnp.stack(jnp.meshgrid(*[own] * firms, indexing="ij"), -1).reshape(-1, firms)
    played = jax.vmap(lambda last: jnp.asarray(policy(State(jnp.int32(0), grid[last])), own.dtype))(profiles)
    places = size ** jnp.arange(firms - 1, -1, -1, dtype=own.dtype)
    index = played @ places

    def gain(i: Array) -> Array:
        deviations = jax.vmap(lambda p: deviation_profits(p, grid, params)[i])(grid[played])
        after = index[:, None] + (own - played[:, i, None]) * places[i]
        kept = jnp.take_along_axis(deviations, played[:, i, None], 1)[:, 0]
        best = _fixed_point(lambda v: (deviations + params.beta * v[after]).max(1), kept, params)
        return (best - _fixed_point(lambda v: kept + params.beta * v[index], kept, params)).mean()

    return jnp.maximum(jax.lax.map(gain, jnp.arange(firms)), 0)


def _fixed_point(bellman: Callable[[Array], Array], start: Float[Array, " S"], params: Params) -> Float[Array, " S"]:
    """Iterate a contraction until a step changes the value by less than rounding."""
    small = 4 * jnp.finfo(start.dtype).eps * jnp.abs(start).max() / (1 - params.beta)

    def step(carry):
        value, _, count = carry
        following = bellman(value)
        return following, jnp.abs(following - value).max(), count + 1

    first = (start / (1 - params.beta), jnp.array(jnp.inf, start.dtype), 0)
    return jax.lax.while_loop(lambda c: (c[1] > small) & (c[2] < 20_000), step, first)[0]
