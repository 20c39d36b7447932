"""The loop every learner runs in: collect T steps in N environments, update, again, all under one jit.

It never asks which agent it runs. Nothing inside a chunk calls the host; metrics come back once a chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from ..agents.agent import Agent, Context, check_pair
from ..agents.sharding import replicated
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.environment import Environment, EnvParams
from ..errors import UserError
from .collect import BROKEN, SEED_AXIS, TrainState, check_finite, collect, count_episodes, reset_all
from .distributed import process_group
from .parallel import check_laid_out, check_mesh, keep_in_place, replicate

CONSUMED = "this train state was consumed by an earlier call; go on with the state that call returned"


TrainStep = Callable[..., tuple[TrainState, dict[str, Any]]]


class ChunkSettings(NamedTuple):
    """What a chunk is compiled for; `varied` says which arrays of learner and parameters have an axis of seeds."""

    env: Environment
    agent: Agent
    num_steps: int
    iterations: int
    fresh_episodes: bool
    seeds: bool
    varied: tuple[bool, ...] | None = None


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
    observation, env_state, memory = reset_all(key_reset, env, params, agent, agent_state, num_envs)
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
            divide over the mesh; when called, a state that was consumed already, made for other numbers, or not laid
            out over the mesh.
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
    settings = ChunkSettings(env, static, num_steps, iterations, fresh_episodes, num_seeds > 1)
    run = _runner(dynamic, params, settings, mesh)

    def train_step(state: TrainState, limit: int | None = None) -> tuple[TrainState, dict[str, Array]]:
        counted = state.running_return
        if not isinstance(counted, jax.core.Tracer) and isinstance(counted, jax.Array) and counted.is_deleted():
            raise UserError(CONSUMED)
        check_numbers(state, num_envs, num_seeds)
        check_limit(limit, iterations)
        return run(state, np.int32(limit or iterations))

    return train_step


def _runner(dynamic: PyTree, params: EnvParams, settings: ChunkSettings, mesh: Mesh | None) -> TrainStep:
    """The compiled chunk, on one device or on those of a mesh."""
    if mesh is None or mesh.size == 1:
        return lambda state, limit: run_chunk(state, dynamic, params, limit, settings=settings)
    dynamic, params = replicate((dynamic, params), mesh)
    together = process_group().size == 1

    def run(state: TrainState, limit: np.int32):
        nonlocal together
        if not isinstance(state.running_return, jax.core.Tracer):
            check_laid_out(state, mesh)
        with jax.set_mesh(mesh):
            if not together:  # processes compile for different times, and an exchange of devices is not that patient
                run_chunk.lower(state, dynamic, params, limit, settings=settings).compile()
                process_group().wait()
                together = True
            return run_chunk(state, dynamic, params, limit, settings=settings)

    return run


@functools.partial(jax.jit, static_argnames="settings", donate_argnames="state")
def run_chunk(state: TrainState, dynamic: PyTree, params: EnvParams, limit: Int[Array, ""], *, settings: ChunkSettings):
    """The one compiled function of a run.

    How often its body runs is not known to the compiler: so the same numbers come out however a run is cut into calls.
    """
    numbers, rebuild = jax.tree.flatten((dynamic, params))

    def chunk(state, *numbers):
        dynamic, params = rebuild.unflatten(numbers)
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

    if settings.seeds:
        axes = [0 if varies else None for varies in settings.varied or (False,) * len(numbers)]
        chunk = jax.vmap(chunk, in_axes=(0, *axes), axis_name=SEED_AXIS)
    state, rows = chunk(state, *numbers)
    return keep_in_place(state), replicated(rows)


@functools.partial(jax.jit, static_argnames="settings")  # traced once, though its shapes are asked for first
def _iterate(state: TrainState, dynamic: PyTree, params: EnvParams, *, settings: ChunkSettings):
    """One iteration: a rollout and an update."""
    agent = eqx.combine(dynamic, settings.agent)
    key, key_fresh, key_collect, key_update = jax.random.split(state.key, 4)
    if settings.fresh_episodes:
        num_envs = state.running_return.shape[0]
        observation, env_state, memory = reset_all(key_fresh, settings.env, params, agent, state.agent, num_envs)
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
