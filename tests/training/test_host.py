"""The host-stepped loop: what the compiled loop does, on environments that live outside of JAX."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import MAPPO
from equimorph.agents.estimators import generalised_advantage
from equimorph.envs.environment import drop_agent_axis
from equimorph.errors import UserError
from equimorph.training import host, loop
from equimorph.training.cli import main
from equimorph.training.loop import create_train_state, make_train_step

from ..probes import Recorder, Table, small_mappo, table

LIMIT = 5
TABLE = {
    "reward": ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0)),
    "leads_to": ((1, 2), (0, 2), (2, 0)),
    "ends": ((False, False), (False, True), (True, False)),
}


class TableTwin(gymnasium.Env):
    """`Table` at `TABLE`, always from place 0, as Gymnasium would have it."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.shown(), {}

    def shown(self):
        return np.eye(3, dtype=np.float32)[self.place]

    def step(self, action):
        at = (self.place, int(action))
        self.place = TABLE["leads_to"][at[0]][at[1]]
        return self.shown(), TABLE["reward"][at[0]][at[1]], TABLE["ends"][at[0]][at[1]], False, {}


class Clock(gymnasium.Env):
    """Shows the time and pays 1 a step; all its episodes are truncated after one of `lengths`, which its seed picks."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, lengths=(3,)):
        self.lengths = lengths

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.length = self.lengths[seed % len(self.lengths)]
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time, np.float32), 1.0, False, self.time == self.length, {}


gymnasium.register("HostTest/Table-v0", TableTwin, max_episode_steps=LIMIT)
gymnasium.register("HostTest/Clock-v0", Clock)

SIZES = {"num_envs": 4, "num_steps": 12}


def host_pair(agent, id="HostTest/Table-v0", num_seeds=1, seed=0, iterations=1, fresh_episodes=False, **options):
    """A train state on the host, and the step that goes with it."""
    env, params = equimorph.make(f"gymnasium:{id}", **options)
    return pair(env, params, agent, num_seeds, seed, iterations, fresh_episodes)


def pair(env, params, agent, num_seeds=1, seed=0, iterations=1, fresh_episodes=False):
    state = create_train_state(env, params, agent, num_envs=4, num_iterations=10, seed=seed, num_seeds=num_seeds)
    step = make_train_step(
        env, params, agent, iterations=iterations, fresh_episodes=fresh_episodes, num_seeds=num_seeds, **SIZES
    )
    return state, step


def close(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.shape(x) == np.shape(y)
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    "how", [{}, pytest.param({"fresh_episodes": True}, marks=pytest.mark.extended), {"num_seeds": 2}]
)
def test_a_run_on_the_host_is_the_compiled_run(how):
    """The same decision problem in both worlds, and the same keys: the same learning, number by number."""
    agent = small_mappo(box=False)
    state, step = host_pair(agent, iterations=3, seed=5, **how)
    twin, twin_step = pair(Table(), table(**TABLE, limit=LIMIT), agent, iterations=3, seed=5, **how)
    for _ in range(2):
        state, metrics = step(state)
        twin, expected = twin_step(twin)
        close(metrics, dict(expected))
        assert np.all(metrics["episode/finished"] > 0)
    for name in ("agent", "observation", "running_return", "running_length", "iteration"):
        close(getattr(state, name), getattr(twin, name))
    np.testing.assert_array_equal(jax.random.key_data(state.key), jax.random.key_data(twin.key))


def test_rollouts_have_the_compiled_structure():
    """Shapes, types and containers are those of gymnax's CartPole, and its dynamics are Gymnasium's."""
    agent = MAPPO(widths=(8,))
    env, params = equimorph.make("gymnasium:CartPole-v1", max_steps_in_episode=9)
    theirs, their_params = equimorph.make("CartPole-v1", max_steps_in_episode=9)
    state, _ = pair(env, params, agent)
    parts = host.eqx.partition(agent, host.eqx.is_array)
    keys = jax.random.split(jax.random.key(3), 40)
    _, record = host.collect(state, keys, env, params, parts)
    rollout = host.rollout(record, env, params)

    twin, _ = pair(theirs, their_params, agent)
    expected = jax.eval_shape(
        lambda s, p: loop.collect(s, jax.random.key(0), theirs, p, agent, 40)[1], twin, their_params
    )
    for name in rollout._fields:
        mine, other = getattr(rollout, name), getattr(expected, name)
        if name not in ("env_state", "next_env_state"):
            assert jax.tree.structure(mine) == jax.tree.structure(other)
            described = jax.tree.map(lambda x: (x.shape, jnp.asarray(x).dtype), mine)
            assert described == jax.tree.map(lambda x: (x.shape, x.dtype), other), name

    cart = theirs.reset_env(jax.random.key(0), their_params)[1]

    def one(observation, action, time):
        x, x_dot, theta, theta_dot = observation
        before = cart.replace(x=x, x_dot=x_dot, theta=theta, theta_dot=theta_dot, time=time)
        shown, after, reward, terminated, _ = theirs.step_env(jax.random.key(0), before, action, their_params)
        return shown, reward, terminated, theirs.is_truncated(after, their_params)

    seen = rollout.view.observation[:, :, 0]
    shown, reward, terminated, truncated = jax.vmap(jax.vmap(one))(seen, rollout.action[:, :, 0], record["time"])
    np.testing.assert_allclose(rollout.next_observation[:, :, 0], shown, atol=1e-6)
    np.testing.assert_array_equal(rollout.reward[..., 0], reward)
    np.testing.assert_array_equal(rollout.terminated, terminated)
    np.testing.assert_array_equal(rollout.truncated, truncated)
    done = rollout.terminated | rollout.truncated
    assert np.any(rollout.truncated)
    np.testing.assert_array_equal(record["time"][1:], np.where(done, 0, record["time"] + 1)[:-1])
    np.testing.assert_array_equal(rollout.next_env_state.time, record["time"] + 1)


def test_advantages_bootstrap_from_the_last_observation_of_a_truncated_episode():
    """With the value 10 x time and no discount: what is left of three rewards, and 30 at the cut, less the value now.

    From the observation after the reset, whose value is 0, it would be 3, -8 and -19.
    """
    agent = Recorder()
    state, _ = host_pair(agent, "HostTest/Clock-v0")
    env, params = equimorph.make("gymnasium:HostTest/Clock-v0")
    parts = host.eqx.partition(agent, host.eqx.is_array)
    _, record = host.collect(state, jax.random.split(jax.random.key(0), 6), env, params, parts)
    rollout = host.rollout(record, env, params)
    advantage = generalised_advantage(
        rollout.reward,
        10 * rollout.view.observation[..., 0],
        10 * rollout.next_observation[..., 0],
        jnp.ones_like(rollout.discount),
        rollout.terminated,
        rollout.truncated,
        rollout.successor,
        jnp.float32(1.0),
    )
    np.testing.assert_allclose(advantage[:, 0, 0], [33.0, 22.0, 11.0] * 2)
    np.testing.assert_array_equal(rollout.truncated[:, 0], [False, False, True] * 2)
    assert not np.any(rollout.terminated)


def test_memory_begins_anew_with_each_episode():
    state, step = host_pair(Recorder(), "HostTest/Clock-v0", iterations=2)
    _, metrics = step(state)
    time = metrics["record"]["env_state"].time
    np.testing.assert_array_equal(metrics["record"]["memory"][..., 0], time)
    np.testing.assert_array_equal(time[0, :, 0], [0, 1, 2] * 4)
    np.testing.assert_array_equal(metrics["episode/finished"], [16, 16])
    np.testing.assert_array_equal(metrics["episode/return_sum"], [48.0, 48.0])


traced = []


class Counted(Recorder):
    """Tells when it is traced."""

    def act(self, state, memory, view, key, *, explore=True):
        traced.append("act")
        return super().act(state, memory, view, key, explore=explore)

    def update(self, state, rollout, context, key):
        traced.append("update")
        return super().update(state, rollout, context, key)


def test_nothing_is_compiled_twice():
    state, step = host_pair(Counted(), iterations=2)
    state, _ = step(state)
    assert sorted(set(traced)) == ["act", "update"]
    traced.clear()
    for _ in range(2):
        state, _ = step(state)
    assert traced == []


def test_seeds_repeat_and_differ():
    """CartPole's resets are random: the same seed gives the same numbers, another seed others."""
    runs = [
        equimorph.train(
            "gymnasium:CartPole-v1",
            iterations=2,
            seed=seed,
            num_seeds=num_seeds,
            rollout=SIZES,
            widths=(8,),
            progress=False,
        )
        for seed, num_seeds in ((3, 1), (3, 2), (4, 1))
    ]
    once, both, other = (run.history["loss/value"] for run in runs)
    np.testing.assert_array_equal(once, both)
    second = runs[1].seeds[1].history["loss/value"]
    np.testing.assert_array_equal(second, other)
    assert not np.allclose(once, other)


def test_environments_of_one_run_and_of_its_neighbours_differ():
    starts = []
    for seed in (0, 1):
        env, params = equimorph.make("gymnasium:CartPole-v1")
        starts.append(pair(env, params, Recorder(), seed=seed)[0].observation)
    assert len(np.unique(np.concatenate(starts), axis=0)) == 8


def test_a_state_is_consumed():
    state, step = host_pair(Recorder())
    step(state)
    with pytest.raises(UserError, match="consumed by an earlier call"):
        step(state)


def test_a_state_of_other_numbers_is_refused():
    _, step = host_pair(Recorder())
    env, params = equimorph.make("gymnasium:HostTest/Table-v0")
    state = create_train_state(env, params, Recorder(), num_envs=5, num_iterations=1)
    with pytest.raises(UserError, match="give both the same numbers"):
        step(state)


@pytest.mark.parametrize(
    ("agent", "options", "message"),
    [
        ("deqn", {}, "gymnasium:CartPole-v1.*its actions are Discrete.*'mappo' or 'reinforce'"),
        ("reinforce", {"score": "events"}, "REINFORCE needs 'events'.*use score='actions'"),
    ],
)
def test_learners_that_need_more_are_refused(agent, options, message):
    with pytest.raises(UserError, match=message):
        equimorph.train("gymnasium:CartPole-v1", agent, iterations=1, **options)


# -- scores --------------------------------------------------------------------------------------------------------


def clock_run(**options):
    """A run on `Clock`, whose returns are its lengths whatever the policy does."""
    return equimorph.train(
        "gymnasium:HostTest/Clock-v0", iterations=1, rollout=SIZES, widths=(8,), env=options, progress=False
    )


def test_every_environment_plays_its_share_of_episodes(monkeypatch):
    """Those with short episodes do not play more of them, as they would if the first episodes to end were counted."""
    monkeypatch.setattr(host, "EVALUATION_ENVS", 4)
    seeds = host.host_seeds(jax.random.split(jax.random.key(2))[0], 4)
    lengths = [(1, 9)[seed % 2] for seed in seeds]
    assert set(lengths) == {1, 9}
    played = [*lengths, *lengths, lengths[0], lengths[1]]
    found = equimorph.evaluate(clock_run(lengths=(1, 9)), num_episodes=10, seed=2)
    assert found["return"] == found["score"] == found["return_sampled"] == found["untrained"]["return"]
    assert found["return"] == np.mean(played)
    assert found["score_sd"] == np.std(played)
    assert found["finished"] == 1.0
    assert found["episodes"] == 10


@pytest.mark.parametrize(("options", "horizon", "value", "finished"), [({}, 2, 2, 0), ({}, 3, 3, 0), ({}, 4, 3, 1)])
def test_a_horizon_cuts_episodes(options, horizon, value, finished):
    found = equimorph.evaluate(clock_run(**options), num_episodes=4, horizon=horizon)
    assert (found["return"], found["finished"]) == (value, finished)


def test_episodes_without_a_limit_are_cut(monkeypatch):
    monkeypatch.setattr(host, "LONGEST_EPISODE", 5)
    found = equimorph.evaluate(clock_run(lengths=(1000,)), num_episodes=3)
    assert (found["return"], found["finished"]) == (5.0, 0.0)


def test_a_time_limit_is_an_end():
    found = equimorph.evaluate(clock_run(lengths=(1000,), params={"max_steps_in_episode": 7}), num_episodes=3)
    assert (found["return"], found["finished"]) == (7.0, 1.0)


# -- folders and the command line ----------------------------------------------------------------------------------


def test_a_run_folder_is_opened_and_scored(tmp_path, capsys, caplog):
    folder = tmp_path / "run"
    command = ["train", "gymnasium:CartPole-v1", "--agent", "reinforce", "--iterations", "2", "--out", str(folder)]
    sets = [
        "rollout.num_envs=4",
        "rollout.num_steps=8",
        "evaluation.num_episodes=3",
        "env.params.max_steps_in_episode=9",
    ]
    assert main([*command, *(word for each in sets for word in ("--set", each))]) == 0
    assert "gymnasium:CartPole-v1 is stepped on the host, slower than the compiled loop" in caplog.text
    assert "untrained" in capsys.readouterr().out
    run = equimorph.load(folder)
    assert int(run.params.max_steps_in_episode) == 9
    observation, _ = gymnasium.make("CartPole-v1").reset(seed=0)
    action = run.policy(run.env.encode(observation))
    assert int(run.env.decode(action)) in (0, 1)
    view = host._view(run.env, observation[None], 1)
    expected = jax.vmap(lambda seen: run.agent.policy(run.state)(seen))(view)[0]
    assert int(action) == int(drop_agent_axis(run.env, expected))
    with pytest.raises(UserError, match="has shape"):
        run.policy(np.zeros(3))


# -- learning ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.extended
def test_ppo_learns_gymnasiums_cartpole():
    """195 was CartPole's threshold; a policy at random keeps the pole up for about 22 steps."""
    run = equimorph.train(
        "gymnasium:CartPole-v1",
        iterations=40,
        seed=0,
        rollout={"num_envs": 16, "num_steps": 128},
        learning_rate=1e-3,
        schedule="linear",
        progress=False,
    )
    found = equimorph.evaluate(run, num_episodes=64)
    assert found["untrained"]["return_sampled"] < 40
    assert found["return"] >= 195
