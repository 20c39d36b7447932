"""REINFORCE where the gradient is known: by enumeration."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import REINFORCE
from equimorph.agents.agent import Context, check_pair
from equimorph.errors import UserError
from equimorph.training.loop import collect, create_train_state

from ..probes import Scripted, Table, gather, script, table, update

BASELINES = ("none", "running_mean", "leave_one_out")
SEEDS, NUM_ENVS = 2000, 4
RAW = {"widths": (), "learning_rate": 1.0, "stepper": "sgd"}
LOGITS = np.array([0.3, -0.4, 0.1, 0.2, -0.3, 0.5], np.float32).reshape(3, 2)  # [place, action]


def tabular(nets):
    """The linear policy whose logits in each place are `LOGITS`."""
    return eqx.tree_at(lambda n: n.network.layers[0].weight, nets, jnp.asarray(LOGITS.T))


@functools.cache
def estimates(baseline, unscored_tail=0):
    """A compiled function: many independent estimates of the gradient at `LOGITS`, `[SEEDS, place, action]`."""
    agent = REINFORCE(**RAW, baseline=baseline, unscored_tail=unscored_tail)

    @jax.jit
    def many(params):
        env = Table()
        start = create_train_state(env, params, agent, num_envs=NUM_ENVS, num_iterations=1)
        # A running mean of earlier batches: 3 after two of them.
        seen = jnp.float32(3.0 * (1 - 0.9**2))
        policy = start.agent._replace(nets=tabular(start.agent.nets), baseline=seen, batches=jnp.int32(2))
        state = start._replace(agent=policy)

        def one(key):
            key_reset, key_collect, key_update = jax.random.split(key, 3)
            observation, env_state = jax.vmap(env.reset_env, (0, None))(jax.random.split(key_reset, NUM_ENVS), params)
            fresh = state._replace(env_state=env_state, observation=observation)
            _, rollout, _ = collect(fresh, key_collect, env, params, agent, 2)
            context = Context(env, params, jnp.int32(0), jnp.int32(1))
            after, _ = agent.update(policy, rollout, context, key_update)
            weights = [a.nets.network.layers[0].weight for a in (after, policy)]
            return (weights[0] - weights[1]).T

        return jax.lax.map(one, jax.random.split(jax.random.key(0), SEEDS), batch_size=500)

    return many


def exact(params, steps=2):
    """Gradient of the expected reward over `steps` steps, an episode started anew where it ends; per transition."""

    def expected(logits):
        chance = jax.nn.softmax(logits)
        here, total = params.start, 0.0
        for _ in range(steps):
            joint = here[:, None] * chance
            total = total + (joint * params.reward).sum()
            moved = jnp.zeros(3).at[params.leads_to].add(jnp.where(params.ends, 0, joint))
            # After an end nothing before it matters, so the fresh start's distribution is held fixed.
            ended = jax.lax.stop_gradient(jnp.where(params.ends, joint, 0).sum())
            here = moved + ended * params.start
        return total / steps

    return jax.grad(expected)(jnp.asarray(LOGITS))


def arms(first, second):
    """A bandit: every action ends the episode."""
    return table(reward=((first, second),) * 3)


def assert_unbiased(samples, gradient):
    error = samples.std(axis=0) / np.sqrt(SEEDS)
    gap = np.abs(samples.mean(axis=0) - gradient)
    assert (gap <= 4 * error + 1e-6).all(), (gap, error)
    assert np.abs(gradient).max() > 10 * error.max()  # it would have been noticed


@pytest.mark.parametrize("baseline", BASELINES)
def test_unbiased_on_a_bandit(baseline):
    params = arms(2.0, 5.0)
    samples = np.asarray(estimates(baseline)(params), float)
    chance = np.exp(LOGITS[0]) / np.exp(LOGITS[0]).sum()
    by_hand = chance * (np.array([2.0, 5.0]) - chance @ [2.0, 5.0])
    np.testing.assert_allclose(exact(params)[0], by_hand, rtol=1e-5)
    assert_unbiased(samples, np.asarray(exact(params)))


@pytest.mark.parametrize("baseline", BASELINES)
def test_unbiased_over_two_steps(baseline):
    """What is earned later counts for what was done before: the first action decides where the second is taken."""
    params = table(
        reward=((1.0, 0.0), (0.0, 4.0), (2.0, -3.0)),
        leads_to=((1, 2), (1, 1), (2, 2)),
        ends=((False, False), (True, True), (True, True)),
        discount=1.0,
    )
    assert_unbiased(np.asarray(estimates(baseline)(params), float), np.asarray(exact(params)))


def test_a_constant_reward_gives_no_gradient():
    samples = {name: np.asarray(estimates(name)(arms(3.0, 3.0)), float) for name in BASELINES}
    # In every single estimate, up to rounding; the running mean of earlier batches is 3.
    assert np.abs(samples["leave_one_out"]).max() < 1e-6
    assert np.abs(samples["running_mean"]).max() < 1e-6
    assert samples["none"].std() > 0.1
    error = samples["none"].std(axis=0) / np.sqrt(SEEDS)
    assert (np.abs(samples["none"].mean(axis=0)) <= 4 * error).all()


def test_variance_falls_with_the_baseline():
    spread = {name: np.asarray(estimates(name)(arms(2.0, 5.0)), float).var(axis=0).sum() for name in BASELINES}
    assert spread["running_mean"] < 0.5 * spread["none"]
    assert spread["leave_one_out"] < 0.5 * spread["none"]


def test_the_running_mean_is_of_earlier_batches_and_debiased():
    env, agent = Scripted(), REINFORCE(**RAW, baseline="running_mean", baseline_decay=0.75, gamma=0.0)
    state, rollout = gather(env, script(reward=2.0, limit=100), agent, 6, 2)
    first, metrics = update(env, script(), agent, state.agent, rollout)
    assert metrics["policy/weight_std"] == 2  # nothing came before
    assert first.baseline == 0.5
    assert first.batches == 1
    earned_more = rollout._replace(reward=rollout.reward + 4)
    second, metrics = update(env, script(), agent, first, earned_more)
    assert metrics["policy/weight_std"] == pytest.approx(6 - 2)
    third, metrics = update(env, script(), agent, second, rollout)
    # (.75 * .25 * 2 + .25 * 6) / (1 - .75^2)
    assert metrics["policy/weight_std"] == pytest.approx(abs(2 - 1.875 / 0.4375))
    assert third.batches == 3


def test_leave_one_out_by_hand():
    env, agent = Scripted(), REINFORCE(**RAW, baseline="leave_one_out", gamma=0.0)
    alive = np.ones((8, 3), bool)
    alive[:, 2] = False
    params = script(alive=alive, limit=100, dead=np.nan)
    state, rollout = gather(env, params, agent, 6, 2)
    # Environment 0 earns 1 and 3, environment 1 earns 6 and 8: baselines 7 and 2, and the third slot is dead.
    reward = np.broadcast_to(np.array([[1.0, 3, np.nan], [6, 8, np.nan]], np.float32), (6, 2, 3))
    _, metrics = update(env, params, agent, state.agent, rollout._replace(reward=reward))
    assert metrics["policy/weight_std"] == pytest.approx(np.sqrt(np.mean(np.array([-6.0, -4, 4, 6]) ** 2)))


def test_the_unscored_tail_is_left_out():
    env, agent = Scripted(), REINFORCE(**RAW, baseline="none", unscored_tail=2, gamma=1.0)
    params = script(reward=1.0, limit=4)
    state, rollout = gather(env, params, agent, 6, 2)
    _, metrics = update(env, params, agent, state.agent, rollout)
    # Of six transitions, two before the cut at the fourth and two at the rollout's end are left out: 4 and 3 to go.
    assert metrics["policy/scored_share"] == pytest.approx(2 / 6)
    assert metrics["policy/weight_std"] == pytest.approx(np.sqrt((4**2 + 3**2) / 2))
    terminated = rollout._replace(terminated=rollout.truncated, truncated=rollout.terminated)
    _, metrics = update(env, params, agent, state.agent, terminated)
    assert metrics["policy/scored_share"] == pytest.approx(4 / 6)


def test_dead_slots_are_not_scored():
    env, agent = Scripted(), REINFORCE(**RAW)
    alive = np.ones((8, 3), bool)
    alive[1::2, 1] = False
    after = []
    for garbage in (0.0, np.nan):
        params = script(alive=alive, reward=[1.0, 2.0, 4.0], observation=1.0, label=1.0, dead=garbage)
        state, rollout = gather(env, params, agent, 6, 2)
        after.append(update(env, params, agent, state.agent, rollout))
    jax.tree.map(np.testing.assert_array_equal, *after)


def test_what_does_not_fit_is_refused():
    env, params = Table(), table()
    with pytest.raises(UserError, match=r"needs 'events'.*score='actions'"):
        check_pair(REINFORCE(score="events"), env, params, 8, 8)
    with pytest.raises(UserError, match=r"num_envs of at least 2.*running_mean"):
        check_pair(REINFORCE(baseline="leave_one_out"), env, params, 8, 1)
    check_pair(REINFORCE(baseline="running_mean"), env, params, 8, 1)
    with pytest.raises(UserError, match=r"unscored_tail = 8.*num_steps = 8"):
        check_pair(REINFORCE(unscored_tail=8), env, params, 8, 2)
    tissue, tissue_params = equimorph.make("CellCount-v0", mode="hazard")
    with pytest.raises(UserError, match="entropy does not apply"):
        check_pair(REINFORCE(score="events", entropy=0.1), tissue, tissue_params, 8, 2)
    check_pair(REINFORCE(score="events"), tissue, tissue_params, 8, 2)
    with pytest.raises(UserError, match=r"initial_std = 0.3 does not apply.*discrete"):
        check_pair(REINFORCE(initial_std=0.3), env, params, 8, 2)
    with pytest.raises(UserError, match=r"baseline_decay = 0.5 does not apply with baseline='none'"):
        REINFORCE(baseline="none", baseline_decay=0.5)
    with pytest.raises(UserError, match="Did you mean 'leave_one_out'"):
        REINFORCE(baseline="leave_on_out")
