"""Optimality conditions from a reward and a transition alone, by automatic differentiation.

Nothing economic is declared: each agent's first-order condition and the envelope condition of its costates, the
derivatives of its value by the state, follow from the two functions (Pontryagin in discrete time; the envelope theorem
of Benveniste and Scheinkman 1979, Econometrica 47). In a game the rivals' reactions are in the envelope condition,
which makes the solution the Markov-perfect one (Basar and Olsder 1999, chapter 6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ...envs import spaces
from ...envs.complementarity import fischer_burmeister
from ...envs.economy import TEAM_CONCEPTS, Economy
from ...envs.environment import Environment, EnvParams, EnvState, drop_agent_axis
from ...errors import UserError
from .differentiated import Differentiated

SAMPLES = 64
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
        found = {"foc": self._first_order(action, _own(now_a), _own(later_a))}
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
    _check_concept(env)
    dtype = jnp.result_type(float)
    low, high = (jnp.broadcast_to(jnp.asarray(b, dtype), space.shape).ravel() for b in (space.low, space.high))
    probe = _sample(env, params, low, high)
    leaves = _check(probe)
    width = high - low
    if not any(leaves):
        unit, start = jnp.zeros((0,), dtype), jnp.zeros((env.num_agents, 0), dtype)
        positive = jnp.zeros((0,), bool)
        reward_unit, action_unit = jnp.ones((env.num_agents,), dtype), _typical(probe.by_action * width)
    else:
        unit, positive, reward_unit, start = _units(probe, leaves, width)
        action_unit = jnp.broadcast_to(FLOOR * reward_unit[:, None], (env.num_agents, width.size))
    return Derived(unit.size, probe.model.team, leaves, unit, positive, reward_unit, action_unit, start, low, high)


def _own(terms: Float[Array, "A A d"]) -> Float[Array, "A d"]:
    """By one's own action."""
    return jnp.moveaxis(jnp.diagonal(terms), -1, 0)


def _ratio(x: Array, y: Array, floor: Array) -> Array:
    return (x + y) / (jnp.abs(x) + jnp.abs(y) + floor)


# -- what is found out before anything is traced ---------------------------------------------------------------------


class _Probe(NamedTuple):
    """Initial states `[S]` with the central action, random actions and noise, and rewards' slopes there.

    `model` has costates for every real number in the state. `by_state` `[S, A, n]` is at the central action,
    `by_action` `[S, A, d]` by one's own action at random ones.
    """

    model: Differentiated
    states: EnvState
    centre: Float[Array, "A d"]
    actions: Float[Array, "S A d"]
    noise: Array
    by_state: Float[Array, "S A n"]
    by_action: Float[Array, "S A d"]


def _check_concept(env: Environment) -> None:
    known = (*TEAM_CONCEPTS, "mpe", "nash")
    if env.concept in known:
        return
    offered = [name for name in getattr(env, "concepts", ()) if name in known]
    other = f", or concept={offered[0]!r}" if offered else ""
    raise UserError(
        f"{env.name}: conditions='derived' cannot find the {env.concept!r} solution, because reward and transition do "
        f"not say what agents take as given; use conditions='economy'{other}"
    )


def _sample(env: Environment, params: EnvParams, low: Array, high: Array) -> _Probe:
    keys = jax.random.split(jax.random.key(0), (3, SAMPLES))
    states = jax.jit(jax.vmap(lambda k: env.reset_env(k, params)[1]))(keys[0])
    leaves = tuple(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(states))
    if not any(leaves):
        raise UserError(
            f"{env.name}: conditions='derived' differentiates by the state, in which nothing is a real number; train "
            "it with 'mappo' or 'reinforce'"
        )
    model = Differentiated(env, params, leaves, env.concept in TEAM_CONCEPTS)
    centre = jnp.broadcast_to(jnp.ravel(jnp.asarray(env.centre(params), low.dtype)), (env.num_agents, low.size))

    def drawn(state, key_action, key_noise):
        action = jax.random.uniform(key_action, centre.shape, low.dtype, low, high)
        noise = env.shocks(params).sample(key_noise, state) if isinstance(env, Economy) else key_noise
        by_state = model.reward_slopes(state, centre, noise)[0]
        return action, noise, by_state, _own(model.reward_slopes(state, action, noise)[1])

    actions, noise, by_state, by_action = jax.jit(jax.vmap(drawn))(states, keys[1], keys[2])
    return _Probe(model, states, centre, actions, noise, by_state, by_action)


def _check(probe: _Probe) -> tuple[bool, ...]:
    """Refuse what derivatives would get wrong; otherwise, the leaves of the state that have costates."""
    model = probe.model
    env, params, name = model.env, model.params, model.env.name
    if not bool(jnp.any(probe.by_state != 0) | jnp.any(probe.by_action != 0)):
        raise UserError(
            f"{name}: conditions='derived' follows the slope of the reward, which is zero in every state tried; train "
            "it with 'mappo' or 'reinforce'"
        )
    games = env.num_agents > 1 and not model.team
    if games:
        _check_information(probe)
    if isinstance(env, Economy) and env.one_shot:
        return tuple(False for _ in model.leaves)
    if env.concept == "nash":
        if bool(jnp.any(probe.by_state != 0)):
            raise UserError(
                f"{name}: conditions='derived' finds Nash equilibria of games that are played once, and this one goes "
                "on; use conditions='economy'"
            )
        return tuple(False for _ in model.leaves)

    def continuation(state, action, noise):
        x, rebuild = model.split(state)
        following = model.step(state, action, noise)[0]
        slopes = jax.jacrev(lambda x, a: model.step(rebuild(x), a, noise)[1], (0, 1))(x, action)
        return slopes, env.successor(state, following, params) != jnp.arange(env.num_agents)

    slopes, moved = jax.jit(jax.vmap(continuation))(probe.states, probe.actions, probe.noise)
    if any(bool(jnp.any(slope != 0)) for slope in slopes):
        raise UserError(
            f"{name}: its discount varies with state or action, which is worth the value itself and not its slope; "
            "use conditions='economy'"
        )
    if games and bool(jnp.any(moved)):
        raise UserError(f"{name}: conditions='derived' needs agents that keep their slots; use conditions='economy'")
    return _entering(probe, games)


def _check_information(probe: _Probe) -> None:
    """Conditions at one state know all of it: a player who does not see what moves a rival would average over it."""
    model = probe.model

    def seen(state):
        x, rebuild = model.split(state)

        def observed(x):
            observation = jax.tree.leaves(model.env.observe(jax.random.key(0), rebuild(x), None, model.params))
            return jnp.concatenate([leaf.reshape(model.env.num_agents, -1) for leaf in observation], axis=1)

        return jnp.any(jax.jacfwd(observed)(x) != 0, axis=1)

    sees = jnp.any(jax.jit(jax.vmap(seen))(probe.states), axis=0)
    if bool(jnp.any(sees != sees[0])):
        raise UserError(
            f"{model.env.name}: its agents see different parts of the state, and conditions='derived' holds in each "
            "state, not on average over what is hidden; use conditions='economy'"
        )


def _entering(probe: _Probe, games: bool) -> tuple[bool, ...]:
    """Which leaves have costates: real numbers that actions can move, now or later, and that anything depends on.

    The costate of a leaf that no action reaches is in no first-order condition, nor in a costate that is. What depends
    on a leaf is found by making it NaN; in a game an observation counts too.
    """
    model = probe.model
    count = len(model.leaves)

    def outcome(which, state, action, noise):
        leaves, structure = jax.tree.flatten(state)
        spoilt = [jnp.where(which == i, jnp.nan, x) if model.leaves[i] else x for i, x in enumerate(leaves)]
        state, action = jax.tree.unflatten(structure, spoilt), jnp.where(which == count, jnp.nan, action)
        following, discount = model.step(state, action, noise)
        seen = model.env.observe(jax.random.key(0), state, None, model.params) if games else ()
        moved = (jax.tree.leaves(following), (model.reward(state, action, noise), discount, seen))
        return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, moved)

    each = jax.vmap(outcome, in_axes=(None, 0, 0, 0))
    which = np.arange(-1, count + 1)
    found = jax.jit(jax.vmap(each, (0, None, None, None)))(which, probe.states, probe.actions, probe.noise)
    after = jax.tree.map(np.asarray, found)

    def changed(x):
        return np.any((x[1:] != x[:1]).reshape(count + 1, -1), axis=1)

    # [count + 1, count]: whether a leaf, in the last row the action, moves each leaf of the next state.
    moves = np.stack([changed(x) for x in after[0]], axis=1)
    matters = np.any([changed(x) for x in jax.tree.leaves(after)], axis=0)[:count]
    reached = moves[count]
    for _ in range(count):
        reached = reached | np.any(moves[:count][reached], axis=0)
    return tuple(bool(x) for x in np.array(model.leaves) & matters & reached)


def _is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _units(probe: _Probe, leaves: tuple[bool, ...], width: Array) -> tuple[Array, Array, Array, Array]:
    """Of state `[n]` (and which are positive) and reward `[A]`, and the raw costates to start from `[A, n]`."""
    model = Differentiated(probe.model.env, probe.model.params, leaves, probe.model.team)

    # What first-order conditions at the central action ask of a costate beyond the reward's own slope, the least such,
    # by a pseudo-inverse: a costate far above that slope would be built up one period at a time, each with a residual
    # that hardly shows.
    def wanted(state, noise, unit):
        centre = probe.centre
        now = _own(model.reward_slopes(state, centre, noise)[1])
        following, discount = model.step(state, centre, noise)
        worth = discount[:, None] * model.reward_slopes(following, centre, noise)[0]
        later = _own(model.transition_pullback(state, centre, noise, worth)[1])
        moves = jax.jacfwd(lambda a: model.split(model.step(state, a, noise)[0])[0])(centre)
        moves = jnp.moveaxis(moves, 0, -1) / unit * discount[:, None, None]
        return -jnp.einsum("and,ad->an", jnp.linalg.pinv(moves), now + later)

    @jax.jit
    def units(states, noise):
        x = jax.vmap(lambda s: model.split(s)[0])(states)
        by_state = jax.vmap(lambda s, z: model.reward_slopes(s, probe.centre, z)[0])(states, noise)
        size = _size(x)
        unit = jnp.where(size > 0, size, 1)
        reward_unit = _size(by_state * unit).max(axis=1)
        reward_unit = jnp.where(reward_unit > 0, reward_unit, _typical(probe.by_action * width).max(axis=1))
        return (
            unit,
            jnp.all(x > 0, axis=0),
            reward_unit,
            jax.vmap(wanted, (0, 0, None))(states, noise, unit).mean(axis=0),
        )

    unit, positive, reward_unit, start = units(probe.states, probe.noise)
    reward_unit = jnp.maximum(reward_unit, jnp.abs(start).max(axis=1))
    if not bool(jnp.all(jnp.isfinite(unit)) & jnp.all(jnp.isfinite(reward_unit))):
        raise UserError(
            f"{model.env.name}: conditions='derived' needs a reward with a finite slope at the central action; train "
            "it with 'mappo' or 'reinforce'"
        )
    return unit, positive, reward_unit, start / reward_unit[:, None]


def _size(x: Float[Array, "S ..."]) -> Float[Array, "..."]:
    """Root mean square over samples."""
    return jnp.sqrt(jnp.mean(x**2, axis=0))


def _typical(x: Float[Array, "S ..."]) -> Float[Array, "..."]:
    """Median of the absolute value over samples, 1 where that is 0."""
    middle = jnp.median(jnp.abs(x), axis=0)
    return jnp.where(middle > 0, middle, 1)
