"""Who shares a network: agents told apart by a number that they see, or by parameters of their role's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class WithId(eqx.Module):
    """A network whose inputs have the agent's number behind them, one-hot.

    Attributes:
        inner: from the longer inputs.
        num_agents: A, the length of what is appended.
    """

    inner: Any
    num_agents: int = eqx.field(static=True)

    @property
    def spread(self) -> PyTree:
        """The head's own trainable leaf, as `inner` has it."""
        return self.inner.spread

    @property
    def memory_size(self) -> int:
        """Of a network with a memory, as `inner` has it."""
        return self.inner.memory_size

    def _extended(self, inputs: Float[Array, "*batch A in"]) -> Float[Array, "*batch A in+A"]:
        ids = jnp.broadcast_to(jnp.eye(self.num_agents, dtype=inputs.dtype), (*inputs.shape[:-1], self.num_agents))
        return jnp.concatenate([inputs, ids], axis=-1)

    def __call__(self, inputs: Float[Array, "*batch A in"]) -> Float[Array, "*batch A out"]:
        return self.inner(self._extended(inputs))

    def step(
        self, memory: Float[Array, "*batch A H"], inputs: Float[Array, "*batch A in"]
    ) -> tuple[Float[Array, "*batch A H"], Float[Array, "*batch A out"]]:
        """One step of a network with a memory."""
        return self.inner.step(memory, self._extended(inputs))


class PerRole(eqx.Module):
    """Several networks of one structure, one a role; each agent uses its role's.

    Attributes:
        members: a network whose leaves have the axis of roles in front.
        roles: each agent's role.
        together: a network reads the inputs of all agents, rather than of one.
    """

    members: Any
    roles: tuple[int, ...] = eqx.field(static=True)
    together: bool = eqx.field(static=True)

    @property
    def spread(self) -> PyTree:
        """The head's own trainable leaf, of each agent `[A, ...]`."""
        return jax.tree.map(self._of_agents, self.members.spread)

    @property
    def memory_size(self) -> int:
        """Of networks with a memory."""
        return self.members.memory_size

    def _of_agents(self, leaf: Float[Array, "R ..."]) -> Float[Array, "A ..."]:
        return leaf if self.roles == tuple(range(leaf.shape[0])) else leaf[jnp.asarray(self.roles)]

    def __call__(self, inputs: Float[Array, "*batch A in"]) -> Float[Array, "*batch A out"]:
        if not self.together:
            own = jax.tree.map(self._of_agents, self.members)
            return jax.vmap(lambda member, x: member(x), in_axes=(0, -2), out_axes=-2)(own, inputs)
        every = jax.vmap(lambda member: member(inputs))(self.members)
        chosen = every[jnp.asarray(self.roles), ..., jnp.arange(len(self.roles)), :]
        return jnp.moveaxis(chosen, 0, -2)

    def step(
        self, memory: Float[Array, "*batch A H"], inputs: Float[Array, "*batch A in"]
    ) -> tuple[Float[Array, "*batch A H"], Float[Array, "*batch A out"]]:
        """One step of networks with a memory."""
        own = jax.tree.map(self._of_agents, self.members)
        one = jax.vmap(lambda member, h, x: member.step(h, x), in_axes=(0, -2, -2), out_axes=-2)
        return one(own, memory, inputs)


def shared_by(
    roles: Sequence[int] | None, make: Callable[[Array], Any], key: Array, *, together: bool = False
) -> PerRole | Any:
    """One network for all, or one for each role.

    Args:
        roles: of each agent, numbered from 0 without gaps; None: all share one network.
        make: from a key to a network.
        key: for the initial weights.
        together: as in `PerRole`.
    """
    if roles is None:
        return make(key)
    members = jax.vmap(make)(jax.random.split(key, max(roles) + 1))
    return PerRole(members, tuple(roles), together)


def shared_spread(actor: Any) -> PyTree:
    """The trainable leaf of an actor's head as it is stored: with the axis of roles in front where it has one."""
    return _innermost(actor).spread


def with_spread(actor: Any, spread: PyTree) -> Any:
    """The actor with another leaf of its head, as `shared_spread` gives it, or one for all roles."""
    whole = jax.tree.map(lambda new, old: jnp.broadcast_to(new, old.shape), spread, shared_spread(actor))
    return eqx.tree_at(shared_spread, actor, whole)


def _innermost(network: Any) -> Any:
    if isinstance(network, WithId):
        return _innermost(network.inner)
    return _innermost(network.members) if isinstance(network, PerRole) else network
