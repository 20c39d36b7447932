"""Cournot's oligopoly with costs of changing quantities: a linear-quadratic game whose equilibrium is computed exactly.

Judd (1996), "Cournot versus Bertrand: a dynamic resolution"; the duopoly is in Sargent and Stachurski's QuantEcon
lectures, "Markov perfect equilibrium". What is Cournot's once is not where the firms come to rest: each sells more, as
the others answer by selling less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import spaces
from ..economy import Decision, Economy, Residuals
from ..environment import EnvParams
from ..shocks import Discrete
from .cournot import (
    Params,
    State,
    check_costs,
    check_number,
    cost_advantage,
    monopoly_profit,
    price,
    profits,
    unit_costs,
)

STEP = 0.25  # the largest change of a quantity, of the one that would bring the price to 0


class LinearQuadratic(NamedTuple):
    """A game with states s and one control u_i a player: s' = A s + B u, payoffs `(s, u)' M_i (s, u)`.

    Attributes:
        transition: A, `[n, n]`.
        control: B, `[n, N]`, a column for each player.
        payoff: M, symmetric, `[N, n + N, n + N]`.
    """

    transition: np.ndarray
    control: np.ndarray
    payoff: np.ndarray


@dataclasses.dataclass(frozen=True)
class CournotAdjustment(Economy):
    """N firms change their quantities, q_i' = q_i + u_i, and earn (P - c_i) q_i - gamma u_i^2 with P = a - b sum q.

    Profits are at the quantities of the period, before the change, and nothing is random. Quantities start between 0
    and twice Cournot's; neither they nor the price are held at 0, which keeps the game linear-quadratic. Under "mpe" a
    firm takes into account how the others will answer to its quantity; under "cooperative" all maximise the sum of
    profits.

    Action: Box(-a / 4 b, a / 4 b), shape (1,), centred on no change. Observation: own quantity and the others' mean
    against Cournot's at the mean cost, over a / 4 b; own cost against the mean, as in the static game.

    In the game a firm's Euler equation has, inside, what the others' quantities will be worth to it. These are further
    outputs of a residual learner, `auxiliary`: the loss from a unit more of each rival's output next period, discounted
    and over a, `[A, A - 1]`.

    Attributes:
        num_firms: N.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 3
    concepts: ClassVar[tuple[str, ...]] = ("mpe", "cooperative")
    solver: ClassVar[str | None] = "lq_nash"
    agent_role: ClassVar[str] = "firm"

    concept: str = "mpe"
    num_firms: int = 2
    dynamics: str = dataclasses.field(default="adjustment", init=False)

    def __post_init__(self):
        super().__post_init__()
        check_number(self.name, self.num_firms)

    @property
    def name(self) -> str:
        """It is Cournot-v0 with dynamics="adjustment"."""
        return "Cournot-v0"

    @property
    def num_agents(self) -> int:
        """The firms."""
        return self.num_firms

    @property
    def rivals(self) -> np.ndarray:
        """The others of each firm, `[A, A - 1]`."""
        return np.array([[j for j in range(self.num_firms) if j != i] for i in range(self.num_firms)])

    def check_params(self, params: Params) -> None:
        """Costs that go with the firms."""
        check_costs(self.name, params, self.num_firms)

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The change of a quantity."""
        step = STEP * params.a / params.b
        return spaces.Box(-step, step, (1,), jnp.result_type(float))

    def auxiliary(self, params: Params) -> spaces.Box | None:
        """What a rival's output costs a firm, not negative; none where all maximise together."""
        if self.concept == "cooperative":
            return None
        return spaces.Box(0.0, jnp.inf, (self.num_firms - 1,), jnp.result_type(float))

    def initial_state(self, key: Array, params: Params) -> State:
        """Quantities uniform from 0 to twice Cournot's."""
        shape = (self.num_firms,)
        q = jax.random.uniform(key, shape, jnp.result_type(float)) * 2 * self.typical_quantity(params)
        return State(jnp.int32(0), q)

    def observation(self, state: State, params: Params) -> Float[Array, "A 3"]:
        """As the class says."""
        others = (state.q.sum() - state.q) / (self.num_firms - 1)
        seen = jnp.stack([state.q, others], axis=1) - self.typical_quantity(params)
        return jnp.concatenate(
            [seen / (STEP * params.a / params.b), cost_advantage(params, self.num_firms)[:, None]], axis=1
        )

    def shocks(self, params: Params) -> Discrete:
        """None: one value, always drawn."""
        return Discrete(jnp.zeros((1,), jnp.result_type(float)), jnp.ones((1,), jnp.result_type(float)))

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """q' = q + u."""
        return state.replace(q=state.q + action[:, 0])

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, " A"]:
        """Profit of each firm, adjustment paid."""
        return profits(state.q, params) - params.gamma * action[:, 0] ** 2

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
        """What a unit more of next period's quantities is worth: own `[A]`, and each rival's `[A, A - 1]`.

        With D_ij = beta dV_i(q')/dq_j, for which D_ii = 2 gamma u_i by the first-order condition, the envelope
        condition is `dV_i/dq_j = dprofit_i/dq_j + D_ij + sum over k other than i of D_ik du_k/dq_j`.
        """
        q, u = next_state.q, next_decision.action[:, 0]
        margin = price(q, params) - unit_costs(params, self.num_firms)
        if self.concept == "cooperative":
            return {"own": margin - params.b * q.sum() + 2 * params.gamma * u}
        reactions = jax.jacfwd(lambda q: next_policy(next_state.replace(q=q)).action[:, 0])(q)
        rivals = self._shadow_values(next_decision, params)
        worth = jnp.diag(margin + 2 * params.gamma * u) - params.b * q[:, None] + rivals + rivals @ reactions
        return {"own": jnp.diag(worth), "rivals": jnp.take_along_axis(worth, self.rivals, axis=1)}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """A change's marginal cost is its worth, and each D_ij is what it stands for; over a."""
        cost = 2 * params.gamma * decision.action[:, 0]
        found = {"adjustment": (params.beta * expected["own"] - cost) / params.a}
        if self.concept == "cooperative":
            return found
        values = jnp.take_along_axis(self._shadow_values(decision, params), self.rivals, axis=1)
        return found | {"shadow": (params.beta * expected["rivals"] - values) / params.a}

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """The price, total quantity and joint profit."""
        joint = self.reward(state, action, params).sum()
        return {"price": price(state.q, params), "quantity": state.q.sum(), "joint_profit": joint}

    def linear_quadratic(self, params: Params) -> LinearQuadratic:
        """The same game in matrices, with s = (1, q); NumPy, from concrete parameters. The bounds of u are left out."""
        n = self.num_firms
        a, b, gamma = (float(getattr(params, name)) for name in ("a", "b", "gamma"))
        costs = np.broadcast_to(np.asarray(params.c, float), (n,))
        payoff = np.zeros((n, 2 * n + 1, 2 * n + 1))
        for i in range(n):
            own = 1 + i
            payoff[i, own, 1 : n + 1] -= b / 2
            payoff[i, 1 : n + 1, own] -= b / 2
            payoff[i, 0, own] = payoff[i, own, 0] = (a - costs[i]) / 2
            payoff[i, n + own, n + own] = -gamma
        return LinearQuadratic(np.eye(n + 1), np.eye(n + 1)[:, 1:], payoff)

    def typical_quantity(self, params: Params) -> Float[Array, ""]:
        """Cournot's once, at the mean cost: (a - c) / b (N + 1)."""
        return (params.a - jnp.mean(jnp.asarray(params.c))) / (params.b * (self.num_firms + 1))

    def _shadow_values(self, decision: Decision, params: Params) -> Float[Array, "A A"]:
        """D_ij off the diagonal, 0 on it."""
        n = self.num_firms
        losses: Any = jnp.broadcast_to(jnp.asarray(decision.auxiliary), (n, n - 1))
        return jnp.zeros((n, n), losses.dtype).at[np.arange(n)[:, None], self.rivals].set(-params.a * losses)
