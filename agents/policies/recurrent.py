"""Policies with a memory: a recurrent network that is carried from step to step, and replayed when it is trained."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ...errors import UserError
from ..agent import Policy, View
from .actor import POLICY_GAIN, flat_observation
from .heads import Head
from .networks import MLP, Linear, gru_layers, gru_step
from .sharing import PerRole, WithId


class RecurrentActor(eqx.Module):
    """Trainable part of a policy with a memory: a gated recurrent unit, and an MLP on its state.

    Attributes:
        spread: the head's own trainable leaf.

    Args:
        key: for the initial weights, as in `networks.GRU`.
        size_in: length of one agent's flat observation.
        size_out, spread: of the head.
        widths: the memory's size, then those of dense layers.
        activation: of the dense layers.
    """

    from_input: tuple[Linear, ...]
    from_state: tuple[Linear, ...]
    dense: MLP
    spread: PyTree

    def __init__(self, key: Array, size_in: int, size_out: int, spread: PyTree, widths: Sequence[int], activation: str):
        *keys, key_dense = jax.random.split(key, 7)
        self.from_input, self.from_state = gru_layers(keys, size_in, widths[0])
        self.dense = MLP(key_dense, widths[0], size_out, widths[1:], activation, POLICY_GAIN)
        self.spread = spread

    @property
    def memory_size(self) -> int:
        """Length of one agent's memory."""
        return self.from_state[0].bias.shape[-1]

    def step(
        self, memory: Float[Array, "... H"], inputs: Float[Array, "... in"]
    ) -> tuple[Float[Array, "... H"], Float[Array, "... out"]]:
        """The memory after one more observation, and what the head is given."""
        memory = gru_step(self.from_input, self.from_state, memory, inputs)
        return memory, self.dense(memory)


Recurrent = RecurrentActor | WithId | PerRole


def replay(
    actor: Recurrent,
    memory: Float[Array, "B A H"],
    inputs: Float[Array, "L B A in"],
    source: Int[Array, "L B A"],
) -> Float[Array, "L B A out"]:
    """What a head is given along a chunk of a rollout, the memory carried on as the loop carries it.

    Args:
        actor: a network with a memory.
        memory: before the first step.
        inputs: flat observations.
        source: the slot whose memory each slot takes over after a step; -1 for a fresh one.
    """

    def step(h, now):
        x, from_slot = now
        h, output = actor.step(h, x)
        moved = jnp.take_along_axis(h, jnp.maximum(from_slot, 0)[..., None], axis=-2)
        return jnp.where(from_slot[..., None] >= 0, moved, 0), output

    return jax.lax.scan(step, memory, (inputs, source))[1]


class RecurrentPolicy(Policy):
    """A network with a memory and its head; who uses it carries the memory, by `act`."""

    actor: Recurrent
    head: Head

    def initial_memory(self, num_agents: int) -> Float[Array, "A H"]:
        return jnp.zeros((num_agents, self.actor.memory_size), jnp.result_type(float))

    def act(
        self, view: View, memory: Float[Array, "A H"], key: Array | None = None
    ) -> tuple[Float[Array, "A H"], PyTree]:
        memory, output = self.actor.step(memory, flat_observation(view.observation, view.agent_mask))
        if key is None:
            return memory, self.head.mode(output, view.action_mask)
        return memory, self.head.sample(key, output, self.actor.spread, view.action_mask)[0]

    def __call__(self, view: View, key: Array | None = None) -> PyTree:
        raise UserError("this policy has a memory, which one observation does not hold; use its act(view, memory)")
