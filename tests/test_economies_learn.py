"""Every economy under its learners for a few iterations: what they find beats what they started from.

In games a better policy is a less exploitable one: profits fall as firms compete.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.deqn import policy_decision
from equimorph.envs import catalog

pytestmark = pytest.mark.slow

# What each is made with: few agents where their number is free.
SMALL = {"Aiyagari-v0": {"equilibrium": "general", "num_households": 8}, "KrusellSmith-v0": {"num_households": 8}}
ECONOMIES = [name for name in equimorph.list_envs() if ".economies." in str(catalog.spec(name).entry_point)]
# Where forty iterations are too few for a learner of rewards. The first three start at the steady state's action, which
# costs less than a tenth of a percent of consumption; in the others the value of what is saved is learnt too slowly.
LONGER = ("Growth-v0", "RBCLabor-v0", "IRBC-v0", "Aiyagari-v0", "KrusellSmith-v0", "StochasticAK-v0")
STEPS, PATHS = 300, 256


def trained(env_id, agent, **settings):
    return equimorph.train(env_id, agent, env=SMALL.get(env_id, {}), progress=False, **settings)


def policies(run):
    """The trained policy and the untrained one."""
    return run.agent.policy(run.state), run.agent.policy(run.untrained_state)


def earnings(run):
    """Discounted rewards of the policies along common shocks, `[2, PATHS]`, averaged over agents."""
    env, params = run.env, run.params

    @jax.jit
    def follow(policy):
        decide = policy_decision(policy, env, params)

        def one(key):
            def step(carry, key):
                state, weight = carry
                _, following, reward, _, _ = env.step_env(key, state, decide(state).action, params)
                discount = jnp.mean(env.step_discount(state, following, params))
                return (following, weight * discount), weight * jnp.mean(reward)

            start = env.initial_state(jax.random.fold_in(key, 1), params)
            keys = jax.random.split(key, 1 if env.one_shot else STEPS)
            return jax.lax.scan(step, (start, jnp.ones(())), keys)[1].sum()

        return jax.vmap(one)(jax.random.split(jax.random.key(7), PATHS))

    return np.stack([np.asarray(follow(policy), float) for policy in policies(run)])


def exploitabilities(run):
    """What a player gains at most by deviating from the policies, trained and untrained; None where nobody knows."""
    env, params = run.env, run.params

    @eqx.filter_jit
    def gains(policy):
        decide = policy_decision(policy, env, params)
        return env.exploitability(lambda state: decide(state).action, params)

    found = [gains(policy) for policy in policies(run)]
    return None if found[0] is None else [float(each.max()) for each in found]


@pytest.mark.parametrize("env_id", ECONOMIES)
def test_deqn_reduces_the_residuals(env_id):
    run = trained(env_id, "deqn", iterations=80, rollout={"num_envs": 64, "num_steps": 8}, learning_rate=2e-3)
    residual = np.asarray(run.history["policy/residual"])
    assert residual[-5:].mean() < 0.7 * residual[0]


@pytest.mark.parametrize("env_id", [name for name in ECONOMIES if name not in LONGER])
def test_mappo_earns_more(env_id):
    run = trained(env_id, "mappo", iterations=40, rollout={"num_envs": 64, "num_steps": 32})
    gains = exploitabilities(run)
    if gains is not None:
        assert gains[0] < 0.8 * gains[1]
        return
    after, before = earnings(run)
    gain = after - before
    assert gain.mean() > 3 * gain.std() / np.sqrt(PATHS)


@pytest.mark.extended
@pytest.mark.parametrize("env_id", LONGER)
def test_mappo_runs(env_id):
    assert np.isfinite(earnings(trained(env_id, "mappo", iterations=2))).all()
