"""Optimality conditions from a reward and a transition alone, by automatic differentiation.

Nothing economic is declared: each agent's first-order condition and the envelope condition of its costates, the
derivatives of its value by the state, follow from the two functions (Pontryagin in discrete time; the envelope theorem
of Benveniste and Scheinkman 1979, Econometrica 47). In a game the rivals' reactions are in the envelope condition,
which makes the solution the Markov-perfect one (Basar and Olsder 1999, chapter 6).
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ...envs import spaces
from ...envs.complementarity import fischer_burmeister
from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams, EnvState, drop_agent_axis
from ...errors import UserError
from .differentiated import Differentiated
from .probe import check_concept, checked_leaves, own, sample, typical, units_of

FLOOR = 1e-2
"""Of denominators, as a share of the reward's own scale: costates may cross zero, and so may both terms at once."""

NEAR_ZERO = 1e-2
"""Share of its typical size below which a positive coordinate is no longer what its costate is scaled by."""

Outputs = Callable[[EnvState], tuple[PyTree, Float[Array, "A n"]]]
"""A policy in one state: the action in the environment's own shape, and the raw costate outputs of each agent."""


class Derived(eqx.Module):
    """First-order and envelope conditions of one environment; made by `make_derived`.

    With the discount b, next period's state s' and the costates lambda_i(s) = dV_i(s)/ds, at the current policy pi:

        foc       0 = F_i = r_{i,a_i} + E[b lambda_i(s') . f_{a_i}] inside the bounds; in general
                  FB(a_i - low, -FB(high - a_i, F_i)) = 0, the slacks as shares of the interval;
        envelope  lambda_i = r_{i,s} + E[b lambda_i(s') . f_s]
                             + sum over j other than i of (r_{i,a_j} + E[b lambda_i(s') . f_{a_j}]) pi_{j,s}.

    Both are sums x + y = 0 and become (x + y) / (|x| + |y| + floor), which is between -1 and 1 and has no degenerate
    zero where both terms vanish or explode; the floor is a hundredth of the reward's scale. Without a continuation
    (a game that is played once, an action that moves no state) y is 0, and F_i is r_{i,a_i} / (|r_{i,a_i}| + unit).

    The costate is `r_{i,s}` at the current policy, without a gradient, plus a network in units of reward per unit of
    each state coordinate (its own value where it is positive, else its typical size): it starts with the sign of what
    it must become, where the normalised form has a slope, and near the size that first-order conditions ask for.
    Coordinates that no action moves, now or later, have none: no first-order condition reads it.

    Attributes:
        size: costates of an agent, n: further network outputs.
        team: all agents earn one reward: rivals' terms drop out by the envelope theorem.
        leaves: which leaves of the state have costates.
        state_unit: `[n]`, the typical size of each coordinate.
        positive: `[n]`, coordinates that are above 0 in every initial state.
        reward_unit: `[A]`, what the most important coordinate is worth at its typical size.
        action_unit: `[A, d]`, floors of the first-order conditions' denominators.
        start: `[A, n]`, raw costates of a zero network: about what first-order conditions ask at the central action.
        low, high: `[d]`, an action's bounds.
    """

    size: int = eqx.field(static=True)
    team: bool = eqx.field(static=True)
    leaves: tuple[bool, ...] = eqx.field(static=True)
    state_unit: Float[Array, " n"]
    positive: Bool[Array, " n"]
    reward_unit: Float[Array, " A"]
    action_unit: Float[Array, "A d"]
    start: Float[Array, "A n"]
    low: Float[Array, " d"]
    high: Float[Array, " d"]

    def residuals(
        self,
        outputs: Outputs,
        state: EnvState,
        nodes: Array,
        weights: Float[Array, " J"],
        env: Economy,
        params: EnvParams,
    ) -> dict[str, Array]:
        """The conditions of an economy at one state, expectations taken over nodes of its shock.

        Args:
            outputs: the policy, differentiable by the floating leaves of the state.
            state: one state.
            nodes, weights: of next period's shock, `[J, ...]` and `[J]`.
            env, params: the economy.

        Returns:
            "foc" `[A, d]` and "envelope" `[A, n]`, without the agent axis where there is one agent; "foc" alone where
            there are no costates.
        """
        return self._residuals(outputs, state, nodes, weights, env, params)

    def keyed_residuals(
        self, outputs: Outputs, state: EnvState, keys: Array, env: Environment, params: EnvParams
    ) -> dict[str, Array]:
        """The conditions at one state of an environment without an explicit shock, as `residuals`.

        Each transition is differentiated at a fixed key, and terms are means over keys. Where the environment draws at
        random, the ratio is biased by the variance over the number of keys, also in a product of two groups.

        Args:
            outputs: as for `residuals`.
            state: one state.
            keys: `[K]`.
            env, params: the environment.
        """
        weights = jnp.full(keys.shape, 1 / keys.shape[0], jnp.result_type(float))
        return self._residuals(outputs, state, keys, weights, env, params)

    def costate(self, outputs: Outputs, state: EnvState, env: Environment, params: EnvParams) -> Float[Array, "A n"]:
        """lambda_i at one state: reward per unit of each coordinate."""
        return self._costate(Differentiated(env, params, self.leaves, self.team), outputs, state)

    def _costate(self, model: Differentiated, outputs: Outputs, state: EnvState) -> Float[Array, "A n"]:
        action, raw = outputs(state)
        now = jax.lax.stop_gradient(model.reward_slopes(state, model.flat(action), model.usual_noise)[0])
        return now + self.reward_unit[:, None] * (raw + self.start) / self._scale(model.split(state)[0])

    def _scale(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """What a costate is per: the coordinate itself where it is positive, so that raw outputs are elasticities."""
        return jnp.where(self.positive, jnp.maximum(jnp.abs(x), NEAR_ZERO * self.state_unit), self.state_unit)

    def _residuals(self, outputs, state, nodes, weights, env, params) -> dict[str, Array]:
        model = Differentiated(env, params, self.leaves, self.team)
        x, rebuild = model.split(state)
        action, react = jax.vjp(lambda x: model.flat(outputs(rebuild(x))[0]), x)

        def at(noise):
            now = model.reward_slopes(state, action, noise)
            if not self.size:
                return now, jax.tree.map(jnp.zeros_like, now)
            following, discount = model.step(state, action, noise)
            worth = discount[:, None] * self._costate(model, outputs, following)
            return now, model.transition_pullback(state, action, noise, worth)

        # Every term is [A, ...] by whose value it is of; those by actions are [A, A, d], the second axis whose action.
        terms = jax.vmap(at)(nodes)
        (now_x, now_a), (later_x, later_a) = jax.tree.map(lambda h: jnp.tensordot(weights, h, axes=1), terms)
        found = {"foc": self._first_order(action, own(now_a), own(later_a))}
        if self.size:
            later = now_x + later_x
            if env.num_agents > 1 and not self.team:
                others = 1 - jnp.eye(env.num_agents, dtype=later.dtype)
                later = later + jax.vmap(react)((now_a + later_a) * others[..., None])[0]
            costate = self._costate(model, outputs, state)
            floor = FLOOR * self.reward_unit[:, None]
            scale = self._scale(x)
            found["envelope"] = _ratio(later * scale, -costate * scale, floor)
        alive = env.agent_mask(state, params)[:, None]
        return drop_agent_axis(env, {name: jnp.where(alive, g, 0) for name, g in found.items()})

    def _first_order(self, action, now, later) -> Float[Array, "A d"]:
        """Fischer and Burmeister's function twice: one zero inside the bounds, and the right sign at each of them."""
        width = self.high - self.low
        gain = _ratio(now * width, later * width, self.action_unit)
        below, above = (action - self.low) / width, (self.high - action) / width
        return fischer_burmeister(below, -fischer_burmeister(above, gain))


def make_derived(env: Environment, params: EnvParams) -> Derived:
    """Derived conditions of `env`, with the units of its states and rewards; on the host, from concrete parameters.

    Units are taken from 64 initial states, with the central action: root mean squares, 1 for a coordinate that is
    always 0.

    Raises:
        UserError: the action is not a Box, nothing can be differentiated, no leaf of the state is a real number, the
            concept is not one that reward and transition define, slots change hands, agents see different parts of the
            state, the discount depends on state or action, or rewards do not vary.
    """
    space = env.agent_action_space(params)
    if not isinstance(space, spaces.Box):
        raise UserError(
            f"{env.name}: conditions='derived' differentiates by a continuous action (Box), and its actions are "
            f"{type(space).__name__}; train it with 'mappo' or 'reinforce'"
        )
    if not env.supports_transition_gradients:
        raise UserError(
            f"{env.name}: conditions='derived' needs a differentiable transition, which it does not offer; train it "
            "with 'mappo' or 'reinforce'"
        )
    check_concept(env)
    dtype = jnp.result_type(float)
    low, high = (jnp.broadcast_to(jnp.asarray(b, dtype), space.shape).ravel() for b in (space.low, space.high))
    probe = sample(env, params, low, high)
    leaves = checked_leaves(probe)
    width = high - low
    if not any(leaves):
        unit, start = jnp.zeros((0,), dtype), jnp.zeros((env.num_agents, 0), dtype)
        positive = jnp.zeros((0,), bool)
        reward_unit, action_unit = jnp.ones((env.num_agents,), dtype), typical(probe.by_action * width)
    else:
        unit, positive, reward_unit, start = units_of(probe, leaves, width)
        action_unit = jnp.broadcast_to(FLOOR * reward_unit[:, None], (env.num_agents, width.size))
    return Derived(unit.size, probe.model.team, leaves, unit, positive, reward_unit, action_unit, start, low, high)


def _ratio(x: Array, y: Array, floor: Array) -> Array:
    return (x + y) / (jnp.abs(x) + jnp.abs(y) + floor)
