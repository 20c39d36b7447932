"""What the networks of a run hold, and what they do, as numbers to draw histograms of."""

from __future__ import annotations

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..agents.agent import Agent, View
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.environment import Environment, EnvParams, add_agent_axis
from .collect import TrainState


def networks(agent_state: PyTree) -> dict[str, PyTree]:
    """What a learner trains, by network: actor, critic, value.

    A learner whose state has no `nets` (a solver) is one network "state", with all of its numbers.
    """
    nets = getattr(agent_state, "nets", None)
    if nets is None:
        return {"state": agent_state}
    if hasattr(nets, "actor"):
        found = {"actor": nets.actor, "critic": nets.critic}
    else:
        found = {"actor": nets}
    critic = getattr(getattr(agent_state, "value", None), "critic", None)
    return found if critic is None else found | {"value": critic}


def parameters(agent_state: PyTree) -> dict[str, np.ndarray]:
    """Trainable numbers by network and layer: "actor/network/layers/0/weight"."""
    return {
        f"{name}{leaf_name}": np.asarray(leaf)
        for name, tree in networks(agent_state).items()
        for leaf_name, leaf in _named(tree).items()
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    }


def distributions(state: TrainState, env: Environment, params: EnvParams, agent: Agent, seeds: bool) -> dict[str, Any]:
    """Everything that histograms are drawn of, by "group/name", over all seeds.

    Args:
        state: the train state of a run that is not under way; keys are left alone.
        env, params, agent: of the run; the agent is prepared.
        seeds: leaves have a leading axis over seeds.

    Returns:
        `parameters/...`; `observation/...` of living agents where the run is; and `action/...`, those that they draw
        there, as in training.
    """
    view, action = _seen_and_done(
        state._replace(env_state=() if isinstance(env, HostEnvironment) else state.env_state), params, agent, env, seeds
    )
    living = np.asarray(view.agent_mask)
    found = {f"parameters/{name}": leaf for name, leaf in parameters(state.agent).items()}
    for group, tree in (("observation", view.observation), ("action", action)):
        for name, leaf in _named(tree).items():
            found[f"{group}{name or '/all'}"] = np.asarray(leaf, float)[living]
    return found


@eqx.filter_jit
def _seen_and_done(state: TrainState, params: EnvParams, agent: Agent, env: Environment, seeds: bool):
    """What agents see, and the actions that they draw, `[N, A, ...]`, after an axis of seeds where there is one."""

    def one(state: TrainState) -> tuple[View, PyTree]:
        num_envs = state.running_return.shape[0]
        observation = jax.vmap(lambda seen: add_agent_axis(env, seen))(state.observation)
        view = View(observation, jnp.ones((num_envs, env.num_agents), bool))
        if not isinstance(env, HostEnvironment):
            living = jax.vmap(env.agent_mask, (0, None))(state.env_state, params)
            view = View(observation, living, jax.vmap(env.action_mask, (0, None))(state.env_state, params))
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), state.iteration), num_envs)
        act = jax.vmap(agent.act, (None, 0, 0, 0))
        return view, act(state.agent, state.memory, view, keys)[1]

    return jax.vmap(one)(state) if seeds else one(state)


def _named(tree: PyTree) -> dict[str, Array]:
    """Leaves by where they are: "/network/layers/0/weight", and "" where the tree is a leaf itself."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"".join(f"/{part}" for part in re.findall(r"\w+", jax.tree_util.keystr(path))): x for path, x in leaves}
