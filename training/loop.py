"""The loop every learner runs in: collect T steps in N environments, update, again, all under one jit.

It never asks which agent it runs. Nothing inside a chunk calls the host; metrics come back once a chunk.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..agents.agent import Agent, Context, Rollout, View, check_pair
from ..agents.sharding import replicated, spread
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.environment import Environment, EnvParams, add_agent_axis, drop_agent_axis
from ..errors import UserError
from .parallel import check_mesh, keep_in_place, replicate

SEED_AXIS = "seed"

BROKEN, BROKEN_ENV = "check/broken", "check/env"
"""Metrics of the loop itself: whether something was not finite (-1: the iteration did not run), and where."""

CONSUMED = "this train state was consumed by an earlier call; go on with the state that call returned"


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


TrainStep = Callable[..., tuple[TrainState, dict[str, Any]]]


class _Settings(NamedTuple):
    """What a chunk is compiled for."""

    env: Environment
    agent: Agent
    num_steps: int
    iterations: int
    fresh_episodes: bool
    seeds: bool


def create_train_state(
    env: Environment,
    params: EnvParams,
    agent: Agent,
    *,
    num_envs: int,
    num_iterations: int,
    seed: int = 0,
    num_seeds: int = 1,
) -> TrainState:
    """The state before the first iteration.

    Args:
        env, params, agent: the pair; what does not fit is refused by `make_train_step`.
        num_envs: N environments, stepped together.
        num_iterations: updates that schedules are laid out over.
        seed: of everything random.
        num_seeds: above 1, every leaf has a leading axis of that length; seed i alone is `seed + i`.

    Raises:
        UserError: a count below 1.
    """
    for name, value in (("num_envs", num_envs), ("num_iterations", num_iterations), ("num_seeds", num_seeds)):
        check_count(name, value)
    if isinstance(env, HostEnvironment):
        from .host import create_host_state

        return create_host_state(env, params, agent, num_envs, num_iterations, seed, num_seeds)
    agent = agent.prepare(env, params)
    dynamic, static = eqx.partition(agent, eqx.is_array)
    create = functools.partial(_create, env=env, agent=static, num_envs=num_envs)
    if num_seeds == 1:
        return create(jax.random.key(seed), params, dynamic, jnp.int32(num_iterations))
    keys = jax.vmap(jax.random.key)(np.arange(seed, seed + num_seeds, dtype=np.uint32))
    create_all = jax.vmap(create, in_axes=(0, None, None, None))
    return create_all(keys, params, dynamic, jnp.int32(num_iterations))


@functools.partial(jax.jit, static_argnames=("env", "agent", "num_envs"))
def _create(key, params, dynamic, num_iterations, *, env: Environment, agent: Agent, num_envs: int) -> TrainState:
    agent = eqx.combine(dynamic, agent)
    key_agent, key_reset, key = jax.random.split(key, 3)
    agent_state = agent.init(key_agent, env, params)
    observation, env_state, memory = _reset(key_reset, env, params, agent, agent_state, num_envs)
    return TrainState(
        agent=agent_state,
        env_state=env_state,
        observation=observation,
        memory=memory,
        running_return=jnp.zeros((num_envs,), jnp.result_type(float)),
        running_length=jnp.zeros((num_envs,), jnp.int32),
        key=key,
        iteration=jnp.int32(0),
        num_iterations=num_iterations,
    )


def make_train_step(
    env: Environment,
    params: EnvParams,
    agent: Agent,
    *,
    num_envs: int,
    num_steps: int,
    iterations: int = 1,
    fresh_episodes: bool = False,
    num_seeds: int = 1,
    mesh: Mesh | None = None,
) -> TrainStep:
    """The chunk: `iterations` times collect and update, in one compiled call that consumes its argument.

    Args:
        env, params, agent: checked against each other here, before anything is traced.
        num_envs: N environments, as in `create_train_state`.
        num_steps: T steps in each, an iteration.
        iterations: how many iterations a call runs.
        fresh_episodes: every rollout starts from reset.
        num_seeds: as in `create_train_state`.
        mesh: of `parallel.make_mesh`, for a state that `parallel.shard` has laid out over it; None: one device.

    Returns:
        `train_step(state, limit=None) -> (state, metrics)`, which runs `limit` iterations where that is fewer. Metrics
        have a leading axis `[iterations]` (after `[num_seeds]`, if there are several). `episode/return_sum`,
        `episode/length_sum` (and `episode/score_sum`) are sums over the `episode/finished` episodes that ended, in each
        iteration. `check/broken` is 0 while losses, gradients, observations and rewards are finite, and `check/env`
        the first environment whose are not, else -1. The chunk ends with the first iteration in which something is
        not finite, of any seed; rows of iterations that did not run have -1 in `check/broken`.

    Raises:
        UserError: the pair does not fit, a count below 1, rewards of the wrong shape, or environments that do not
            divide over the mesh; when called, a state that was consumed already or made for other numbers.
    """
    counts = {"num_envs": num_envs, "num_steps": num_steps, "iterations": iterations, "num_seeds": num_seeds}
    for name, value in counts.items():
        check_count(name, value)
    check_pair(agent, env, params, num_steps, num_envs)
    if mesh is not None:
        check_mesh(mesh, env, num_envs)
    if isinstance(env, HostEnvironment):
        from .host import make_host_step

        return make_host_step(env, params, agent, num_envs, num_steps, iterations, fresh_episodes, num_seeds)
    _check_reward(env, params)
    agent = agent.prepare(env, params)
    dynamic, static = eqx.partition(agent, eqx.is_array)
    settings = _Settings(env, static, num_steps, iterations, fresh_episodes, num_seeds > 1)
    on_devices = contextlib.nullcontext
    if mesh is not None and mesh.size > 1:
        dynamic, params = replicate((dynamic, params), mesh)
        on_devices = functools.partial(jax.set_mesh, mesh)

    def train_step(state: TrainState, limit: int | None = None) -> tuple[TrainState, dict[str, Array]]:
        counted = state.running_return
        if not isinstance(counted, jax.core.Tracer) and isinstance(counted, jax.Array) and counted.is_deleted():
            raise UserError(CONSUMED)
        check_numbers(state, num_envs, num_seeds)
        check_limit(limit, iterations)
        with on_devices():
            return _run_chunk(state, dynamic, params, np.int32(limit or iterations), settings=settings)

    return train_step


@functools.partial(jax.jit, static_argnames="settings", donate_argnames="state")
def _run_chunk(state: TrainState, dynamic: PyTree, params: EnvParams, limit: Int[Array, ""], *, settings: _Settings):
    """The one compiled function of a run.

    How often its body runs is not known to the compiler: so the same numbers come out however a run is cut into calls.
    """

    def chunk(state):
        iterate = functools.partial(_iterate, dynamic=dynamic, params=params, settings=settings)
        shapes = jax.eval_shape(iterate, state)[1]
        rows = jax.tree.map(lambda like: jnp.zeros((settings.iterations, *like.shape), like.dtype), shapes)
        rows[BROKEN] = jnp.full_like(rows[BROKEN], -1)

        def body(carry):
            done, _, state, rows = carry
            state, metrics = iterate(state)
            rows = jax.tree.map(lambda row, metric: row.at[done].set(metric), rows, metrics)
            broken = metrics[BROKEN]
            broken = jax.lax.psum(broken, SEED_AXIS) if settings.seeds else broken
            return done + 1, broken > 0, state, rows

        carry = (jnp.int32(0), jnp.zeros((), bool), state, rows)
        _, _, state, rows = jax.lax.while_loop(lambda c: (c[0] < limit) & ~c[1], body, carry)
        return state, rows

    state, rows = jax.vmap(chunk, axis_name=SEED_AXIS)(state) if settings.seeds else chunk(state)
    return keep_in_place(state), replicated(rows)


@functools.partial(jax.jit, static_argnames="settings")  # traced once, though its shapes are asked for first
def _iterate(state: TrainState, dynamic: PyTree, params: EnvParams, *, settings: _Settings):
    """One iteration: a rollout and an update."""
    agent = eqx.combine(dynamic, settings.agent)
    key, key_fresh, key_collect, key_update = jax.random.split(state.key, 4)
    if settings.fresh_episodes:
        num_envs = state.running_return.shape[0]
        observation, env_state, memory = _reset(key_fresh, settings.env, params, agent, state.agent, num_envs)
        state = state._replace(
            observation=observation,
            env_state=env_state,
            memory=memory,
            running_return=jnp.zeros_like(state.running_return),
            running_length=jnp.zeros_like(state.running_length),
        )
    state, rollout, ended = collect(state, key_collect, settings.env, params, agent, settings.num_steps, settings.seeds)
    state, episodes = count_episodes(state, ended)
    context = Context(settings.env, params, state.iteration, state.num_iterations)
    agent_state, metrics = agent.update(state.agent, rollout, context, key_update)
    metrics = {**metrics, **episodes, **check_finite(metrics, ended)}
    return state._replace(agent=agent_state, key=key, iteration=state.iteration + 1), metrics


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
            fresh = _reset(key_reset, env, params, agent, state.agent, num_envs)
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


def _reset(key, env: Environment, params: EnvParams, agent: Agent, agent_state: PyTree, num_envs: int):
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


def check_count(name: str, value: Any) -> None:
    """Raise `UserError` unless `value` is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")


def check_limit(limit: Any, iterations: int) -> None:
    """Raise `UserError` unless `limit` is None or a number of iterations that a chunk of `iterations` can run."""
    if limit is not None:
        check_count("limit", limit)
        if limit > iterations:
            raise UserError(f"limit = {limit} must not exceed the {iterations} iterations that the step was made for")


def check_numbers(state: TrainState, num_envs: int, num_seeds: int) -> None:
    """Raise `UserError` unless a state was made for these numbers."""
    expected = (num_seeds, num_envs) if num_seeds > 1 else (num_envs,)
    if state.running_return.shape != expected:
        raise UserError(
            f"the train state holds environments of shape {state.running_return.shape}, but make_train_step was "
            f"told {expected} (num_seeds, num_envs); give both the same numbers"
        )


def _check_reward(env: Environment, params: EnvParams) -> None:
    """A reward of the wrong shape would broadcast silently; it is looked at once."""
    key = jax.random.key(0)
    state = jax.eval_shape(env.reset_env, key, params)[1]
    action = jax.eval_shape(env.action_space(params).sample, key)
    reward = jax.eval_shape(env.step_env, key, state, action, params)[2]
    expected = () if env.num_agents == 1 else (env.num_agents,)
    if reward.shape != expected:
        raise UserError(
            f"{env.name}: rewards have shape {reward.shape}; with {env.num_agents} agents it must be {expected}"
        )
