"""The states at which residuals are driven to zero, and the ring that remembers where they were large."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams, EnvState
from ...envs.wrappers import innermost, with_innermost
from ...errors import UserError, unknown
from ..agent import check_applies, check_range

if TYPE_CHECKING:
    from .agent import DEQN

SOURCES = ("rollout", "fresh", "box")
REPLAY_SHARE = 0.5
EPSILON = 1e-6


class Ring(NamedTuple):
    """States worth another look.

    Attributes:
        states: `[R, ...]`.
        priorities: `[R]`, the size of the residual when it was last computed; 0 where nothing is stored yet.
        next: where the next state goes.
    """

    states: EnvState
    priorities: Float[Array, " R"]
    next: Int[Array, ""]


class Pool(NamedTuple):
    """The states of one update.

    Attributes:
        states: `[S, ...]`.
        importance: `[S]`, or None where all count the same.
        slots: `[S]`, where in the ring a state is from; R where it is new. None without a ring.
    """

    states: EnvState
    importance: Float[Array, " S"] | None
    slots: Int[Array, " S"] | None


def check_states(agent: DEQN) -> None:
    """Refuse what does not go together, whatever the environment."""
    if agent.states not in SOURCES:
        raise unknown("source of states", str(agent.states), SOURCES)
    check_applies("box_stretch", agent.box_stretch, agent.states == "box", "without states='box'")
    check_range("box_stretch", agent.box_stretch, 0)
    for name in ("fresh_share", "steady_share", "replay_share"):
        check_range(name, getattr(agent, name), 0, 1)
    if sum(shares_of(agent).values()) > 1:
        given = ", ".join(f"{name} = {share:g}" for name, share in shares_of(agent).items())
        raise UserError(f"{given} add up to more than 1")
    check_applies("fresh_share", agent.fresh_share, agent.states != "fresh", "with states='fresh', all of which are")
    check_applies("steady_width", agent.steady_width, agent.steady_share is not None, "without steady_share")
    check_range("steady_width", agent.steady_width, 0)
    check_range("replay_size", agent.replay_size, 1)
    for name in ("replay_share", "replay_exponent", "replay_correction"):
        check_applies(name, getattr(agent, name), agent.replay_size is not None, "without a ring; set replay_size")
    for name in ("replay_exponent", "replay_correction"):
        check_range(name, getattr(agent, name), 0, 1)


def shares_of(agent: DEQN) -> dict[str, float]:
    """The shares of an update's states that are not the rollout's, of those sources that are on."""
    replayed = agent.replay_share if agent.replay_share is not None else REPLAY_SHARE
    shares = {"fresh_share": agent.fresh_share, "steady_share": agent.steady_share}
    shares["replay_share"] = None if agent.replay_size is None else replayed
    return {name: share for name, share in shares.items() if share is not None}


def check_sources(agent: DEQN, env: Environment, params: EnvParams, total: int) -> None:
    """Refuse sources of states that the environment does not have, or that give none of `total` states."""
    for name, share in shares_of(agent).items():
        if round(share * total) < 1:
            raise UserError(f"{name} = {share:g} of {total} states is none; raise it, or leave it out")
    if agent.replay_size is not None:
        if round(shares_of(agent)["replay_share"] * total) == total:
            raise UserError(f"replay_share = {agent.replay_share:g} leaves no new state for the ring; lower it")
        _check_room(agent.replay_size, env, params)
    if agent.steady_share is not None and (not isinstance(env, Economy) or env.steady_state(params) is None):
        raise UserError(f"{env.name} has no steady state, so steady_share does not apply; use fresh_share")


def _check_room(size: int, env: Environment, params: EnvParams) -> None:
    """Refuse a ring that would take more than half of the memory there is, where that is known."""
    one = jax.tree.leaves(jax.eval_shape(env.reset_env, jax.random.key(0), params)[1])
    each = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in one)
    room = (jax.devices()[0].memory_stats() or {}).get("bytes_limit") or _host_memory()
    if room is not None and size * each > room // 2:
        raise UserError(
            f"replay_size = {size} states of {env.name} ({each} bytes each) take {size * each / 2**30:.1f} GiB, more "
            f"than half of the {room / 2**30:.1f} GiB there are; at most {room // 2 // each} fit"
        )


def _host_memory() -> int | None:
    """Bytes of physical memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def gather(
    agent: DEQN,
    visited: EnvState,
    ring: Ring | None,
    env: Environment,
    params: EnvParams,
    key: Array,
    order: Int[Array, " S"],
) -> Pool:
    """The states of an update, as many as were visited.

    Shares of the visited states make way for fresh draws, states near the steady state, and the ring's.

    Args:
        agent: the options.
        visited: `[S, ...]`, of the rollout.
        ring: of earlier updates, or None.
        env, params: the environment.
        key: of the draws.
        order: which visited states make way, the first ones first and for the ring the last.
    """
    key_source, key_fresh, key_steady, key_ring = jax.random.split(key, 4)
    size = jax.tree.leaves(visited)[0].shape[0]
    states = visited
    if agent.states == "box":
        stretch = 1.0 if agent.box_stretch is None else agent.box_stretch
        states = with_innermost(visited, _box(innermost(visited), stretch, key_source))
    elif agent.states == "fresh":
        states = _fresh(env, params, key_source, size)
    counts = {name: round(share * size) for name, share in shares_of(agent).items()}
    if not counts:
        return Pool(states, None, None)
    fresh, steady = counts.get("fresh_share", 0), counts.get("steady_share", 0)
    states = jax.tree.map(lambda x: x[order], states)
    if fresh:
        states = _put(states, _fresh(env, params, key_fresh, fresh), 0)
    if steady:
        states = _put(states, _near_steady(agent, env, params, key_steady, steady), fresh)
    if ring is None:
        return Pool(states, None, None)
    return _with_ring(agent, states, ring, counts["replay_share"], key_ring)


def remember(ring: Ring, pool: Pool, sizes: Float[Array, " S"]) -> Ring:
    """The ring after an update: residuals of its own states refreshed, new states stored over the oldest.

    Args:
        ring: before.
        pool: the update's states.
        sizes: of their residuals.
    """
    assert pool.slots is not None
    capacity = ring.priorities.shape[0]
    priorities = ring.priorities.at[pool.slots].set(sizes + EPSILON, mode="drop")
    new = pool.slots == capacity
    # New states in their order, as many as fit: each gets the next place, the others none.
    rank = jnp.cumsum(new) - 1
    places = jnp.where(new & (rank < capacity), (ring.next + rank) % capacity, capacity)
    states = jax.tree.map(lambda old, x: old.at[places].set(x, mode="drop"), ring.states, pool.states)
    priorities = priorities.at[places].set(sizes + EPSILON, mode="drop")
    return Ring(states, priorities, ((ring.next + jnp.minimum(new.sum(), capacity)) % capacity).astype(jnp.int32))


def empty_ring(agent: DEQN, env: Environment, params: EnvParams) -> Ring | None:
    """A ring without states; None where none is wanted."""
    if agent.replay_size is None:
        return None
    one = env.reset_env(jax.random.key(0), params)[1]
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (agent.replay_size, *x.shape)), one)
    return Ring(states, jnp.zeros(agent.replay_size, jnp.result_type(float)), jnp.int32(0))


def _with_ring(agent: DEQN, states: EnvState, ring: Ring, count: int, key: Array) -> Pool:
    """The last `count` states replaced by the ring's, drawn by priority (Schaul et al. 2016, eq. 1 and section 3.4)."""
    size, capacity = jax.tree.leaves(states)[0].shape[0], ring.priorities.shape[0]
    exponent = 0.6 if agent.replay_exponent is None else agent.replay_exponent
    correction = 0.4 if agent.replay_correction is None else agent.replay_correction
    stored = ring.priorities > 0
    mass = jnp.where(stored, jnp.where(stored, ring.priorities, 1.0) ** exponent, 0.0)
    total = mass.sum()
    cumulative = jnp.cumsum(mass)
    points = jax.random.uniform(key, (count,), mass.dtype) * total
    drawn = jnp.minimum(jnp.searchsorted(cumulative, points, side="right"), capacity - 1)
    filled = total > 0
    chance = mass[drawn] / jnp.maximum(total, jnp.finfo(mass.dtype).tiny)
    weight = (stored.sum() * jnp.maximum(chance, 1e-12)) ** -correction
    weight = jnp.where(filled, weight / jnp.max(weight), 1.0)
    slots = jnp.where(filled, drawn, capacity).astype(jnp.int32)
    visited = jax.tree.map(lambda x: x[size - count :], states)
    replaced = jax.tree.map(lambda x, old: jnp.where(filled, old[drawn], x), visited, ring.states)
    importance = jnp.ones(size, mass.dtype).at[size - count :].set(weight)
    return Pool(
        _put(states, replaced, size - count),
        importance,
        jnp.full(size, capacity, jnp.int32).at[size - count :].set(slots),
    )


def _put(states: EnvState, part: EnvState, at: int) -> EnvState:
    count = jax.tree.leaves(part)[0].shape[0]
    return jax.tree.map(lambda x, y: x.at[at : at + count].set(y), states, part)


def _fresh(env: Environment, params: EnvParams, key: Array, count: int) -> EnvState:
    return jax.vmap(env.reset_env, (0, None))(jax.random.split(key, count), params)[1]


def _near_steady(agent: DEQN, env: Environment, params: EnvParams, key: Array, count: int) -> EnvState:
    """States at a normal distance from the steady state: relative in each real number, absolute where that is 0.

    What wrappers add to a state, a family's parameters say, stays as it is.
    """
    assert isinstance(env, Economy)
    found = env.steady_state(params)
    assert found is not None
    width = 0.05 if agent.steady_width is None else agent.steady_width
    like = jax.eval_shape(env.reset_env, key, params)[1]
    start = jax.tree.map(lambda x, to: jnp.broadcast_to(jnp.asarray(x, to.dtype), (count, *to.shape)), found[0], like)
    leaves, structure = jax.tree.flatten(innermost(start))
    moved = []
    for leaf, k in zip(leaves, jax.random.split(key, len(leaves)), strict=True):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            noise = width * jax.random.normal(k, leaf.shape, leaf.dtype)
            leaf = jnp.where(leaf == 0, noise, leaf * jnp.exp(noise))
        moved.append(leaf)
    return with_innermost(start, jax.tree.unflatten(structure, moved))


def _box(visited: EnvState, stretch: PyTree, key: Array) -> EnvState:
    """Uniform in the smallest box around the visited states, stretched around its middle; logs of positive numbers.

    Of the world itself: what wrappers add, a family's parameters say, is no state to stretch.
    """

    def spread(leaf: Array, key: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        positive = jnp.all(leaf > 0, axis=0)
        x = jnp.where(positive, jnp.log(jnp.where(positive, leaf, 1.0)), leaf)
        low, high = x.min(axis=0), x.max(axis=0)
        middle, half = (low + high) / 2, stretch * (high - low) / 2
        point = middle + half * jax.random.uniform(key, leaf.shape, leaf.dtype, -1.0, 1.0)
        # What never was negative stays so: a limit at 0 is not crossed by stretching.
        level = jnp.where(low >= 0, jnp.maximum(point, 0.0), point)
        return jnp.where(positive, jnp.exp(jnp.where(positive, point, 0.0)), level)

    leaves, structure = jax.tree.flatten(visited)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [spread(leaf, k) for leaf, k in zip(leaves, keys, strict=True)])
