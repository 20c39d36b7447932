"""Tasks with episodes: mean returns and scores of whole ones."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...agents.agent import Policy
from ...envs.environment import Environment, EnvParams, add_agent_axis
from .simulate import policy_action


def evaluate_episodes(
    env: Environment, params: EnvParams, policies: list[Policy], num_episodes: int, horizon: int | None, seed: int
) -> list[dict]:
    """Scores of policies of one structure over whole episodes, all on the same keys."""
    steps = int(params.max_steps_in_episode) if horizon is None else horizon
    run = functools.partial(
        _episodes, stack(policies), params, jax.random.key(seed), env=env, n=num_episodes, steps=steps
    )
    greedy, sampled = (jax.tree.map(np.asarray, run(sample=sample)) for sample in (False, True))
    evaluations = []
    for index in range(len(policies)):
        returns, scores, finished = (values[index] for values in greedy)
        found = {"score": float(scores.mean()), "score_sd": float(scores.std()), "return": float(returns.mean())}
        found |= {"score_sampled": float(sampled[1][index].mean()), "return_sampled": float(sampled[0][index].mean())}
        evaluations.append(found | {"episodes": num_episodes, "finished": float(finished.mean())})
    return evaluations


@eqx.filter_jit
def _episodes(stacked: Policy, params: EnvParams, key: Array, *, env: Environment, n: int, steps: int, sample: bool):
    """Undiscounted returns, scores and whether the end was reached, `[P, N]`."""
    key_reset, key_steps = jax.random.split(key)
    start = jax.vmap(env.reset_env, (0, None))(jax.random.split(key_reset, n), params)[1]

    def simulate(policy):
        act = policy_action(policy, env, params, sample=sample)

        def step(carry, key_step):
            state, total, done = carry

            def one(k, s):
                _, following, reward, terminated, _ = env.step_env(k, s, act(s, jax.random.fold_in(k, 1)), params)
                alive = env.agent_mask(s, params)
                earned = jnp.where(alive, add_agent_axis(env, reward), 0).sum() / jnp.maximum(alive.sum(), 1)
                return following, earned, terminated | env.is_truncated(following, params)

            following, earned, ends = jax.vmap(one)(jax.random.split(key_step, n), state)
            state = jax.tree.map(
                lambda new, old: jnp.where(done.reshape(done.shape + (1,) * (new.ndim - 1)), old, new), following, state
            )
            return (state, total + jnp.where(done, 0, earned), done | ends), None

        carry = (start, jnp.zeros((n,), jnp.result_type(float)), jnp.zeros((n,), bool))
        (state, total, done), _ = jax.lax.scan(step, carry, jax.random.split(key_steps, steps))
        score = jax.vmap(env.score, (0, None))(state, params) if "score" in env.capabilities else total
        return total, score, done

    return jax.lax.map(simulate, stacked)


def stack(policies: list[Policy]) -> Policy:
    """Policies of one structure as one, with a leading axis on every leaf."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
