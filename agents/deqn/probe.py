"""What derived conditions find out about an environment before anything is traced: samples, refusals, units."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...envs.economy import TEAM_CONCEPTS, Economy
from ...envs.environment import Environment, EnvParams, EnvState
from ...errors import UserError
from .differentiated import Differentiated

SAMPLES = 64


class Probe(NamedTuple):
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


def check_concept(env: Environment) -> None:
    """Refuse a concept that reward and transition do not define."""
    known = (*TEAM_CONCEPTS, "mpe", "nash")
    if env.concept in known:
        return
    offered = [name for name in getattr(env, "concepts", ()) if name in known]
    other = f", or concept={offered[0]!r}" if offered else ""
    raise UserError(
        f"{env.name}: conditions='derived' cannot find the {env.concept!r} solution, because reward and transition do "
        f"not say what agents take as given; use conditions='economy'{other}"
    )


def sample(env: Environment, params: EnvParams, low: Array, high: Array) -> Probe:
    """Initial states, actions in bounds and noise, with the reward's slopes there."""
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
        return action, noise, by_state, own(model.reward_slopes(state, action, noise)[1])

    actions, noise, by_state, by_action = jax.jit(jax.vmap(drawn))(states, keys[1], keys[2])
    return Probe(model, states, centre, actions, noise, by_state, by_action)


def checked_leaves(probe: Probe) -> tuple[bool, ...]:
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


def _check_information(probe: Probe) -> None:
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


def _entering(probe: Probe, games: bool) -> tuple[bool, ...]:
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


def units_of(probe: Probe, leaves: tuple[bool, ...], width: Array) -> tuple[Array, Array, Array, Array]:
    """Of state `[n]` (and which are positive) and reward `[A]`, and the raw costates to start from `[A, n]`."""
    model = Differentiated(probe.model.env, probe.model.params, leaves, probe.model.team)

    # What first-order conditions at the central action ask of a costate beyond the reward's own slope, the least such,
    # by a pseudo-inverse: a costate far above that slope would be built up one period at a time, each with a residual
    # that hardly shows.
    def wanted(state, noise, unit):
        centre = probe.centre
        now = own(model.reward_slopes(state, centre, noise)[1])
        following, discount = model.step(state, centre, noise)
        worth = discount[:, None] * model.reward_slopes(following, centre, noise)[0]
        later = own(model.transition_pullback(state, centre, noise, worth)[1])
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
        reward_unit = jnp.where(reward_unit > 0, reward_unit, typical(probe.by_action * width).max(axis=1))
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


def typical(x: Float[Array, "S ..."]) -> Float[Array, "..."]:
    """Median of the absolute value over samples, 1 where that is 0."""
    middle = jnp.median(jnp.abs(x), axis=0)
    return jnp.where(middle > 0, middle, 1)


def own(terms: Float[Array, "A A d"]) -> Float[Array, "A d"]:
    """By one's own action."""
    return jnp.moveaxis(jnp.diagonal(terms), -1, 0)
