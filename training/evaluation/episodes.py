"""Tasks with episodes: mean returns and scores of whole ones."""

from __future__ import annotations

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ...agents.agent import Policy, View
from ...envs.environment import Environment, EnvParams, EnvState, add_agent_axis, drop_agent_axis


def evaluate_episodes(
    env: Environment, params: EnvParams, policies: list[Policy], num_episodes: int, horizon: int | None, seed: int
) -> list[dict]:
    """Scores of policies of one structure over whole episodes, all on the same keys."""
    steps = int(params.max_steps_in_episode) if horizon is None else horizon
    run = functools.partial(play, stack(policies), params, jax.random.key(seed), env=env, n=num_episodes, steps=steps)
    greedy, sampled = (jax.tree.map(np.asarray, run(sample=sample)) for sample in (False, True))
    evaluations = []
    for index in range(len(policies)):
        returns, scores, finished = (values[index] for values in greedy)
        found = {"score": float(scores.mean()), "score_sd": float(scores.std()), "return": float(returns.mean())}
        found |= {"score_sampled": float(sampled[1][index].mean()), "return_sampled": float(sampled[0][index].mean())}
        evaluations.append(found | {"episodes": num_episodes, "finished": float(finished.mean())})
    return evaluations


@eqx.filter_jit
def play(stacked: Policy, params: EnvParams, key: Array, *, env: Environment, n: int, steps: int, sample: bool):
    """Undiscounted returns, scores and whether the end was reached, `[P, N]`."""
    key_reset, key_steps = jax.random.split(key)
    start = jax.vmap(env.reset_env, (0, None))(jax.random.split(key_reset, n), params)[1]

    def simulate(policy):
        act = remembering_action(policy, env, params, sample=sample)

        def step(carry, key_step):
            state, memory, total, done = carry

            def one(k, s, m):
                m, action = act(s, m, jax.random.fold_in(k, 1))
                _, following, reward, terminated, _ = env.step_env(k, s, action, params)
                alive = env.agent_mask(s, params)
                earned = jnp.where(alive, add_agent_axis(env, reward), 0).sum() / jnp.maximum(alive.sum(), 1)
                m = carried_memory(policy, m, s, following, env, params)
                return following, m, earned, terminated | env.is_truncated(following, params)

            following, memory, earned, ends = jax.vmap(one)(jax.random.split(key_step, n), state, memory)
            state = jax.tree.map(
                lambda new, old: jnp.where(done.reshape(done.shape + (1,) * (new.ndim - 1)), old, new), following, state
            )
            return (state, memory, total + jnp.where(done, 0, earned), done | ends), None

        fresh = policy.initial_memory(env.num_agents)
        memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), fresh)
        carry = (start, memory, jnp.zeros((n,), jnp.result_type(float)), jnp.zeros((n,), bool))
        (state, _, total, done), _ = jax.lax.scan(step, carry, jax.random.split(key_steps, steps))
        score = jax.vmap(env.score, (0, None))(state, params) if "score" in env.capabilities else total
        return total, score, done

    return jax.lax.map(simulate, stacked)


def remembering_action(
    policy: Policy, env: Environment, params: EnvParams, *, sample: bool
) -> Callable[[EnvState, PyTree, Array], tuple[PyTree, PyTree]]:
    """The policy as a map from a state, a memory and a key to the next memory and the action that `step` takes."""

    def act(state: EnvState, memory: PyTree, key: Array) -> tuple[PyTree, PyTree]:
        observation = add_agent_axis(env, env.observe(key, state, None, params))
        view = View(observation, env.agent_mask(state, params), env.action_mask(state, params))
        memory, action = policy.act(view, memory, key if sample else None)
        return memory, drop_agent_axis(env, action)

    return act


def carried_memory(
    policy: Policy, memory: PyTree, state: EnvState, following: EnvState, env: Environment, params: EnvParams
) -> PyTree:
    """The memory with which each slot enters the next period, as in training."""
    if not jax.tree.leaves(memory):
        return memory
    source = env.inherits(state, following, params)

    def moved(held: Array, fresh: Array) -> Array:
        inherited = held[jnp.maximum(source, 0)]
        return jnp.where((source >= 0).reshape(-1, *(1,) * (held.ndim - 1)), inherited, fresh)

    return jax.tree.map(moved, memory, policy.initial_memory(env.num_agents))


def stack(policies: list[Policy]) -> Policy:
    """Policies of one structure as one, with a leading axis on every leaf."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
