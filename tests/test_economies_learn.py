"""Every economy under its learners for a few iterations: what they find beats what they started from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.deqn import policy_decision
from equimorph.envs.economy import Economy

pytestmark = pytest.mark.slow

# What each is made with: few agents where their number is free.
SMALL = {"Aiyagari-v0": {"equilibrium": "general", "num_households": 8}, "KrusellSmith-v0": {"num_households": 8}}
ECONOMIES = [name for name in equimorph.list_envs() if isinstance(equimorph.make(name)[0], Economy)]
STEPS, PATHS = 32, 256


def trained(env_id, agent, **settings):
    return equimorph.train(env_id, agent, env=SMALL.get(env_id, {}), progress=False, **settings)


def policies(run):
    """The trained policy and the untrained one."""
    return run.agent.policy(run.state), run.agent.policy(run.untrained_state)


def earnings(run):
    """What the policies earn a step along common shocks, `[2, PATHS]`, averaged over agents."""
    env, params = run.env, run.params

    @jax.jit
    def follow(policy):
        decide = policy_decision(policy, env, params)

        def one(key):
            def step(state, key):
                action = decide(state).action
                _, following, reward, _, _ = env.step_env(key, state, action, params)
                return following, jnp.mean(reward)

            start = env.initial_state(jax.random.fold_in(key, 1), params)
            steps = 1 if env.one_shot else STEPS
            return jax.lax.scan(step, start, jax.random.split(key, steps))[1].mean()

        return jax.vmap(one)(jax.random.split(jax.random.key(7), PATHS))

    return np.stack([np.asarray(follow(policy), float) for policy in policies(run)])


@pytest.mark.parametrize("env_id", ECONOMIES)
def test_deqn_reduces_the_residuals(env_id):
    env, _ = equimorph.make(env_id, **SMALL.get(env_id, {}))
    if "conditions" not in env.capabilities:
        pytest.skip("declares no conditions")
    run = trained(env_id, "deqn", iterations=40, rollout={"num_envs": 64, "num_steps": 8}, learning_rate=1e-3)
    residual = np.asarray(run.history["policy/residual"])
    assert residual[-5:].mean() < 0.7 * residual[0]


@pytest.mark.parametrize("env_id", ECONOMIES)
def test_mappo_earns_more(env_id):
    run = trained(env_id, "mappo", iterations=40, rollout={"num_envs": 64, "num_steps": 32})
    after, before = earnings(run)
    gain = after - before
    assert gain.mean() > 3 * gain.std() / np.sqrt(PATHS)
