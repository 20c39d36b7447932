"""REINFORCE where the gradient is known: by enumeration."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import REINFORCE
from equimorph.agents.agent import Context, Rollout, View, check_pair
from equimorph.agents.estimators import since_start
from equimorph.agents.scores import Batch, Sampled, surrogate
from equimorph.errors import UserError
from equimorph.training.collect import collect
from equimorph.training.loop import create_train_state, make_train_step

from ..probes import LENGTH, PlaceState, Scripted, Table, constant, gather, script, table, update

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


# -- every outcome listed --------------------------------------------------------------------------------------------

TWO_STEPS = {
    "leads_to": ((1, 2), (1, 1), (2, 2)),
    "ends": ((False, False), (True, True), (True, True)),
    "discount": 1.0,
}
PAYS = ((1.0, 0.0), (0.0, 4.0), (2.0, -3.0))
VALUE = np.array([0.7, -0.2, 1.1], np.float32)  # of each place, at hand for baselines


def play(params, actions):
    """What a rollout of `Table` records where `actions` `[T, N]` are taken, starting from the first place."""
    env, fresh = Table(), PlaceState(jnp.int32(0), jnp.int32(0))

    def step(state, action):
        _, after, reward, ends, _ = env.step_env(None, state, action, params)
        cut = env.is_truncated(after, params)
        see = lambda s: env.observe(None, s, None, params)[None]  # noqa: E731
        view, earned = View(see(state), np.ones(1, bool)), (reward[None], params.discount[None], ends, cut)
        rest = (see(after), state, after, jnp.zeros(1, jnp.int32), (), Sampled(action[None], None))
        row = Rollout(view, action[None], *earned, *rest)
        return jax.tree.map(lambda a, b: jnp.where(ends | cut, a, b), fresh, after), row

    return jax.vmap(lambda column: jax.lax.scan(step, fresh, column)[1], 1, 1)(actions)


@eqx.filter_jit
def every_outcome(agent, state, params, num_steps, num_envs):
    """All sequences of actions: their probabilities `[S]`, and the gradients that they give `[S, 3, 2]`."""
    listed = list(itertools.product([0, 1], repeat=num_steps * num_envs))
    sequences = np.array(listed, np.int32).reshape(-1, num_steps, num_envs)

    def one(actions):
        rollout = play(params, actions)
        after, _ = agent.update(state, rollout, Context(Table(), params, jnp.int32(0), jnp.int32(1)), jax.random.key(0))
        weights = [s.nets.network.layers[0].weight for s in (after, state)]
        chance = jax.nn.softmax(jnp.asarray(LOGITS))[rollout.env_state.place, actions]
        return chance.prod(), (weights[0] - weights[1]).T

    return jax.vmap(one)(sequences)


def prepared(params, value=VALUE, means=(0.3, -0.6), **options):
    """An agent and its state at `LOGITS`, with baselines that know something."""
    agent = REINFORCE(**{**RAW, **options}).prepare(Table(), params)
    state = agent.init(jax.random.key(0), Table(), params)
    state = state._replace(nets=tabular(state.nets))
    if agent.baseline == "running_mean_per_step":
        debiased = np.array(means, np.float32) * (1 - 0.9**2)
        state = state._replace(baseline=jnp.asarray(debiased), batches=jnp.full(2, 2, jnp.int32))
    if agent.baseline == "value":
        layers = eqx.tree_at(lambda c: c.layers[0].weight, state.value.critic, jnp.asarray(value)[None])
        state = state._replace(value=state.value._replace(critic=layers))
    return agent, state


CASES = [
    ({"baseline": "none"}, 1),
    ({"baseline": "none", "returns": "total"}, 1),
    ({"baseline": "constant", "baseline_value": 2.0, "returns": "total"}, 1),
    ({"baseline": "running_mean_per_step"}, 1),
    ({"baseline": "leave_one_out", "returns": "total"}, 2),
    ({"baseline": "value"}, 1),
    ({"baseline": "value", "returns": "total"}, 1),
]


@pytest.mark.parametrize(("options", "num_envs"), CASES)
def test_exactly_unbiased_and_silent_where_nothing_can_be_gained(options, num_envs):
    params = table(reward=PAYS, limit=2, **TWO_STEPS)
    agent, state = prepared(params, **options)
    chance, gradient = (np.asarray(x, float) for x in every_outcome(agent, state, params, 2, num_envs))
    assert chance.sum() == pytest.approx(1)
    np.testing.assert_allclose(np.tensordot(chance, gradient, 1), exact(params), atol=2e-6)
    if options["baseline"] != "none":
        flat = table(reward=((1.0, 1.0),) * 3, limit=2, **TWO_STEPS)  # 2 to go at first, then 1
        agent, state = prepared(flat, value=np.array([2.0, 1.0, 1.0], np.float32), means=(2.0, 1.0), **options)
        assert np.abs(every_outcome(agent, state, flat, 2, num_envs)[1]).max() < 1e-6


def test_a_true_value_leaves_less_variance():
    pays = np.array(PAYS) + 3
    params = table(reward=pays, limit=2, **TWO_STEPS)
    policy = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    worth = (policy * pays).sum(axis=1)
    worth[0] += policy[0] @ worth[1:]
    spread = {}
    for baseline in ("none", "value"):
        agent, state = prepared(params, value=worth.astype(np.float32), baseline=baseline)
        chance, gradient = (np.asarray(x, float) for x in every_outcome(agent, state, params, 2, 1))
        mean = np.tensordot(chance, gradient, 1)
        spread[baseline] = np.tensordot(chance, (gradient - mean) ** 2, 1).sum()
    assert spread["value"] < 0.5 * spread["none"]


def test_total_returns_are_of_the_discounted_sum():
    params = table(reward=PAYS, limit=2, **TWO_STEPS)
    agent, state = prepared(params, baseline="none", returns="total", gamma=0.5)
    chance, gradient = (np.asarray(x, float) for x in every_outcome(agent, state, params, 2, 1))
    halved = table(reward=(PAYS[0], *(np.array(PAYS[1:]) / 2)), limit=2, **TWO_STEPS)
    np.testing.assert_allclose(np.tensordot(chance, gradient, 1), exact(halved), atol=2e-6)


def test_a_learned_value_stands_for_what_was_cut_off():
    """One step of two, with the value of what comes after: the gradient that the whole has for the first action."""
    params = table(reward=PAYS, limit=1, **(TWO_STEPS | {"discount": 0.8}))
    later = (np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True) * np.array(PAYS)).sum(axis=1)
    agent, state = prepared(params, later.astype(np.float32), baseline="value", unfinished="bootstrap")
    chance, gradient = (np.asarray(x, float) for x in every_outcome(agent, state, params, 1, 1))
    worth = np.array(PAYS[0]) + 0.8 * later[1:]
    p = np.exp(LOGITS[0]) / np.exp(LOGITS[0]).sum()
    found = np.tensordot(chance, gradient, 1)
    np.testing.assert_allclose(found, [p * (worth - p @ worth), [0, 0], [0, 0]], atol=1e-6)


# -- returns and baselines by hand ----------------------------------------------------------------------------------


def recorded(env, params, num_steps, num_envs, nets=None):
    """A state and a rollout of one configuration, for others that act alike."""
    agent = REINFORCE(**RAW, baseline="none", unscored_tail=2, gamma=1.0)
    state, rollout = gather(env, params, agent, num_steps, num_envs, nets=nets)
    return state.agent, rollout


def test_unfinished_episodes_are_left_out():
    env, params = Scripted(), script(reward=1.0, limit=4)
    state, rollout = recorded(env, params, 6, 2)
    for options, share, weights in (
        ({"returns": "total"}, 4 / 6, (4, 4, 4, 4)),
        ({"unscored_tail": 2}, 2 / 6, (4, 3)),
    ):
        agent = REINFORCE(**RAW, baseline="none", gamma=1.0, unfinished="drop", **options)
        _, metrics = update(env, params, agent, state, rollout)
        assert metrics["policy/scored_share"] == pytest.approx(share)
        assert metrics["policy/weight_std"] == pytest.approx(np.sqrt(np.mean(np.square(weights))))


def test_what_is_left_out_weighs_like_a_return_of_zero():
    """Of six transitions the last two are of an unfinished episode, in which nothing was earned yet."""
    env, params = Scripted(), script(reward=(np.arange(LENGTH) == 3)[:, None], limit=4)
    state, rollout = recorded(env, params, 6, 2)
    agents = [REINFORCE(**RAW, baseline="none", gamma=1.0, unfinished=u) for u in ("keep", "drop")]
    keep, drop = (update(env, params, agent, state, rollout)[0].nets for agent in agents)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), keep, drop)
    assert np.abs(keep.spread - state.nets.spread).max() > 1e-3


def test_the_noise_of_a_sampled_action_gives_it_back():
    env, agent = Scripted(), REINFORCE(widths=(), score="both", initial_std=0.2)
    state = agent.init(jax.random.key(0), env, script())
    seen = jnp.ones((3, 2))
    _, action, stored = agent.act(state, (), View(seen, jnp.ones(3, bool)), jax.random.key(1))
    again = state.head.squash(state.nets(seen) + jnp.exp(state.nets.spread) * stored.noise)
    np.testing.assert_allclose(again, action, rtol=1e-5)


def test_scores_and_weights_of_other_shapes_are_refused():
    score, weight = np.zeros((2, 3, 4)), np.zeros((2, 3, 1))
    with pytest.raises(ValueError, match="one shape"):
        surrogate(score, Batch(None, weight, weight == 0, None), 0.2)


def test_totals_follow_agents_from_their_first_step():
    # The second agent moves to the third slot, where it stays; another is born in the second, and all end at time 1.
    successor = jnp.array([[0, 2, -1], [0, 1, 2], [0, -1, -1], [0, 1, 2]])[:, None]
    done = jnp.array([False, False, True, False])[:, None]
    values = jnp.array([[1.0, 2, 0], [3, 4, 5], [6, 7, 8], [9, 10, 11]])[:, None]
    found = since_start(values, done, successor)[:, 0]
    assert found.tolist() == [[1, 2, 0], [1, 4, 2], [1, 4, 2], [9, 10, 11]]


def test_the_mean_per_step_is_of_each_step_of_the_episode():
    env, params = Scripted(), script(reward=np.arange(8.0)[:, None], limit=4)
    agent = REINFORCE(**RAW, baseline="running_mean_per_step", baseline_decay=0.75, gamma=0.0).prepare(env, params)
    rollout = jax.tree.map(lambda x: x[:3], recorded(env, params, 6, 2)[1])
    first, metrics = update(env, params, agent, agent.init(jax.random.key(0), env, params), rollout)
    assert metrics["policy/weight_std"] == pytest.approx(np.sqrt((1 + 4) / 3))
    np.testing.assert_allclose(first.baseline, [0, 0.25, 0.5, 0])
    assert first.batches.tolist() == [1, 1, 1, 0]
    second, metrics = update(env, params, agent, first, rollout._replace(reward=rollout.reward + 3))
    assert metrics["policy/weight_std"] == pytest.approx(3, rel=1e-5)
    np.testing.assert_allclose(second.baseline, [0.75, 0.75 * 0.25 + 1, 0.75 * 0.5 + 1.25, 0])


def test_the_value_is_of_earlier_batches_and_is_learned():
    """Three places that pay 1, 2 and 4 whatever is done."""
    params = table(reward=((1.0, 1.0), (2.0, 2.0), (4.0, 4.0)), start=(0.5, 0.3, 0.2))
    options = {"value_epochs": 60, "value_learning_rate": 0.5, "value_decay": 0.5}
    env, agent = Table(), REINFORCE(**(RAW | {"learning_rate": 0.0}), baseline="value", **options)
    rollout, policy = recorded(env, params, 8, 4)[1], agent.init(jax.random.key(0), env, params)
    policy = policy._replace(value=policy.value._replace(critic=constant(policy.value.critic, 0.0)))
    paid = np.asarray(rollout.reward)
    after, metrics = update(env, params, agent, policy, rollout)
    assert metrics["policy/weight_std"] == pytest.approx(np.sqrt(np.mean(paid**2)), rel=1e-5)
    np.testing.assert_allclose(after.value(np.eye(3, dtype=np.float32)), [1, 2, 4], atol=0.02)
    _, metrics = update(env, params, agent, after, rollout._replace(reward=rollout.reward + 5))
    assert metrics["policy/weight_std"] == pytest.approx(5, abs=0.02)


# -- the same batch again, and in parts -------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.02, 1e6])
def test_a_batch_is_used_again_by_the_clipped_ratio(clip):
    params = table(reward=((2.0, 5.0), (1.0, -2.0), (0.0, 3.0)), start=(0.5, 0.3, 0.2))
    env, agent = Table(), REINFORCE(**RAW, baseline="none", importance="clip", epochs=2, clip=clip)
    state, rollout = recorded(env, params, 8, 4, nets=tabular)
    after, metrics = update(env, params, agent, state, rollout)
    assert metrics["policy/first_ratio_error"] < 1e-6
    place, action = np.asarray(rollout.env_state.place).ravel(), np.asarray(rollout.action).ravel()
    weight = np.asarray(rollout.reward, float).ravel()  # episodes of one step
    kernel, bias, old = LOGITS.astype(float), np.zeros(2), None
    for _ in range(2):
        chance = np.exp(kernel + bias) / np.exp(kernel + bias).sum(axis=1, keepdims=True)
        taken = chance[place, action]
        old = taken if old is None else old
        ratio = taken / old
        live = np.where(weight > 0, ratio < 1 + clip, ratio > 1 - clip)
        score = np.eye(2)[action] - chance[place]
        step = np.zeros((3, 2))
        np.add.at(step, place, (live * ratio * weight)[:, None] * score)
        kernel, bias = kernel + step / len(place), bias + step.sum(axis=0) / len(place)
    np.testing.assert_allclose(after.nets.network.layers[0].weight.T, kernel, atol=1e-5)


def test_parts_of_a_batch_have_its_gradient():
    params = table(reward=PAYS, limit=3, start=(0.5, 0.3, 0.2), **TWO_STEPS)
    common = {"baseline": "value", "unfinished": "bootstrap", "importance": "clip", "epochs": 2, "entropy": 0.01}
    env, (acted, rollout) = Table(), recorded(Table(), params, 8, 4, nets=tabular)
    agents = [REINFORCE(**RAW, **common, micro_batches=parts) for parts in (1, 2)]
    state = agents[0].init(jax.random.key(0), env, params)._replace(nets=acted.nets)
    whole, parts = (update(env, params, agent, state, rollout) for agent in agents)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), whole, parts)
    assert np.abs(whole[0].nets.network.layers[0].weight - state.nets.network.layers[0].weight).max() > 0.1


# -- what does not fit -------------------------------------------------------------------------------------------------


def tissue(**overrides):
    small = {"capacity": 8, "substeps": 1, "founders": 2, "target": 3.0, "max_steps_in_episode": 2, "rate_max": 6.0}
    return equimorph.make("CellCount-v0", mode="hazard", **{**small, "dt": 0.15, **overrides})


@pytest.mark.parametrize(
    ("options", "double"),
    [
        (
            {"baseline": "value", "unfinished": "bootstrap", "returns": "total", "score": "both", "micro_batches": 2},
            False,
        ),
        ({"baseline": "running_mean_per_step", "score": "trajectory", "returns": "total"}, True),
        ({"score": "events", "initial_std": 0.2, "stepper": "mao", "importance": "clip", "epochs": 3}, True),
    ],
)
def test_an_update_keeps_types(options, double):
    with jax.enable_x64(double):
        env, params = tissue()
        agent = REINFORCE(widths=(4,), **options).prepare(env, params)
        numbers = {"num_envs": 4, "num_seeds": 2}
        state = jax.eval_shape(lambda: create_train_state(env, params, agent, num_iterations=2, **numbers))
        step = make_train_step(env, params, agent, num_steps=2, iterations=2, **numbers)
        after, metrics = jax.eval_shape(step, state)
        kinds = lambda tree: [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]  # noqa: E731
        assert kinds(after) == kinds(state)
        dtype = jnp.dtype("float64" if double else "float32")
        assert {x.dtype for name, x in metrics.items() if not name.startswith(("episode/", "check/"))} == {dtype}


MISTAKES = [
    ({"returns": "terminal"}, "unknown returns 'terminal'.*Known: to_go, total"),
    ({"unfinished": "dorp"}, "Did you mean 'drop'"),
    ({"unfinished": "bootstrap"}, "'leave_one_out' does not have; use baseline='value'"),
    ({"unfinished": "bootstrap", "baseline": "value", "unscored_tail": 2}, "unscored_tail = 2 does not apply"),
    ({"score": "trajectory", "unfinished": "drop"}, "unfinished = 'drop' does not apply with score='trajectory'"),
    ({"score": "trajectory", "unscored_tail": 1}, "unscored_tail = 1 does not apply with score='trajectory'"),
    ({"score": "trajectory", "initial_std": 0.3}, "initial_std = 0.3 does not apply with score='trajectory'"),
    ({"baseline": "constant"}, "needs a baseline_value"),
    ({"baseline_value": 1.0}, "baseline_value = 1 does not apply with baseline='leave_one_out'"),
    ({"value_epochs": 3}, "value_epochs = 3 does not apply"),
    ({"value_decay": 0.5, "baseline": "none"}, "value_decay = 0.5 does not apply"),
    ({"epochs": 4}, "epochs = 4.*another policy's; set importance='clip'"),
    ({"importance": "clip"}, "importance = 'clip' does not apply with epochs=1"),
    ({"importance": "clip", "epochs": 2, "score": "both"}, "importance = 'clip' does not apply with score='both'"),
    ({"importance": "clipp", "epochs": 2}, "Did you mean 'clip'"),
    ({"clip": 0.1}, "clip = 0.1 does not apply without importance='clip'"),
    ({"micro_batches": 0}, "micro_batches"),
    ({"epochs": None}, "epochs = None must be a whole number"),
    ({"learning_rate": None}, "learning_rate = None must be a finite number"),
    ({"initial_std": "wide"}, "initial_std = 'wide' must be a finite number"),
    ({"final_rate": 0.1}, "final_rate = 0.1 does not apply with schedule='constant'"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_named(options, message):
    with pytest.raises(UserError, match=message):
        REINFORCE(**options)


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ({}, {"micro_batches": 3}, r"num_envs = 4 .* micro_batches can be 1, 2, 4"),
        ({"max_steps_in_episode": 5}, {"score": "trajectory"}, r"num_steps = 2 must be max_steps_in_episode = 5"),
        ({"window": 2}, {"score": "trajectory"}, "not a tissue itself; use score='events'"),
        ({}, {"score": "trajectory", "entropy": 0.1}, "entropy does not apply with score='trajectory'"),
        ({"max_steps_in_episode": 10**6}, {"baseline": "running_mean_per_step"}, "1000000 steps, more than"),
    ],
)
def test_pairs_that_do_not_fit_are_named(env, options, message):
    with pytest.raises(UserError, match=message):
        check_pair(REINFORCE(**options), *tissue(**env), 2, 4)
    check_pair(REINFORCE(score="both", entropy=0.1, micro_batches=2), *tissue(), 2, 4)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [("CellCount-v0", "mode='hazard'"), ("TypeBalance-v0", "secreting=False"), ("BrockMirman-v0", "score='actions'$")],
)
def test_what_would_give_events_a_score_is_said(env_id, message):
    with pytest.raises(UserError, match=message):
        check_pair(REINFORCE(score="events"), *equimorph.make(env_id), 2, 4)


def test_what_does_not_fit_is_refused():
    env, params = Table(), table()
    with pytest.raises(UserError, match=r"needs 'events'.*score='actions'"):
        check_pair(REINFORCE(score="events"), env, params, 8, 8)
    with pytest.raises(UserError, match=r"num_envs of at least 2.*running_mean"):
        check_pair(REINFORCE(baseline="leave_one_out"), env, params, 8, 1)
    check_pair(REINFORCE(baseline="running_mean"), env, params, 8, 1)
    with pytest.raises(UserError, match=r"gamma must be one number here"):
        check_pair(REINFORCE(gamma=np.asarray([0.5, 0.9])), env, params, 8, 2)
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
