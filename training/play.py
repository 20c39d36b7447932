"""Episodes of a run's policy, step by step: what pictures, lineages and curves over time are made of."""

from __future__ import annotations

import os
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..agents.agent import Policy
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.environment import Environment, EnvParams
from ..errors import UserError
from .evaluation.episodes import carried_memory, remembering_action
from .loop import check_count
from .run import Run, load


class Episode(NamedTuple):
    """One episode of T steps, on the host.

    Attributes:
        state: leaves `[T + 1, ...]`, from reset to the end.
        action: leaves `[T, ...]`, as `step` took them.
        info: leaves `[T, ...]`, what the steps said of themselves.
        reward: `[T]` for one agent, else `[T, A]`.
    """

    state: PyTree
    action: PyTree
    info: PyTree
    reward: np.ndarray


def play(
    run: Run | str | os.PathLike,
    *,
    episodes: int = 1,
    seed: int | None = None,
    horizon: int | None = None,
    untrained: bool = False,
    sampled: bool = False,
    env: Environment | None = None,
) -> list[Episode]:
    """Play whole episodes with a run's policy.

    They are the first of those that `evaluate` scores with the same seed, where it scores episodes.

    Args:
        run: a `Run`, or its folder.
        episodes: how many.
        seed: of the episodes; None takes the run's evaluation's.
        horizon: the longest that one is followed; None: to its end.
        untrained: the policy before training.
        sampled: draw actions as in training, instead of the policy's best.
        env: what is played, where that is not the run's own environment but one that steps as it does.

    Raises:
        UserError: no run folder, a count below 1, or an environment of Gymnasium's, which keeps its states to itself.
    """
    run = run if isinstance(run, Run) else load(run)
    world: Environment = run.env if env is None else env
    check_count("episodes", episodes)
    if isinstance(world, HostEnvironment):
        raise UserError(
            f"{world.name} is stepped by Gymnasium and keeps its states to itself; play it by gymnasium.make"
            f"({world.id!r}, render_mode=...) with run.policy"
        )
    limit = int(run.params.max_steps_in_episode)
    horizon = limit if horizon is None else horizon
    check_count("horizon", horizon)
    policy = run.agent.policy(run.untrained_state if untrained else run.state)
    key = jax.random.key(run.config.evaluation.seed if seed is None else seed)
    return play_policy(policy, world, run.params, key, episodes, min(horizon, limit), sampled=sampled)


def play_policy(
    policy: Policy, env: Environment, params: EnvParams, key: Array, episodes: int, steps: int, *, sampled: bool = False
) -> list[Episode]:
    """Episodes of at most so many steps with any policy.

    Args:
        policy: what acts.
        env, params: what is played, compiled.
        key: of everything random.
        episodes, steps: how many, and how long at most.
        sampled: draw actions, instead of the policy's best.
    """
    shape = {"n": episodes, "steps": steps}
    start, (following, *rest, happened) = _play(policy, params, key, env=env, **shape, sample=sampled)
    state = jax.tree.map(lambda first, later: jnp.concatenate([first[:, None], later], axis=1), start, following)
    lengths = np.asarray(happened).sum(axis=1)
    state, *rest = jax.tree.map(_on_host, (state, *rest))

    def cut(tree: PyTree, index: int, length: int) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[index, :length], tree)

    return [
        Episode(cut(state, index, length + 1), *(cut(each, index, length) for each in rest))
        for index, length in enumerate(lengths)
    ]


def _on_host(leaf: Array) -> Array | np.ndarray:
    return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf)


@eqx.filter_jit
def _play(policy: Policy, params: EnvParams, key: Array, *, env: Environment, n: int, steps: int, sample: bool):
    """First states `[N, ...]`; then next states, actions, infos, rewards and whether the step happened, `[N, T, ...]`.

    Keys are drawn as evaluation draws them.
    """
    key_reset, key_steps = jax.random.split(key)
    start = jax.vmap(env.reset_env, (0, None))(jax.random.split(key_reset, n), params)[1]
    act = remembering_action(policy, env, params, sample=sample)

    def step(carry, key):
        state, memory, done = carry
        memory, action = act(state, memory, jax.random.fold_in(key, 1))
        _, following, reward, terminated, info = env.step_env(key, state, action, params)
        memory = carried_memory(policy, memory, state, following, env, params)
        ends = terminated | env.is_truncated(following, params)
        return (following, memory, done | ends), (following, action, info, reward, ~done)

    def episode(state, keys):
        carry = (state, policy.initial_memory(env.num_agents), jnp.zeros((), bool))
        return jax.lax.scan(step, carry, keys)[1]

    keys = jax.vmap(lambda key: jax.random.split(key, n), out_axes=1)(jax.random.split(key_steps, steps))
    return start, jax.vmap(episode)(start, keys)
