"""The policy network with its head, as every learner uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ...envs import spaces
from ...envs.economy import Decision
from ...envs.environment import Environment, EnvParams
from ...envs.history import window_of
from ..agent import Policy, View
from .heads import AuxiliaryHead, Head
from .networks import Network, make_network
from .sharing import PerRole, WithId

if TYPE_CHECKING:
    from ..linear import LinearBase  # which builds on this module
    from .planner import Planner  # likewise

POLICY_GAIN = 0.01


class Actor(eqx.Module):
    """Trainable part of a policy: a network on each agent's own observation, shared by all agents.

    Attributes:
        network: from a flat observation to the head's outputs.
        spread: the head's own trainable leaf; None for a deterministic policy.

    Args:
        key: for the initial weights.
        shape_in: of one agent's observation: its flat length, or `observation_shape`.
        size_out, spread: of the head.
        widths, activation, network: as in `make_network`.
    """

    network: Network
    spread: PyTree

    def __init__(
        self,
        key: Array,
        shape_in: int | Sequence[int],
        size_out: int,
        spread: PyTree,
        widths: Sequence[int],
        activation: str,
        network: str = "mlp",
    ):
        shape = (shape_in,) if isinstance(shape_in, int) else tuple(shape_in)
        self.network = make_network(network, key, shape, size_out, widths, activation, POLICY_GAIN)
        self.spread = spread

    def __call__(self, inputs: Float[Array, "... in"]) -> Float[Array, "... out"]:
        return self.network(inputs)


class ActorPolicy(Policy):
    """An actor and its head, ready to act.

    Attributes:
        actor: the trained network, or what chooses one for each agent.
        head: how its outputs become actions.
        deterministic: never samples, whatever key it is given.
        auxiliary: what makes multipliers and prices of the outputs after the head's; None without them.
        linear: a linear rule that the network's outputs are added to; None without one.
    """

    actor: Actor | Planner | WithId | PerRole
    head: Head
    deterministic: bool = eqx.field(static=True, default=False)
    auxiliary: AuxiliaryHead | None = None
    linear: LinearBase | None = None

    def __call__(self, view: View, key: Array | None = None) -> PyTree:
        output = self._output(view)[..., : self.head.size]
        if key is None or self.deterministic:
            return self.head.mode(output, view.action_mask)
        return self.head.sample(key, output, self.actor.spread, view.action_mask)[0]

    def decision(self, view: View) -> Decision:
        return self.decision_and_rest(view)[0]

    def decision_and_rest(self, view: View) -> tuple[Decision, Float[Array, "A rest"]]:
        """The decision, and what the network puts out beyond it."""
        output, size = self._output(view), self.head.size
        action = self.head.mode(output[..., :size], view.action_mask)
        if self.auxiliary is None:
            return Decision(action), output[..., size:]
        end = size + self.auxiliary.size
        return Decision(action, self.auxiliary(output[..., size:end])), output[..., end:]

    def outputs(self, flat: Float[Array, "A in"]) -> Float[Array, "A out"]:
        """What heads are given, from flat observations."""
        output = self.actor(flat)
        return output if self.linear is None else output + self.linear(flat)

    def _output(self, view: View) -> Float[Array, "A out"]:
        return self.outputs(flat_observation(view.observation, view.agent_mask))


def observation_size(env: Environment, params: EnvParams) -> int:
    """Length of one agent's flat observation."""
    return spaces.flat_size(env.agent_observation_space(params))


def observation_shape(env: Environment, params: EnvParams) -> tuple[int, ...]:
    """What a network may know of one agent's observation: `(W, F)` of a history window, else its flat length alone."""
    size = observation_size(env, params)
    window = window_of(env)
    return (size,) if window is None else (window, size // window)


def flat_observation(observation: PyTree, agent_mask: Bool[Array, "*batch A"]) -> Float[Array, "*batch A size"]:
    """Each agent's observation as one vector, zero where the slot is dead, so that garbage there reaches nothing."""
    batch = agent_mask.shape
    parts = [x.reshape(*batch, -1).astype(jnp.result_type(float)) for x in jax.tree.leaves(observation)]
    flat = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
    return jnp.where(agent_mask[..., None], flat, 0)
