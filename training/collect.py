"""One rollout: T steps of N environments under a policy, resets where they are due, and what is counted on the way."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..agents.agent import Agent, Rollout, View
from ..agents.sharding import spread
from ..envs.environment import Environment, EnvParams, add_agent_axis, drop_agent_axis

SEED_AXIS = "seed"

BROKEN, BROKEN_ENV = "check/broken", "check/env"
"""Metrics of the loop itself: whether something was not finite (-1: the iteration did not run), and where."""


class TrainState(NamedTuple):
    """The whole state of a run: donated, checkpointed and vmapped over seeds as one.

    Attributes:
        agent: the agent's state.
        env_state, observation: `[N, ...]`, as `step_env` returns them.
        memory: `[N, A, ...]`.
        running_return, running_length: `[N]`, of the episodes under way.
        key: of the next iteration.
        iteration: updates done; `num_iterations` are planned, for schedules.
    """

    agent: PyTree
    env_state: PyTree
    observation: PyTree
    memory: PyTree
    running_return: Float[Array, " N"]
    running_length: Int[Array, " N"]
    key: Array
    iteration: Int[Array, ""]
    num_iterations: Int[Array, ""]


class Ended(NamedTuple):
    """What counting episodes needs of a rollout, `[T, N]`.

    Attributes:
        earned: the mean reward of the living.
        done: whether the episode ended with this step.
        score: of the episodes that did, 0 elsewhere; None where the environment has none.
        broken: where an observation or a reward is not finite.
    """

    earned: Float[Array, "T N"]
    done: Bool[Array, "T N"]
    score: Float[Array, "T N"] | None
    broken: Bool[Array, "T N"]


def collect(
    state: TrainState,
    key: Array,
    env: Environment,
    params: EnvParams,
    agent: Agent,
    num_steps: int,
    under_seeds: bool = False,
) -> tuple[TrainState, Rollout, Ended]:
    """T steps of every environment with the current policy, with a reset only where one is due.

    Args:
        under_seeds: the call is vmapped over the axis `SEED_AXIS`.
    """
    num_envs = state.running_return.shape[0]
    with_agents = jax.vmap(functools.partial(add_agent_axis, env))

    def step(carry, key_step):
        env_state, observation, memory = carry
        key_act, key_env, key_reset = jax.random.split(key_step, 3)
        view = View(
            with_agents(observation),
            jax.vmap(env.agent_mask, (0, None))(env_state, params),
            jax.vmap(env.action_mask, (0, None))(env_state, params),
        )
        act = jax.vmap(agent.act, (None, 0, 0, 0))
        next_memory, action, extras = act(state.agent, memory, view, jax.random.split(key_act, num_envs))
        next_observation, experience = _step_environments(
            jax.random.split(key_env, num_envs), env_state, action, env, params
        )
        next_state = experience["next_env_state"]
        next_memory = _move_memory(next_memory, env_state, next_state, env, params, agent, state.agent)
        done = experience["terminated"] | experience["truncated"]
        due = jax.lax.psum(done.any().astype(jnp.int32), SEED_AXIS) > 0 if under_seeds else done.any()

        def reset():
            fresh = reset_all(key_reset, env, params, agent, state.agent, num_envs)
            return _where(done, fresh, (next_observation, next_state, next_memory))

        after = jax.lax.cond(due, reset, lambda: (next_observation, next_state, next_memory))
        stored = Rollout(
            view=view,
            action=action,
            next_observation=with_agents(next_observation),
            env_state=env_state,
            memory=memory,
            extras=extras,
            **experience,
        )
        return (after[1], after[0], after[2]), (stored, _ended(stored, done, env, params))

    carry = spread((state.env_state, state.observation, state.memory))
    carry, (rollout, ended) = jax.lax.scan(step, carry, jax.random.split(key, num_steps))
    rollout, ended = spread((rollout, ended), axis=1)
    env_state, observation, memory = carry
    return state._replace(env_state=env_state, observation=observation, memory=memory), rollout, ended


def _step_environments(keys, env_state, action, env: Environment, params: EnvParams) -> tuple[PyTree, dict[str, Any]]:
    """One transition of every environment, before any reset: what it looks like, and the rest with the agent axis."""

    def one(key, state, act):
        observation, next_state, reward, terminated, _ = env.step_env(key, state, drop_agent_axis(env, act), params)
        discount = env.step_discount(state, next_state, params)
        return observation, {
            "next_env_state": next_state,
            "reward": add_agent_axis(env, reward),
            "discount": jnp.broadcast_to(discount, (env.num_agents,)),
            "terminated": terminated,
            "truncated": env.is_truncated(next_state, params),
            "successor": env.successor(state, next_state, params),
        }

    return jax.vmap(one)(keys, env_state, action)


def reset_all(key, env: Environment, params: EnvParams, agent: Agent, agent_state: PyTree, num_envs: int):
    """Fresh observations, states and memories of all N environments."""
    observation, env_state = jax.vmap(env.reset_env, (0, None))(jax.random.split(key, num_envs), params)
    memory = agent.initial_memory(agent_state, env, params)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *x.shape)), memory)
    return observation, env_state, memory


def _move_memory(memory, env_state, next_state, env: Environment, params: EnvParams, agent: Agent, agent_state):
    """Recurrent memory follows the agents: along `inherits`, fresh where a slot's holder is new."""
    if not jax.tree.leaves(memory):
        return memory

    def one(m, state, following):
        source = env.inherits(state, following, params)
        moved = jax.tree.map(lambda x: x[jnp.maximum(source, 0)], m)
        return _where(source < 0, agent.initial_memory(agent_state, env, params), moved)

    return jax.vmap(one)(memory, env_state, next_state)


def _ended(step: Rollout, done: Bool[Array, " N"], env: Environment, params: EnvParams) -> Ended:
    """What counting needs of one step, `[N]`."""
    mask = step.view.agent_mask
    earned = jnp.where(mask, step.reward, 0).sum(-1)
    if env.num_agents > 1:
        earned = earned / jnp.maximum(mask.sum(-1), 1)
    living = (jax.vmap(env.agent_mask, (0, None))(step.next_env_state, params), mask)
    broken = ~finite_in_each((step.next_observation, step.reward), living)
    if "score" not in env.capabilities:
        return Ended(earned, done, None, broken)
    score = jax.vmap(env.score, (0, None))(step.next_env_state, params)
    return Ended(earned, done, jnp.where(done, score, 0), broken)


def count_episodes(state: TrainState, ended: Ended) -> tuple[TrainState, dict[str, Array]]:
    """Sums over the episodes that ended in a rollout, and what those under way carry on.

    What finished episodes earned is all that was earned, and carried in, less what is carried out: so that only the
    latter needs a pass in time.
    """
    earned, done, scores, _ = ended

    def carry_on(running, step):
        reward, ends = step
        return (jnp.where(ends, 0, running[0] + reward), jnp.where(ends, 0, running[1] + 1)), None

    start = (state.running_return, state.running_length)
    (total, length), _ = jax.lax.scan(carry_on, start, (earned, done), unroll=8)
    sums = {
        "episode/finished": done.sum(),
        "episode/return_sum": earned.sum() + state.running_return.sum() - total.sum(),
        "episode/length_sum": done.size + state.running_length.sum() - length.sum(),
    }
    if scores is not None:
        sums["episode/score_sum"] = scores.sum()
    return state._replace(running_return=total, running_length=length), sums


def finite_in_each(trees: Sequence[PyTree], living: Sequence[Bool[Array, "N A"]]) -> Bool[Array, " N"]:
    """Where all floats of living agents are finite, in each environment; leaves are `[N, A, ...]`."""
    flags = [jnp.ones(living[0].shape[:1], bool)]
    for tree, alive in zip(trees, living, strict=True):
        for leaf in jax.tree.leaves(tree):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                flags.append((jnp.isfinite(leaf).reshape(*alive.shape, -1).all(axis=-1) | ~alive).all(axis=-1))
    return functools.reduce(jnp.logical_and, flags)


def check_finite(metrics: dict[str, Array], ended: Ended) -> dict[str, Array]:
    """The loop's own metrics: whether a loss, a gradient, an observation or a reward is not finite, and where."""
    losses = [value for name, value in metrics.items() if name.startswith("loss/")]
    lost = ~functools.reduce(jnp.logical_and, [jnp.isfinite(loss).all() for loss in losses], jnp.ones((), bool))
    where = ended.broken.any(axis=0)
    broken = lost | where.any()
    first = jnp.where(where.any(), jnp.argmax(where), -1)
    return {BROKEN: broken.astype(jnp.int32), BROKEN_ENV: first.astype(jnp.int32)}


def _where(condition: Bool[Array, " N"], chosen: PyTree, otherwise: PyTree) -> PyTree:
    """Leaf by leaf along the first axis."""

    def select(a, b):
        return jnp.where(condition.reshape(condition.shape + (1,) * (b.ndim - condition.ndim)), a, b)

    return jax.tree.map(select, chosen, otherwise)
