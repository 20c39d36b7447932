"""Critics: what they see, and the networks of an actor and a critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..envs.environment import Environment, EnvParams, EnvState, add_agent_axis
from .policies.actor import Actor, flat_observation, observation_size
from .policies.heads import Head
from .policies.networks import MLP, Linear
from .policies.planner import Planner, make_planner
from .policies.recurrent import RecurrentActor
from .policies.sets import SetCritic
from .policies.sharing import PerRole, WithId, shared_by

CRITICS = ("local", "global", "global+local")
CRITIC_NETWORKS = {"mlp": MLP, "set": SetCritic}
SHARING = ("shared", "per_role", "per_agent")


class ActorCritic(eqx.Module):
    """The trainable networks, shared by all agents or one of each a role.

    Attributes:
        actor: an `Actor`, `RecurrentActor` or `Planner`, perhaps inside of `WithId` and `PerRole`.
        critic: an `MLP` or `SetCritic`, likewise.
    """

    actor: Any
    critic: Any


class Sight(NamedTuple):
    """What a critic is made for: the options of the learner that decide what it sees.

    Attributes:
        critic: one of `CRITICS`.
        network: a name in `CRITIC_NETWORKS`.
        agent_id: agents see their number.
        sharing: one of `SHARING`.
    """

    critic: str
    network: str = "mlp"
    agent_id: bool = False
    sharing: str = "shared"


def critic_inputs(
    sight: Sight,
    env: Environment,
    params: EnvParams,
    observation: PyTree,
    agent_mask: Bool[Array, "*batch A"],
    env_state: EnvState,
) -> Float[Array, "*batch A S"]:
    """What the critic sees; any leading batch axes."""
    local = flat_observation(observation, agent_mask)
    own_world = type(env).world_state is not Environment.world_state
    if sight.critic == "local" or (env.num_agents == 1 and not own_world):
        return local
    if sight.network == "set":
        return jnp.concatenate([agent_mask[..., None].astype(local.dtype), local], axis=-1)
    if own_world:
        world = lambda s: env.world_state(s, params)  # noqa: E731
        for _ in agent_mask.shape[:-1]:
            world = jax.vmap(world)
        shared = world(env_state)
    else:  # every agent's observation, as it was seen, without what stands in dead slots
        shared = local.reshape(*agent_mask.shape[:-1], -1)
    shared = jnp.broadcast_to(shared[..., None, :], (*agent_mask.shape, shared.shape[-1]))
    return shared if sight.critic == "global" else jnp.concatenate([shared, local], axis=-1)


def inputs_at_reset(sight: Sight, key: Array, env: Environment, params: EnvParams) -> Float[Array, "A S"]:
    """What the critic sees at an episode's start."""
    observation, env_state = env.reset_env(key, params)
    mask = env.agent_mask(env_state, params)
    return critic_inputs(sight, env, params, add_agent_axis(env, observation), mask, env_state)


def roles_of(sharing: str, env: Environment, params: EnvParams) -> tuple[int, ...] | None:
    """Each agent's role under a way of sharing, numbered from 0 without gaps; None where all share one network."""
    if sharing == "per_agent":
        return tuple(range(env.num_agents))
    declared = env.agent_roles(params) if sharing == "per_role" else None
    return None if declared is None else tuple(np.unique(np.asarray(declared), return_inverse=True)[1].tolist())


def make_networks(
    key: Array,
    sight: Sight,
    env: Environment,
    params: EnvParams,
    head: Head,
    widths: Sequence[int],
    activation: str,
    network: str = "mlp",
    distil_steps: int | None = None,
) -> ActorCritic:
    """Actor and critic of an environment, untrained.

    Args:
        key: for the initial weights.
        sight: what the critic sees and who shares networks.
        env, params: the environment.
        head: of its agents.
        widths, activation: of both networks.
        network: the actor's: "mlp"; "gru", with a memory of the first width; or "planner".
        distil_steps: of a planner, as in `make_planner`.
    """
    key_actor, key_critic = jax.random.split(key)
    roles = roles_of(sight.sharing, env, params)
    number = env.num_agents if sight.agent_id else 0
    seen = observation_size(env, params) + number

    def actor(key: Array) -> Actor | RecurrentActor | Planner:
        if network == "planner":
            return make_planner(key, env, seen, widths, activation, distil_steps)
        kind = RecurrentActor if network == "gru" else Actor
        return kind(key, seen, head.size, head.spread(), widths, activation)

    in_critic = 0 if sight.critic == "global" else number
    size = jax.eval_shape(lambda k: inputs_at_reset(sight, k, env, params), key).shape[-1] + in_critic

    def critic(key: Array) -> MLP | SetCritic:
        return CRITIC_NETWORKS[sight.network](key, size, 1, widths, activation, 1.0)

    together = sight.network == "set"
    return ActorCritic(
        _identified(shared_by(roles, actor, key_actor), number),
        _identified(shared_by(roles, critic, key_critic, together=together), in_critic),
    )


def _identified(network: Any, num_agents: int) -> Any:
    return WithId(network, num_agents) if num_agents else network


def last_layer(critic: Any) -> Linear:
    """A critic's output layer, with the axis of roles in front where it has one."""
    if isinstance(critic, WithId):
        return last_layer(critic.inner)
    if isinstance(critic, PerRole):
        return last_layer(critic.members)
    return critic.last if isinstance(critic, SetCritic) else critic.layers[-1]
