"""The policy network with its head, as every learner uses it."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ...envs import spaces
from ...envs.economy import Decision
from ...envs.environment import Environment, EnvParams
from ..agent import Policy, View
from .heads import AuxiliaryHead, Head
from .networks import MLP

POLICY_GAIN = 0.01


class Actor(eqx.Module):
    """Trainable part of a policy: a network on each agent's own observation, shared by all agents.

    Attributes:
        network: from a flat observation to the head's outputs.
        spread: the head's own trainable leaf; None for a deterministic policy.
    """

    network: MLP
    spread: PyTree

    def __init__(self, key: Array, size_in: int, size_out: int, spread: PyTree, widths: Sequence[int], activation: str):
        self.network = MLP(key, size_in, size_out, widths, activation, POLICY_GAIN)
        self.spread = spread

    def __call__(self, inputs: Float[Array, "... in"]) -> Float[Array, "... out"]:
        return self.network(inputs)


class ActorPolicy(Policy):
    """An actor and its head, ready to act.

    Attributes:
        actor: the trained network.
        head: how its outputs become actions.
        deterministic: never samples, whatever key it is given.
        auxiliary: what makes multipliers and prices of the outputs after the head's; None without them.
    """

    actor: Actor
    head: Head
    deterministic: bool = eqx.field(static=True, default=False)
    auxiliary: AuxiliaryHead | None = None

    def __call__(self, view: View, key: Array | None = None) -> PyTree:
        output = self._output(view)[..., : self.head.size]
        if key is None or self.deterministic:
            return self.head.mode(output, view.action_mask)
        return self.head.sample(key, output, self.actor.spread, view.action_mask)[0]

    def decision(self, view: View) -> Decision:
        output = self._output(view)
        action = self.head.mode(output[..., : self.head.size], view.action_mask)
        return Decision(action, None if self.auxiliary is None else self.auxiliary(output[..., self.head.size :]))

    def _output(self, view: View) -> Float[Array, "A out"]:
        return self.actor(flat_observation(view.observation, view.agent_mask))


def observation_size(env: Environment, params: EnvParams) -> int:
    """Length of one agent's flat observation."""
    return spaces.flat_size(env.agent_observation_space(params))


def flat_observation(observation: PyTree, agent_mask: Bool[Array, "*batch A"]) -> Float[Array, "*batch A size"]:
    """Each agent's observation as one vector, zero where the slot is dead, so that garbage there reaches nothing."""
    batch = agent_mask.shape
    parts = [x.reshape(*batch, -1).astype(jnp.result_type(float)) for x in jax.tree.leaves(observation)]
    flat = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
    return jnp.where(agent_mask[..., None], flat, 0)
