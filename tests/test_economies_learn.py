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
# Where forty iterations are too few for a learner of rewards, and its preset is trained.
LONGER = ("Growth-v0", "RBCLabor-v0", "IRBC-v0", "Aiyagari-v0", "KrusellSmith-v0")
STEPS, PATHS = 300, 256


def trained(env_id, agent, **settings):
    return equimorph.train(env_id, agent, env=SMALL.get(env_id, {}), progress=False, **settings)


def policies(run):
    """The trained policy and the untrained one."""
    return run.agent.policy(run.state), run.agent.policy(run.untrained_state)


def earnings(run):
    """Discounted utility of the policies along common shocks, `[2, PATHS]`, averaged over agents.

    Where one agent's best value is known, for the periods of an episode and with what is left worth its best value: to
    save pays only later, and a learner knows no states that episodes do not come to.
    """
    env, params = run.env, run.params
    known = env.reference(params)
    valued = known is not None and known.value is not None and env.num_agents == 1 and not env.one_shot
    steps = 1 if env.one_shot else int(params.max_steps_in_episode) if valued else STEPS

    @jax.jit
    def follow(policy):
        decide = policy_decision(policy, env, params)

        def one(key):
            def step(carry, key):
                state, weight = carry
                _, following, _, _, info = env.step_env(key, state, decide(state).action, params)
                discount = jnp.mean(env.step_discount(state, following, params))
                return (following, weight * discount), weight * jnp.mean(info["utility"])

            start = env.initial_state(jax.random.fold_in(key, 1), params)
            (state, weight), earned = jax.lax.scan(step, (start, jnp.ones(())), jax.random.split(key, steps))
            return earned.sum() + (weight * known.value(state) if valued else 0)

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


def rarely(names, *dear):
    """Parameters of which the dear ones, and those that other tests train to the end, are `extended`."""
    return [pytest.param(name, marks=pytest.mark.extended) if name in dear else name for name in names]


@pytest.mark.parametrize(
    "env_id", rarely(ECONOMIES, *LONGER, "BrockMirman-v0", "FishWar-v0", "Irreversible-v0", "OLG-v0")
)
def test_deqn_reduces_the_residuals(env_id):
    # Growth's preset goes back to where it is worst, so that the states it reports of get harder as it learns.
    iterations = 240 if env_id == "Growth-v0" else 80
    run = trained(env_id, "deqn", iterations=iterations, rollout={"num_envs": 64, "num_steps": 8}, learning_rate=2e-3)
    residual = np.asarray(run.history["policy/residual"])
    assert residual[-5:].mean() < 0.7 * residual[0]


def earns_more(run):
    gains = exploitabilities(run)
    if gains is not None:
        return gains[0] < 0.8 * gains[1]
    after, before = earnings(run)
    gain = after - before
    return gain.mean() > 3 * gain.std() / np.sqrt(PATHS)


@pytest.mark.parametrize(
    "env_id",
    rarely(
        [name for name in ECONOMIES if name not in LONGER],
        *("Auction-v0", "BrockMirman-v0", "FishWar-v0", "Irreversible-v0", "OLG-v0", "StochasticAK-v0"),
    ),
)
def test_mappo_earns_more(env_id):
    assert earns_more(trained(env_id, "mappo", iterations=40, rollout={"num_envs": 64, "num_steps": 32}))


@pytest.mark.extended
@pytest.mark.parametrize("env_id", LONGER)
def test_mappo_earns_more_with_its_preset(env_id):
    assert earns_more(trained(env_id, "mappo"))
