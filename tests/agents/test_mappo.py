"""MAPPO against the faults that its users have reported; the numbers are those of a fixed list."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import DEQN, MAPPO, REINFORCE
from equimorph.agents.agent import check_pair
from equimorph.agents.estimators import generalised_advantage, masked_mean, normalise
from equimorph.agents.mappo import Batch
from equimorph.agents.minibatches import shuffled
from equimorph.agents.steppers import Gradient, Terms
from equimorph.errors import UserError
from equimorph.training.loop import create_train_state, make_train_step, run_chunk
from equimorph.training.summary import summary

from ..probes import (
    LENGTH,
    MatrixGame,
    Recorder,
    Scripted,
    Table,
    busy_script,
    constant,
    gather,
    matrix_game,
    script,
    small_mappo,
    table,
    update,
)

DEEP = {"widths": (8, 8), "critic": "global+local", "entropy": 0.01, "stepper": {"optimizer": "sgd", "max_norm": 0.1}}

# One gradient step on everything, with the raw gradient; the value loss is then half the mean squared advantage.
ONE_STEP = {
    "epochs": 1,
    "minibatches": 1,
    "learning_rate": 1.0,
    "stepper": Gradient("sgd"),
    "critic": "local",
    "normalise_values": False,
}


def linear(**changes):
    return MAPPO(**{**ONE_STEP, "widths": (), **changes})


def critic_of(weight=(0.0, 0.0), bias=0.0):
    """Replace a linear critic by `weight . inputs + bias`."""

    def replace(nets):
        critic = constant(nets.critic, bias)
        row = jax.device_put(np.asarray([weight], np.float32))
        critic = eqx.tree_at(lambda c: c.layers[0].weight, critic, row)
        return eqx.tree_at(lambda n: n.critic, nets, critic)

    return replace


def mean_square_error(metrics):
    """Mean squared advantage of an update with `ONE_STEP`, whose value coefficient is a half."""
    return 2 * float(metrics["loss/value"])


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


# -- 1 to 3: ends of episodes --------------------------------------------------------------------------------------


def test_01_time_limit_is_not_termination():
    env, agent = Scripted(), linear()
    params = script(reward=1.0, discount=0.75, limit=5)
    state, rollout = gather(env, params, agent, 12, 4, nets=critic_of(bias=4.0))
    assert rollout.truncated.sum() == 8
    assert not rollout.terminated.any()
    after, metrics = update(env, params, agent, state.agent, rollout)
    assert mean_square_error(metrics) == 0
    assert metrics["loss/policy"] == 0
    same(after.nets, state.agent.nets)


def test_01_termination_has_no_continuation():
    env, agent = Scripted(), linear(gae_lambda=0.0)
    params = script(reward=1.0, discount=0.75, ends=np.arange(LENGTH) == 4, limit=100)
    state, rollout = gather(env, params, agent, 12, 4, nets=critic_of(bias=4.0))
    assert rollout.terminated.sum() == 8
    _, metrics = update(env, params, agent, state.agent, rollout)
    # Only at the two ends of twelve steps is the advantage not 0: 1 - 4.
    assert mean_square_error(metrics) == pytest.approx(2 / 12 * 9)


def test_02_next_value_is_at_the_final_observation():
    env, agent = Scripted(), linear()
    observation = np.zeros((LENGTH, 3, 2))
    observation[0, :, 0] = 100.0
    params = script(observation=observation, limit=5)
    state, rollout = gather(env, params, agent, 12, 4, nets=critic_of((1.0, 0.0)))
    _, metrics = update(env, params, agent, state.agent, rollout)
    # Three of twelve steps start an episode; their own value of 100 is wrong by 100, and nothing else is.
    assert mean_square_error(metrics) == pytest.approx(3 / 12 * 100**2)


class Clock(Scripted):
    """Its world state is the time."""

    def world_state(self, state, params):
        return state.time[None].astype(jnp.float32)


def test_02_world_states_are_those_before_a_reset_too():
    env, agent = Clock(), linear(critic="global")
    time = np.arange(LENGTH)[:, None]
    params = script(reward=time - 0.5 * (time + 1), limit=5)  # what makes the time its own value
    state, rollout = gather(env, params, agent, 12, 4, nets=critic_of((1.0,)))
    _, metrics = update(env, params, agent, state.agent, rollout)
    assert mean_square_error(metrics) < 1e-10


gae = jax.jit(generalised_advantage)


def advantages(reward, value, next_value, terminated, truncated):
    """Of one agent, with discount and lambda of a half."""
    steps = len(reward)
    values = [np.asarray(x, np.float32).reshape(steps, 1, 1) for x in (reward, value, next_value)]
    ends = [np.asarray(x, bool).reshape(steps, 1) for x in (terminated, truncated)]
    return gae(*values, np.full((steps, 1, 1), 0.5), *ends, np.zeros((steps, 1, 1), np.int32), 0.5).ravel()


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        # The last step: 3 + .5 * 8 - 2 = 5. Without an end, the middle: 2 + .5 * 6 - 4 + .25 * 5 = 2.25.
        (0, 0, (1 + 0.5 * 4 - 2 + 0.25 * 2.25, 2.25, 5)),
        # Truncated in the middle: 2 + .5 * 6 - 4 = 1, and no more; its next value is the one before the reset.
        (0, 1, (1 + 0.5 * 4 - 2 + 0.25 * 1, 1, 5)),
        # Terminated: 2 - 4 = -2.
        (1, 0, (1 + 0.5 * 4 - 2 + 0.25 * -2, -2, 5)),
        # Both: termination wins, the target is the reward.
        (1, 1, (1 + 0.5 * 4 - 2 + 0.25 * -2, -2, 5)),
    ],
    ids=["neither", "truncated", "terminated", "both"],
)
def test_03_gae_by_hand(terminated, truncated, expected):
    out = advantages((1, 2, 3), (2, 4, 2), (4, 6, 8), (0, terminated, 0), (0, truncated, 0))
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_03_last_step_of_the_rollout_bootstraps_unless_terminated():
    assert advantages((3,), (2,), (8,), (0,), (0,))[0] == 5
    assert advantages((3,), (2,), (8,), (0,), (1,))[0] == 5
    assert advantages((3,), (2,), (8,), (1,), (0,))[0] == 1
    assert advantages((3,), (2,), (8,), (1,), (1,))[0] == 1


# -- 5 to 8: who is who --------------------------------------------------------------------------------------------


def train(params=None, discrete=False, num_iterations=1000, seed=0, **numbers):
    """Five iterations of the shared learner: its state and metrics."""
    env, agent = Scripted(discrete=discrete), small_mappo(box=not discrete, **numbers)
    params = busy_script() if params is None else params
    state = create_train_state(env, params, agent, num_envs=4, num_iterations=num_iterations, seed=seed)
    return make_train_step(env, params, agent, num_envs=4, num_steps=12, iterations=5)(state)


@pytest.mark.parametrize("discrete", [False, True], ids=["box", "discrete"])
def test_05_first_ratio_is_one(discrete):
    _, metrics = train(discrete=discrete)
    assert metrics["policy/first_ratio_error"].max() < 1e-5
    assert metrics["policy/approx_kl"].min() > 1e-4  # it did move


@pytest.fixture(scope="module")
def deep():
    """A learner that makes one step with a network of its own for everything, and a rollout of it."""
    agent = MAPPO(**ONE_STEP | DEEP)
    state, rollout = gather(Scripted(), busy_script(), agent, 12, 4)
    return agent, state.agent, rollout


def test_06_permuting_environments_permutes_outputs(deep):
    agent, state, rollout = deep
    order = np.array([2, 0, 3, 1])
    keys = jax.random.split(jax.random.key(5), 4)
    act = jax.jit(jax.vmap(lambda view, key: agent.act(state, (), view, key)[1:]))
    view = jax.tree.map(lambda x: x[0], rollout.view)
    straight, permuted = act(view, keys), act(jax.tree.map(lambda x: x[order], view), keys[order])
    assert np.ptp(straight[0], axis=0).max() > 0.1
    close(jax.tree.map(lambda x: x[order], straight), permuted, rtol=1e-6)

    shuffled = jax.tree.map(lambda x: x[:, order], rollout)
    after = [update(Scripted(), busy_script(), agent, state, r) for r in (rollout, shuffled)]
    close(*after, rtol=1e-4, atol=1e-6)


def test_06_rewards_and_critic_inputs_stay_together():
    env = Scripted()
    # What agent a of environment n earns at t is all different: r_0, which all see, plus r_a - r_0, which a sees.
    reward = np.random.default_rng(3).normal(size=(LENGTH, 3))
    observation = np.stack([reward, reward - reward[:, :1]], axis=-1)
    params = script(observation=observation, reward=reward, label=1.0, limit=5)
    agent = linear(epochs=2, minibatches=4, learning_rate=0.0, gamma=0.0, critic="global+local")
    critic = critic_of((1.0, 0, 0, 0, 0, 0, 0, 1.0))
    state, rollout = gather(env, params, agent, 12, 4, nets=critic)
    assert len(np.unique(rollout.reward)) > 100
    _, metrics = update(env, params, agent, state.agent, rollout)
    assert mean_square_error(metrics) < 1e-11


@pytest.mark.parametrize("slots", [{}, {"next_slot": (0, 1, 2)}], ids=["gone", "stays"])
def test_07_garbage_in_dead_slots_changes_nothing(slots):
    # Also where the environment forgets to say that the dead are gone: their slot is followed, and must be worth 0.
    runs = []
    for garbage in (0.0, np.nan, 1e30):
        state, metrics = train(busy_script(dead=garbage, **slots))
        runs.append((state.agent, state.running_return, metrics))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(runs[0]))
    same(runs[0], runs[1])
    same(runs[0], runs[2])


def test_07_one_living_sample_in_a_minibatch_is_finite():
    env, agent = Scripted(), linear(minibatches=24)
    alive = np.zeros((LENGTH, 3), bool)
    alive[2, 1] = True
    params = script(alive=alive, next_slot=-1, heir_of=-1, reward=1.0, observation=1.0, limit=12, dead=np.nan)
    state, rollout = gather(env, params, agent, 12, 4)
    assert rollout.view.agent_mask.sum() == 4  # in 24 minibatches of two transitions
    after, metrics = update(env, params, agent, state.agent, rollout)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, metrics)))


def test_07_masked_statistics():
    mask = np.array([True, False, True])
    assert masked_mean(np.array([1.0, np.nan, 3.0]), mask) == 2
    np.testing.assert_allclose(normalise(np.array([1.0, np.nan, 3.0]), mask), [-1, 0, 1], rtol=1e-6)
    assert masked_mean(np.array([np.nan]), np.array([False])) == 0
    assert normalise(np.array([5.0, np.inf]), np.array([True, False])).tolist() == [0, 0]
    gradient = jax.grad(lambda x: masked_mean(jnp.where(mask, x, 0) ** 2, mask))(np.array([1.0, np.nan, 3.0]))
    assert gradient.tolist() == [1, 0, 3]


@pytest.mark.parametrize(
    "options", [{}, {"ratio": "joint", "normalise_advantages": "minibatch"}], ids=["per_agent", "joint"]
)
def test_07_a_slot_that_is_always_dead_weighs_nothing(options):
    """Three slots of which the last is empty teach what two do, to the number."""
    plain = {"critic": "local", "widths": (8,), "epochs": 2, "minibatches": 2, "initial_std": 1.0, "entropy": 0.1}
    agent = MAPPO(**plain, learning_rate=0.3, stepper={"optimizer": "sgd"}, **options)
    stays = {"next_slot": (0, 1, -1), "heir_of": (0, 1, -1)}
    params = busy_script(alive=(True, True, False), **stays)
    state, rollout = gather(Scripted(), params, agent, 12, 4)
    fewer = jax.tree.map(lambda x: x[:, :2] if x.ndim > 1 else x, params)
    seen = jax.tree.map(lambda x: x[:, :, :2] if x.ndim > 2 else x, rollout)
    three = update(Scripted(), params, agent, state.agent, rollout)
    two = update(Scripted(num_agents=2), fewer, agent, state.agent, seen)
    close(three, two, rtol=1e-4, atol=1e-5)


def dying_and_born(**changes):
    """The agent of slot 0 dies after time 1, and at once another is born there, who earns 1000."""
    reward = np.ones((LENGTH, 3))
    reward[:3, 0] = (1, 2, 1000)
    stays = np.tile(np.arange(3), (LENGTH, 1))
    stays[1, 0] = -1
    return script(**{"reward": reward, "next_slot": stays, "heir_of": stays, "limit": 3, **changes})


def test_08_no_advantage_crosses_a_reused_slot():
    env, agent = Scripted(), linear(gae_lambda=1.0)
    params = dying_and_born(discount=0.5)
    state, rollout = gather(env, params, agent, 12, 4, nets=critic_of())
    _, metrics = update(env, params, agent, state.agent, rollout)
    # Slot 0: 1 + .5 * 2, then 2, then the newborn's 1000. Slots 1 and 2: 1.75, 1.5, 1. Were the newborn's pay
    # credited to the dead, the sum would be a quarter larger.
    expected = (2**2 + 2**2 + 1000**2 + 2 * (1.75**2 + 1.5**2 + 1**2)) / 9
    assert mean_square_error(metrics) == pytest.approx(expected, rel=1e-6)


def test_08_no_value_crosses_a_reused_slot():
    env, agent = Scripted(), linear(gae_lambda=0.0)
    params = dying_and_born(discount=0.75, reward=1.0)
    state, rollout = gather(env, params, agent, 12, 4, nets=critic_of(bias=4.0))
    _, metrics = update(env, params, agent, state.agent, rollout)
    # Right everywhere but where slot 0 dies: 1 - 4, in one of the nine transitions of an episode's agents.
    assert mean_square_error(metrics) == pytest.approx(9 / 9)


def test_08_credit_moves_with_an_agent_to_another_slot():
    # The agents of slots 0 and 1 change places after the first step; only then is slot 0 paid.
    ones = np.ones((2, 1, 3))
    out = gae(
        np.array([[[0.0, 0, 0]], [[8.0, 0, 4]]]),
        0 * ones,
        0 * ones,
        0.5 * ones,
        np.zeros((2, 1), bool),
        np.zeros((2, 1), bool),
        np.array([[[1, 0, -1]], [[0, 1, 2]]]),
        1.0,
    )
    assert out[0, 0].tolist() == [0, 4, 0]


def test_08_memory_follows_agents_and_ends_with_them():
    env, recorder = Scripted(), Recorder()
    # After time 1 the agent of slot 0 is gone and its slot empty, those of 1 and 2 change places; after time 2 slot 0
    # holds a newborn with the memory of slot 1.
    # Slot 2 begins anew after time 0.
    heir_of = np.tile(np.arange(3), (LENGTH, 1))
    heir_of[:3] = (0, 1, -1), (-1, 2, 1), (1, 1, 2)
    params = script(heir_of=heir_of, limit=5)
    _, rollout = gather(env, params, recorder, 12, 2)
    episode = [[0, 0, 0], [1, 1, 0], [0, 1, 2], [2, 2, 3], [3, 3, 4]]
    np.testing.assert_array_equal(rollout.memory[:, 0], (episode * 3)[:12])
    np.testing.assert_array_equal(rollout.memory[:, 1], (episode * 3)[:12])


# -- 12 to 14: counting --------------------------------------------------------------------------------------------


def coin_table(limit=7):
    """Action 1 pays 2 and ends the episode in place 1, action 0 pays 1 and goes on: episodes of many lengths."""
    return table(
        reward=((1.0, 2.0), (3.0, 4.0), (0, 0)),
        leads_to=((1, 0), (0, 0), (2, 2)),
        ends=((False, False), (False, True), (False, False)),
        limit=limit,
    )


@pytest.mark.parametrize("fresh", [False, True], ids=["running", "fresh_episodes"])
def test_12_episodes_count_when_they_finish(fresh):
    env, params, recorder = Table(), coin_table(), Recorder()
    state = create_train_state(env, params, recorder, num_envs=3, num_iterations=8)
    train_step = make_train_step(env, params, recorder, num_envs=3, num_steps=5, iterations=4, fresh_episodes=fresh)
    chunks = []
    for _ in range(2):
        state, metrics = train_step(state)
        chunks.append(jax.tree.map(np.asarray, metrics))
    metrics = jax.tree.map(lambda *x: np.concatenate(x), *chunks)
    record = metrics["record"]
    total, length, lengths = np.zeros(3), np.zeros(3, int), set()
    for i in range(8):
        finished, returns, steps = 0, 0.0, 0
        if fresh:
            total[:], length[:] = 0, 0
        for t in range(5):
            total += record["reward"][i, t, :, 0]
            length += 1
            for n in np.flatnonzero(record["terminated"][i, t] | record["truncated"][i, t]):
                finished, returns, steps = finished + 1, returns + total[n], steps + length[n]
                lengths.add(int(length[n]))
                total[n], length[n] = 0, 0
        assert metrics["episode/finished"][i] == finished
        assert metrics["episode/return_sum"][i] == pytest.approx(returns, abs=1e-4)
        assert metrics["episode/length_sum"][i] == steps
    assert len(lengths) > 2
    if not fresh:
        assert max(lengths) > 5  # some episodes began an iteration, or a chunk, earlier


def test_12_a_return_is_the_mean_over_living_agents():
    env, recorder = Scripted(), Recorder()
    alive = np.ones((LENGTH, 3), bool)
    alive[1:, 2] = False
    params = script(reward=(1.0, 2.0, 6.0), alive=alive, dead=np.nan, limit=2, next_slot=(0, 1, -1))
    state = create_train_state(env, params, recorder, num_envs=4, num_iterations=1)
    _, metrics = make_train_step(env, params, recorder, num_envs=4, num_steps=6, iterations=3)(state)
    assert (metrics["episode/finished"] == 12).all()
    np.testing.assert_allclose(metrics["episode/return_sum"] / 12, (1 + 2 + 6) / 3 + (1 + 2) / 2, rtol=1e-6)


def test_12_none_finished_is_none():
    sums = {
        "episode/finished": np.array([0, 2, 0]),
        "episode/return_sum": np.array([0.0, 7.0, 0.0]),
        "loss/value": np.array([1.0, 2.0, 3.0]),
    }
    report = summary(sums)
    assert report["episode/return"] == 3.5
    assert report["loss/value"] == 2
    nothing = summary({name: values[:1] for name, values in sums.items()})
    assert np.isnan(nothing["episode/return"])
    assert nothing["episode/finished"] == 0


def test_13_indivisible_batches_say_what_works():
    env, params = Table(), table()
    for minibatches in (5, 7, 48):
        with pytest.raises(UserError, match=r"3 x 8 = 24 .* can be ([\d, ]+)") as caught:
            make_train_step(env, params, MAPPO(minibatches=minibatches), num_envs=8, num_steps=3)
        named = [int(number) for number in str(caught.value).rsplit("can be ", 1)[1].split(",")]
        assert named == [1, 2, 3, 4, 6, 8, 12, 24]
    for works in named:
        check_pair(MAPPO(minibatches=works), env, params, 3, 8)


def norm_of_change(before, after):
    return float(
        jnp.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True)))
    )


def test_14_the_applied_gradient_never_exceeds_the_limit():
    weights = {"a": np.ones(3, np.float32), "b": np.ones((2, 2), np.float32)}

    def change(max_norm, slope):
        """Of one step of gradient descent at rate 1."""
        stepper = Gradient("sgd", max_norm=max_norm)

        @jax.jit
        def step(slope):
            objective = lambda w: Terms({"x": slope * (3 * w["a"].sum() + 4 * w["b"].sum())}, None, {})  # noqa: E731
            after, _, terms = stepper.step(objective, weights, stepper.init(weights), jnp.float32(1.0))
            return jax.tree.map(jnp.subtract, weights, after), terms.aux["loss/grad_norm"]

        return step(jnp.float32(slope))

    length = np.sqrt(3 * 3**2 + 4 * 4**2)
    for slope in (0.0, 1e-3, 0.1, 1.0, 1e6, 1e17):
        moved, norm = change(0.5, slope)
        assert norm == pytest.approx(slope * length, rel=1e-5)
        assert global_norm(moved) == pytest.approx(min(0.5, slope * length), rel=1e-3)
    # Scaled down as a whole: the direction stays.
    np.testing.assert_allclose(change(0.5, 1.0)[0]["a"] / change(0.5, 1.0)[0]["b"][0, 0], 3 / 4, rtol=1e-5)
    np.testing.assert_allclose(change(None, 1.0)[0]["a"], 3)


def global_norm(tree):
    return float(np.sqrt(sum((np.asarray(leaf, float) ** 2).sum() for leaf in jax.tree.leaves(tree))))


def test_14_an_update_moves_no_further_than_the_limit(deep):
    agent, state, rollout = deep
    after, metrics = update(Scripted(), busy_script(), agent, state, rollout)
    assert metrics["loss/grad_norm"] > 0.1
    moved = jax.tree.map(np.subtract, state.nets, after.nets)
    assert global_norm(moved) == pytest.approx(0.1, rel=1e-4)


def test_14_schedules_count_gradient_steps_and_stop_at_their_end():
    _, metrics = train(learning_rate=1.0, num_iterations=3)
    every = np.maximum(1 - np.arange(20) / 12, 0)  # two epochs of two minibatches; three of five iterations planned
    np.testing.assert_allclose(metrics["policy/learning_rate"], every.reshape(5, 4).mean(axis=1), atol=1e-6)


def others():
    """The other two learners, with schedules: how many gradient steps each makes in an iteration of 24 states."""
    common = {"learning_rate": 1.0, "schedule": "linear", "final_rate": 0.0, "widths": (8, 8), "stepper": "sgd"}
    return [
        pytest.param(REINFORCE(**common), 1, id="reinforce"),
        pytest.param(REINFORCE(**common, importance="clip", epochs=2), 2, id="reinforce_again"),
        pytest.param(DEQN(**common, epochs=2, batch_size=12, order=2), 4, id="deqn"),
    ]


@pytest.mark.parametrize(("agent", "steps"), others())
def test_14_of_the_others_too(agent, steps):
    env, params = equimorph.make("BrockMirman-v0")
    state, rollout = gather(env, params, agent, 6, 4)
    for iteration in range(5):
        _, metrics = update(env, params, agent, state.agent, rollout, iteration, 3)
        counts = np.arange(iteration * steps, (iteration + 1) * steps)
        assert metrics["policy/learning_rate"] == pytest.approx(
            np.maximum(1 - counts / (3 * steps), 0).mean(), abs=1e-6
        )


def test_14_numbers_are_traced():
    train()
    compiled = run_chunk._cache_size()
    train(learning_rate=0.5, clip=0.1, gae_lambda=0.5, value_coefficient=1.0, final_rate=0.5)
    assert run_chunk._cache_size() == compiled


# -- 15 to 18: shapes, keys, compilations, gradients ---------------------------------------------------------------


def test_15_a_trailing_axis_is_refused(deep):
    agent, state, _ = deep
    row, seen = np.zeros((5, 3), np.float32), np.zeros((5, 3, 2), np.float32)
    world = np.zeros((5, 3, 8), np.float32)
    good = Batch(seen, world, row == 0, None, seen, row, row, row)
    losses = lambda batch: jax.eval_shape(agent._terms, state.nets, state.head, batch)  # noqa: E731
    losses(good)
    for name in ("log_prob", "advantage", "target", "mask"):
        with pytest.raises(ValueError, match="one shape"):
            losses(good._replace(**{name: getattr(good, name)[..., None]}))
    with pytest.raises(ValueError, match=r"\(5,\).*\(5, 1\)"):
        masked_mean(np.zeros(5), np.ones((5, 1), bool))


def test_15_rewards_of_another_shape_are_refused_once_at_build():
    class Column(Table):
        def step_env(self, *args):
            observation, state, reward, terminated, info = super().step_env(*args)
            return observation, state, reward[None], terminated, info

    class Team(Scripted):
        def step_env(self, *args):
            observation, state, reward, terminated, info = super().step_env(*args)
            return observation, state, reward.sum(), terminated, info

    with pytest.raises(UserError, match=r"Column.*\(1,\).*must be \(\)"):
        make_train_step(Column(), table(), Recorder(), num_envs=2, num_steps=2)
    with pytest.raises(UserError, match=r"Team.*\(\).*must be \(3,\)"):
        make_train_step(Team(), script(), Recorder(), num_envs=2, num_steps=2)


@pytest.mark.parametrize("fresh", [False, True], ids=["running", "fresh_episodes"])
def test_16_episodes_start_differently(fresh):
    env, params, recorder = Scripted(), script(limit=3, label=1.0), Recorder()
    train_step = make_train_step(env, params, recorder, num_envs=4, num_steps=6, iterations=3, fresh_episodes=fresh)
    starts, noise = [], []
    for seed in (0, 1):
        state = create_train_state(env, params, recorder, num_envs=4, num_iterations=3, seed=seed)
        noise.append(float(state.agent["number"]))
        _, metrics = train_step(state)
        states = metrics["record"]["env_state"]
        starts.append(np.asarray(states.label)[np.asarray(states.time) == 0])
        noise.extend(metrics["noise"].tolist())
    assert [len(s) for s in starts] == [24, 24]  # two episodes in each of four environments and three iterations
    assert len(np.unique(np.concatenate(starts))) == 48
    assert len(set(noise)) == 8


def test_16_one_seed_reproduces_bit_for_bit():
    runs = [train(seed=seed) for seed in (3, 3, 4)]
    runs = [(state._replace(key=jax.random.key_data(state.key)), metrics) for state, metrics in runs]
    same(runs[0], runs[1])
    assert runs[0][1]["loss/value"][0] != runs[2][1]["loss/value"][0]


class Careless(Recorder):
    """Uses one key for two things."""

    def act(self, state, memory, view, key, *, explore=True):
        noise = jax.random.uniform(key)
        memory, action, extras = super().act(state, memory, view, key)
        return memory, action, (extras, noise)


def trace(env, params, agent):
    """What compiling would trace; that is where a key consumed twice is found."""
    counts = {"num_envs": 2, "num_steps": 14}
    state = jax.eval_shape(lambda: create_train_state(env, params, agent, num_envs=2, num_iterations=2))
    for fresh in (False, True):
        jax.eval_shape(make_train_step(env, params, agent, fresh_episodes=fresh, **counts), state)


@pytest.mark.parametrize(
    "agent",
    [
        MAPPO(widths=(4,), epochs=2, minibatches=2),
        REINFORCE(widths=(4,), baseline="value"),
        DEQN(widths=(4,), epochs=2, batch_size=4, expectation="all_in_one"),
    ],
    ids=["mappo", "reinforce", "deqn"],
)
def test_16_no_key_is_used_twice(agent):
    with jax.debug_key_reuse(True):
        trace(*equimorph.make("BrockMirman-v0"), agent)


def test_16_no_key_is_used_twice_in_self_play():
    agent = MAPPO(opponents="average", snapshots=2, widths=(4,), epochs=2, minibatches=2)
    with jax.debug_key_reuse(True):
        trace(MatrixGame(), matrix_game(), agent)


def test_16_epochs_are_shuffled_each_anew(monkeypatch):
    keys = []

    def watched(key, *rest):
        jax.debug.callback(lambda data: keys.append(tuple(data.tolist())), jax.random.key_data(key))
        return shuffled(key, *rest)

    monkeypatch.setattr("equimorph.agents.mappo.shuffled", watched)
    env, params, agent = Table(), table(), MAPPO(widths=(3,), epochs=3, minibatches=2)
    state, rollout = gather(env, params, agent, 4, 2)
    update(env, params, agent, state.agent, rollout)
    jax.effects_barrier()
    assert len(keys) == len(set(keys)) == 3


class Noisy(Scripted):
    """Pays at random."""

    def step_env(self, key, *args):
        observation, following, _, ends, info = super().step_env(key, *args)
        return observation, following, jax.random.uniform(key, (3,)), ends, info


def test_16_environments_have_draws_of_their_own():
    _, rollout = gather(Noisy(), script(), linear(), 6, 4)
    assert len(np.unique(rollout.reward)) == 6 * 4 * 3
    assert len(np.unique(rollout.action)) == 6 * 4 * 3 * 2


def test_16_a_key_used_twice_would_be_found():
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        trace(Scripted(), script(), Careless())


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_17_one_compilation_for_three_updates(num_seeds):
    before = run_chunk._cache_size()
    for seed in (0, 1):
        # Equal environments, agents and settings, made anew, share the program too.
        env, params, agent = Scripted(), busy_script(), small_mappo()
        counts = {"num_envs": 4, "num_seeds": num_seeds}
        state = create_train_state(env, params, agent, num_iterations=3 + seed, seed=seed, **counts)
        kinds = jax.tree.map(jax.typeof, state)
        train_step = make_train_step(env, params, agent, num_steps=12, iterations=5, **counts)
        for _ in range(3):
            state, _ = train_step(state)
            assert jax.tree.map(jax.typeof, state) == kinds
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(kinds))
    assert run_chunk._cache_size() <= before + 1  # none, where another test has already compiled it


@pytest.mark.parametrize("name", ["BrockMirman-v0", "StochasticAK-v0", "CellCount-v0", "CartPole-v1"])
def test_17_reset_and_step_give_equal_types(name):
    env, params = equimorph.make(name)
    key = jax.random.key(0)
    first = jax.eval_shape(env.reset_env, key, params)
    action = jax.eval_shape(env.action_space(params).sample, key)
    second = jax.eval_shape(env.step_env, key, first[1], action, params)[:2]
    describe = lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type)  # noqa: E731
    assert jax.tree.map(describe, first) == jax.tree.map(describe, second)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((first, second)))


def every_entry_moves(before, after):
    change = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b), before, after)
    for path, leaf in jax.tree_util.tree_leaves_with_path(change):
        assert (leaf > 0).all(), jax.tree_util.keystr(path)
    return len(jax.tree.leaves(change))


def test_18_every_parameter_receives_a_gradient(deep):
    agent, state, rollout = deep
    silent = eqx.tree_at(lambda a: a.entropy, agent, jnp.zeros_like(agent.entropy))  # the bonus moves the spread too
    for each in (agent, silent):
        after, _ = update(Scripted(), busy_script(), each, state, rollout)
        assert every_entry_moves(state.nets, after.nets) == 13  # two networks of three layers, and the spread


@pytest.mark.parametrize(("agent", "steps"), others())
def test_18_of_the_others_too(agent, steps):
    env, params = equimorph.make("BrockMirman-v0")
    state, rollout = gather(env, params, agent, 6, 4)
    after, _ = update(env, params, agent, state.agent, rollout, 0, 3)
    assert every_entry_moves(state.agent.nets, after.nets) in (6, 7)


# -- the pair ------------------------------------------------------------------------------------------------------


def test_the_competitive_concept_is_refused():
    env, params = equimorph.make("BrockMirman-v0", concept="competitive", eta=0.2)
    for agent in (MAPPO(), REINFORCE()):
        with pytest.raises(UserError, match=r"'planner'.*'competitive'.*deqn"):
            check_pair(agent, env, params, 8, 8)
    check_pair(DEQN(batch_size=8), env, params, 8, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"critic": "globl"}, "Did you mean 'global'"),
        ({"gamma": 1.5}, r"gamma = 1.5.*\[0, 1\]"),
        ({"clip": -0.1}, "clip"),
        ({"epochs": 0}, "epochs"),
        ({"widths": (0,)}, "widths"),
        ({"activation": "tanhh"}, "Did you mean 'tanh'"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"schedule": "constant", "final_rate": 0.1}, "final_rate"),
        ({"normalise_values": False, "value_decay": 0.5}, "value_decay = 0.5 does not apply"),
        ({"stepper": "adamm"}, "Did you mean 'adam'"),
        ({"stepper": {"max_nrom": 1.0}}, "Did you mean 'max_norm'"),
        ({"learning_rate": "fast"}, "learning_rate = 'fast' must be a finite number"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        MAPPO(**arguments)
