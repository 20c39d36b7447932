"""Fictitious self-play: rivals act by the average of all past policies, and each agent learns a best response to it.

Brown (1951), "Iterative solution of games by fictitious play"; Heinrich, Lanctot and Silver (2015), "Fictitious
self-play in extensive-form games". In a game whose equilibrium is mixed the current policy goes round in circles; the
average is what settles.

An average of strategies is a lottery over them, drawn once an episode (Heinrich et al., section 3: a mixture by
realisation weights), and no average of parameters. So past actors are kept as they were, a fixed number of them, and a
rival plays by one that is drawn. Nothing is fitted to them, which a supervised average (Heinrich and Silver 2016,
NFSP) would need a second network, a second rate and a store of decisions for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .agent import Policy, View
from .policies.actor import flat_observation
from .policies.heads import Head

OPPONENTS = ("current", "average")
SNAPSHOTS = 32
LEARNER, NOBODY = -1, -2
"""In place of a snapshot's number: the slot whose agent learns, and a slot that has not been given one yet."""


class Past(NamedTuple):
    """A sample of all policies so far: each block of consecutive ones is represented by one of them.

    The policy after n updates weighs n + 1, so that its share in the average is 2 / (n + 2) when it joins: any shares
    that vanish and have no finite sum keep the limits of fictitious play (Leslie and Collins 2006, "Generalised
    weakened fictitious play"), and early policies are forgotten sooner than under equal weights.

    Attributes:
        actors: K networks in one, leaves `[K, ...]`.
        weight: of each one's block, 0 where there is none yet.
        count: how many policies there have been.
        length: policies in a block, a power of 2.
    """

    actors: Any
    weight: Float[Array, " K"]
    count: Int[Array, ""]
    length: Int[Array, ""]


def beginning(actor: Any, size: int | None) -> Past:
    """The past of an untrained actor: itself.

    Args:
        actor: the network.
        size: K, how many are kept, even; None: `SNAPSHOTS`.
    """
    size = SNAPSHOTS if size is None else size
    actors = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), actor)
    weight = jnp.zeros((size,), jnp.result_type(float)).at[0].set(1)
    return Past(actors, weight, jnp.int32(1), jnp.int32(1))


def remembered(past: Past, actor: Any, key: Array) -> Past:
    """The past with one more policy in it.

    Where all blocks are full, neighbours become one, of which either's representative stays. It stays, and a new policy
    takes the place of its block's, with a probability of its share of the weight: so each policy represents its block
    with that of its own, as in a reservoir, but every stretch of the past has its representative.

    Args:
        past: so far.
        actor: the policy's network.
        key: for the lots.
    """
    size = past.weight.shape[0]
    key_pairs, key_block = jax.random.split(key)
    first, second = past.weight[0::2], past.weight[1::2]
    takes_second = jax.random.uniform(key_pairs, first.shape, first.dtype) * (first + second) < second
    halves = jnp.zeros_like(past.weight).at[: size // 2].set(first + second)
    everyone = jnp.arange(size)
    chosen = everyone.at[: size // 2].set(2 * everyone[: size // 2] + takes_second)
    full = past.count == size * past.length
    weight = jnp.where(full, halves, past.weight)
    source = jnp.where(full, chosen, everyone)
    length = jnp.where(full, 2 * past.length, past.length)
    block = past.count // length
    own = (past.count + 1).astype(weight.dtype)
    weight = weight.at[block].add(own)
    enters = jax.random.uniform(key_block, (), weight.dtype) * weight[block] < own

    def kept(old: Array, new: Array) -> Array:
        moved = old[source]
        return moved.at[block].set(jnp.where(enters, new, moved[block]))

    return Past(jax.tree.map(kept, past.actors, actor), weight, past.count + 1, length)


def drawn(past: Past, key: Array, num_agents: int) -> Int[Array, " A"]:
    """Numbers of snapshots, independent, each with its block's share of the weight."""
    upto = jnp.cumsum(past.weight)
    at = jax.random.uniform(key, (num_agents,), upto.dtype) * upto[-1]
    found = jnp.searchsorted(upto, at, side="right")
    return jnp.minimum(found, (past.weight > 0).sum() - 1).astype(jnp.int32)  # rounding can reach the total itself


def seated(past: Past, seat: Int[Array, " A"], mask: Bool[Array, " A"], key: Array) -> Int[Array, " A"]:
    """Who plays each slot: at an episode's start one of the living learns and the others are given snapshots.

    Args:
        past: the sample.
        seat: as it was, `NOBODY` in all slots at an episode's start. Who joins later is a rival.
        mask: the living.
        key: for the draws.
    """
    key_learner, key_rivals = jax.random.split(key)
    rank = jnp.where(mask, jax.random.uniform(key_learner, mask.shape), -1)
    given = drawn(past, key_rivals, mask.shape[0])
    learns = (seat == NOBODY).all() & (jnp.arange(mask.shape[0]) == jnp.argmax(rank))
    return jnp.where(seat == NOBODY, jnp.where(learns, LEARNER, given), seat)


def outputs_of(
    past: Past, seat: Int[Array, " A"], seen: Float[Array, "A in"], *, apart: bool
) -> tuple[Float[Array, "A out"], PyTree]:
    """What each slot's snapshot gives the head, and its spread `[A, ...]`.

    Args:
        past: the sample.
        seat: each slot's snapshot.
        seen: flat observations.
        apart: agents have networks of their own, whose spreads already are `[A, ...]`.
    """

    def own(actor: Any, slot: Array) -> tuple[Array, PyTree]:
        return actor(seen)[slot], jax.tree.map(lambda x: x[slot] if apart else x, actor.spread)

    return jax.vmap(own)(jax.tree.map(lambda x: x[seat], past.actors), jnp.arange(seat.shape[0]))


def joint_outputs(
    actor: Any, past: Past, seat: Int[Array, " A"], seen: Float[Array, "A in"], *, apart: bool
) -> tuple[Float[Array, "A out"], PyTree]:
    """The same where some slots hold the learner, which acts by `actor`."""
    rivals, spreads = outputs_of(past, jnp.maximum(seat, 0), seen, apart=apart)
    learns = seat == LEARNER

    def mine(own: Array, other: Array) -> Array:
        return jnp.where(learns.reshape(-1, *(1,) * (other.ndim - 1)), own, other)

    return mine(actor(seen), rivals), jax.tree.map(mine, actor.spread, spreads)


class AveragePolicy(Policy):
    """The average of all past policies.

    With a key each agent draws one of them and acts by it, for a whole episode where the memory is carried: that is the
    average. Without a key the action is the mean of what they would choose, or of discrete choices the one that most
    weight is on. The mean of actions is the answer where the equilibrium is in pure strategies; of a mixed one no
    deterministic action is.

    Attributes:
        past: the sample of them.
        head: how outputs become actions.
        apart: as in `outputs_of`.
    """

    past: Past
    head: Head
    apart: bool = eqx.field(static=True, default=False)

    def initial_memory(self, num_agents: int) -> Int[Array, " A"]:
        return jnp.full((num_agents,), NOBODY, jnp.int32)

    def act(self, view: View, memory: Int[Array, " A"], key: Array | None = None) -> tuple[Int[Array, " A"], PyTree]:
        if key is None:
            return memory, self._mean(view)
        key_draw, key_act = jax.random.split(key)
        memory = jnp.where(memory == NOBODY, drawn(self.past, key_draw, memory.shape[0]), memory)
        seen = flat_observation(view.observation, view.agent_mask)
        output, spread = outputs_of(self.past, memory, seen, apart=self.apart)
        return memory, self.head.sample(key_act, output, spread, view.action_mask)[0]

    def __call__(self, view: View, key: Array | None = None) -> PyTree:
        return self.act(view, self.initial_memory(view.agent_mask.shape[0]), key)[1]

    def _mean(self, view: View) -> PyTree:
        seen = flat_observation(view.observation, view.agent_mask)
        modes = jax.vmap(lambda actor: self.head.mode(actor(seen), view.action_mask))(self.past.actors)
        share = self.past.weight / self.past.weight.sum()

        def middle(x: Array) -> Array:
            if jnp.issubdtype(x.dtype, jnp.floating):
                return jnp.tensordot(share.astype(x.dtype), x, axes=1)
            votes = jnp.tensordot(share, (x == x[:, None]).astype(share.dtype), axes=1)
            return jnp.take_along_axis(x, jnp.argmax(votes, axis=0)[None], axis=0)[0]

        return jax.tree.map(middle, modes)
