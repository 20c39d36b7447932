"""JaxMARL's environments behind our contract: the same transitions, masks for who and what differs, honest ends."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import MAPPO
from equimorph.errors import UserError
from equimorph.training.loop import create_train_state, make_train_step

from ...probes import gather

pytest.importorskip("jaxmarl")

from equimorph.envs.adapters._jaxmarl import import_jaxmarl
from equimorph.envs.adapters._jaxmarl_spaces import action_layout, observation_bounds
from equimorph.envs.adapters.jaxmarl_in import JaxMARLEnvironment

theirs = import_jaxmarl("jaxmarl.environments.spaces")


def make(name, **overrides):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "OvercookedV2 is now released")
        return equimorph.make(f"jaxmarl:{name}", **overrides)


@pytest.mark.parametrize(
    "name",
    [
        "MPE_simple_tag_v3",
        "switch_riddle",
        pytest.param("MPE_simple_spread_v3", marks=pytest.mark.extended),
        pytest.param("MPE_simple_speaker_listener_v4", marks=pytest.mark.extended),
        pytest.param("coin_game", marks=pytest.mark.extended),
    ],
)
def test_the_contract_is_kept(name):
    equimorph.check_environment(*make(name))


@pytest.mark.parametrize(
    "name",
    [
        "MPE_simple_spread_v3",
        "MPE_simple_tag_v3",
        "switch_riddle",
        pytest.param("overcooked", marks=pytest.mark.extended),
    ],
)
def test_transitions_are_jaxmarls_own(name):
    env, params = make(name, **({"max_steps": 8} if name != "switch_riddle" else {}))
    inner, agents = env.inner, env.inner.agents
    step, own_step = jax.jit(env.step_env), jax.jit(inner.step_env)
    observation, state = jax.jit(env.reset_env)(jax.random.key(0), params)
    shown, own_state = jax.jit(inner.reset)(jax.random.key(0))
    over, steps = False, 0

    def same(observation, shown):
        for row, agent in zip(observation, agents, strict=True):
            own = np.asarray(shown[agent], float)
            corner = row[tuple(map(slice, own.shape))]
            np.testing.assert_allclose(corner, own, rtol=1e-5, atol=1e-6)
            assert np.count_nonzero(row) == np.count_nonzero(corner)

    same(observation, shown)
    while not over:
        key, key_action = jax.random.split(jax.random.key(steps))
        action = env.action_space(params).sample(key_action)
        if name == "switch_riddle":
            action = action % 2  # nobody tells
        observation, state, reward, terminated, _ = step(key, state, action, params)
        shown, own_state, rewards, dones, _ = own_step(key, own_state, dict(zip(agents, action, strict=True)))
        same(observation, shown)
        np.testing.assert_allclose(reward, [rewards[agent] for agent in agents], rtol=1e-5, atol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state.inner, own_state)
        over, steps = bool(dones["__all__"]), steps + 1
        assert bool(terminated) is False
        assert bool(env.is_truncated(state, params)) is over
        assert env.agent_mask(state, params).all()
    # As JaxMARL counts: MPE compares before it counts the step.
    assert steps == (9 if name.startswith("MPE") else 8 if name == "overcooked" else 6)


@pytest.mark.extended
def test_the_loop_resets_and_keeps_the_last_observation():
    env, params = make("MPE_simple_spread_v3", max_steps=3)
    _, rollout = gather(env, params, MAPPO(widths=(4,)), num_steps=9, num_envs=2)
    assert rollout.truncated[:, 0].tolist() == [False, False, False, True] * 2 + [False]
    assert not rollout.terminated.any()
    last, first = rollout.next_observation[3], rollout.view.observation[4]
    assert np.abs(last - first).max() > 0.1
    np.testing.assert_allclose(rollout.next_observation[2], rollout.view.observation[3])
    assert rollout.next_env_state.time[3].tolist() == [4, 4]
    assert rollout.env_state.time[4].tolist() == [0, 0]


# -- ends ----------------------------------------------------------------------------------------------------------


def test_an_answer_is_an_end_and_time_running_out_is_none():
    """The riddle ends when somebody tells, in its last step too; without an answer it is cut off."""
    env, params = make("switch_riddle")
    step = jax.jit(env.step_env)
    for told_at in (0, 3, 5, None):
        _, state = env.reset_env(jax.random.key(1), params)
        for time in range(6):
            action = jnp.full((3,), 2 if time == told_at else 0, jnp.int32)
            _, state, _, terminated, _ = step(jax.random.key(time), state, action, params)
            cut = bool(env.is_truncated(state, params))
            assert bool(terminated) is (time == told_at)
            assert cut is (told_at is None and time == 5)
            if terminated:
                break


def test_our_own_time_limit_truncates():
    env, params = make("MPE_simple_spread_v3", max_steps_in_episode=2)
    assert int(params.max_steps_in_episode) == 2
    assert int(make("MPE_simple_spread_v3", max_steps=7)[1].max_steps_in_episode) == 8
    assert int(make("coin_game")[1].max_steps_in_episode) == 1000
    _, state = env.reset_env(jax.random.key(0), params)
    for expected in (False, True):
        _, state, _, terminated, _ = env.step_env(jax.random.key(1), state, jnp.zeros(3, jnp.int32), params)
        assert bool(env.is_truncated(state, params)) is expected
        assert not terminated


def test_a_game_without_a_clock_terminates():
    env, params = make("coin_game", num_inner_steps=2, num_outer_steps=2)
    step = jax.jit(env.step_env)
    _, state = env.reset_env(jax.random.key(0), params)
    ends = []
    for time in range(4):
        _, state, _, terminated, info = step(jax.random.key(time), state, jnp.zeros(2, jnp.int32), params)
        ends.append((bool(terminated), bool(env.is_truncated(state, params)), bool(info["inner_episode_done"])))
    assert ends == [(False, False, False), (False, False, True), (False, False, False), (True, False, True)]


# -- who and what differs ------------------------------------------------------------------------------------------


def test_smaller_observations_have_zeros_behind():
    env, params = make("MPE_simple_tag_v3")
    assert env.inner.agents[-1] == "agent_0"
    observation, state = env.reset_env(jax.random.key(0), params)
    step = jax.jit(env.step_env)
    for time in range(3):  # until everybody moves
        observation, state, *_ = step(jax.random.key(time), state, jnp.array([1, 2, 3, 4]), params)
    assert observation.shape == (4, 16)
    assert not observation[3, 14:].any()
    assert np.asarray(observation[:3, 14:]).all()
    assert env.agent_observation_space(params).shape == (16,)


@pytest.mark.extended
def test_fewer_actions_are_masked():
    env, params = make("MPE_simple_speaker_listener_v4")
    assert [env.inner.action_space(agent).n for agent in env.inner.agents] == [3, 5]
    state = env.reset_env(jax.random.key(0), params)[1]
    assert env.action_mask(state, params).tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert make("MPE_simple_spread_v3")[0].action_mask(state, params) is None
    _, rollout = gather(env, params, MAPPO(widths=(4,)), num_steps=40, num_envs=4)
    assert int(rollout.action[..., 0].max()) == 2
    assert int(rollout.action[..., 1].max()) == 4


@pytest.mark.extended
def test_roles_are_in_the_agents_names():
    env, params = make("MPE_simple_speaker_listener_v4")
    roles = dict(zip(env.inner.agents, env.agent_roles(params), strict=True))
    assert roles["speaker_0"] != roles["listener_0"]
    env, params = make("MPE_simple_spread_v3")
    assert env.agent_roles(params) is None


def test_what_hanabi_allows_is_the_mask():
    env, params = make("hanabi")
    state = jax.jit(env.reset_env)(jax.random.key(0), params)[1]
    legal = env.inner.get_legal_moves(state.inner)
    np.testing.assert_array_equal(env.action_mask(state, params), [legal[agent] for agent in env.inner.agents])
    assert env.action_mask(state, params).sum(axis=1).min() == 1  # whose turn it is not may only wait


@pytest.mark.extended
def test_continuous_actions_of_two_sizes():
    env, params = make("MPE_simple_world_comm_v3", action_type="Continuous")
    space = env.agent_action_space(params)
    assert space.shape == (9,)
    assert (np.asarray(space.low).tolist(), np.asarray(space.high).tolist()) == ([0.0] * 9, [1.0] * 9)
    _, state = env.reset_env(jax.random.key(0), params)
    step, own_step = jax.jit(env.step_env), jax.jit(env.inner.step_env)
    action = env.action_space(params).sample(jax.random.key(1))
    observation, _, _, _, info = step(jax.random.key(2), state, action, params)
    own = {
        agent: row[: 9 if agent.startswith("lead") else 5] for agent, row in zip(env.inner.agents, action, strict=True)
    }
    shown = own_step(jax.random.key(2), state.inner, own)[0]
    np.testing.assert_allclose(observation[0], shown["leadadversary_0"], rtol=1e-5, atol=1e-6)
    assert not info["action_clipped"]
    beyond, *_, info = step(jax.random.key(2), state, action.at[0].set(3.0), params)
    within, *_ = step(jax.random.key(2), state, action.at[0].set(1.0), params)
    np.testing.assert_array_equal(beyond, within)
    assert info["action_clipped"]


def test_what_does_not_fit_in_one_space_is_refused():
    box, discrete = theirs.Box(0.0, 1.0, (2,)), theirs.Discrete(3)
    with pytest.raises(UserError, match="here they are a Box, b Discrete"):
        action_layout("x", {"a": box, "b": discrete})
    with pytest.raises(UserError, match="here they are a MultiDiscrete"):
        action_layout("x", {"a": theirs.MultiDiscrete([2, 2])})
    with pytest.raises(UserError, match="different bounds"):
        action_layout("x", {"a": box, "b": theirs.Box(-1.0, 1.0, (3,))})
    with pytest.raises(UserError, match=r"observations of the shapes \(2,\), \(3, 3\) do not fit"):
        observation_bounds("x", [box, box], [(2,), (3, 3)])
    with pytest.raises(UserError, match="jaxmarl:storm does not give its observations as a dict of its agents"):
        make("storm")


def test_bounds_of_observations():
    """Declared ones where they are of what is shown, with 0 inside where zeros are put; else none."""
    small, large = theirs.Box(1.0, 2.0, (1,)), theirs.Box(np.array([3.0, 4.0]), np.array([5.0, 6.0]), (2,))
    low, high = observation_bounds("x", [small, large], [(1,), (2,)])
    assert (low.tolist(), high.tolist()) == ([0.0, 0.0], [5.0, 6.0])
    low, high = observation_bounds("x", [large], [(3,)])
    assert np.isinf([low, high]).all()
    low, high = observation_bounds("x", [theirs.MultiDiscrete([2, 5])], [(2,)])
    assert (low.tolist(), high.tolist()) == ([0.0, 0.0], [1.0, 4.0])


def test_the_dead_stay_dead_and_earn_nothing(monkeypatch):
    env, params = make("MPE_simple_spread_v3")
    inner = env.inner
    _, state = env.reset_env(jax.random.key(0), params)
    script = iter([(True, False, False, False), (False, False, False, False), (False, True, False, True)])

    def step_env(key, inner_state, actions):
        shown, following, rewards, _, info = type(inner).step_env(inner, key, inner_state, actions)
        flags = dict(zip([*inner.agents, "__all__"], map(jnp.bool_, next(script)), strict=True))
        return shown, following, dict.fromkeys(rewards, 1.0), flags, info

    monkeypatch.setattr(inner, "step_env", step_env)
    monkeypatch.setattr(inner, "is_terminal", lambda state: jnp.bool_(False), raising=False)
    masks, paid, cut = [], [], []
    for time in range(3):
        _, state, reward, terminated, _ = env.step_env(jax.random.key(time), state, jnp.zeros(3, jnp.int32), params)
        masks.append(state.alive.tolist())
        paid.append(reward.tolist())
        cut.append((bool(terminated), bool(env.is_truncated(state, params))))
    assert paid == [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    assert masks == [[False, True, True], [False, True, True], [False, False, True]]
    assert cut == [(False, False), (False, False), (False, True)]


# -- names, options, identity --------------------------------------------------------------------------------------


def test_equal_options_are_equal_environments():
    (one, _), (two, _), (other, _) = (make("MPE_simple_spread_v3", num_agents=n) for n in (2, 2, 4))
    assert one == two
    assert hash(one) == hash(two)
    assert one != other
    assert one != JaxMARLEnvironment("MPE_simple_tag_v3", {})
    counted = jax.jit(lambda env, x: x, static_argnums=0)
    for env in (one, two, other):
        counted(env, 0.0)
    assert counted._cache_size() == 2
    assert (one.num_agents, one.concept, one.name) == (2, "nash", "jaxmarl:MPE_simple_spread_v3")
    assert make("MPE_simple_v3")[0].concept == "planner"


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        (
            "MPE_simple_spred_v3",
            {},
            r"unknown JaxMARL environment 'MPE_simple_spred_v3'\. Did you mean 'MPE_simple_spr",
        ),
        (
            "MPE_simple_spread_v3",
            {"num_agnts": 2},
            r"jaxmarl:MPE_simple_spread_v3 'num_agnts'\. Did you mean 'num_agents'",
        ),
        ("MPE_simple_spread_v3", {"dampin": 0.1}, r"'dampin'\. Did you mean 'damping'"),
        ("MPE_simple_spread_v3", {"local_ratio": 3.0}, "cannot be made: local_ratio must be between"),
        ("MPE_simple_spread_v3", {"dim_c": 3}, "cannot be made: .*multiple values"),
        ("MPE_simple_spread_v3", {"max_steps_in_episode": 0}, "max_steps_in_episode"),
        ("HeuristicEnemySMAX", {"max_stepz": 9}, r"'max_stepz'\. Did you mean 'max_steps'"),
        ("LearnedPolicyEnemySMAX", {}, "cannot be made: .*'policy' and 'params'"),
        ("JaxRobotarium_rware", {}, "cannot be made: .*not installed"),
    ],
)
def test_a_mistake_is_named(name, overrides, message):
    with pytest.raises(UserError, match=message) as error:
        make(name, **overrides)
    assert "\n" not in str(error.value)


def test_options_that_the_constructor_does_not_name():
    env, _ = make("MPE_simple_spread_v3", damping=0.5)
    assert env.inner.damping == 0.5


def test_calibrations_are_not_theirs():
    with pytest.raises(UserError, match="has no calibrations"):
        make("MPE_simple_spread_v3", calibration="default")


def test_they_go_out_again_by_another_door():
    """A PettingZoo episode of a JaxMARL environment lasts as long as JaxMARL's, and is cut off."""
    pytest.importorskip("pettingzoo")
    env = equimorph.make("jaxmarl:MPE_simple_spread_v3", api="pettingzoo", max_steps=5)
    env.reset(seed=0)
    steps = 0
    while env.agents:
        *_, terminations, truncations, _ = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
        steps += 1
    assert steps == 6
    assert set(truncations.values()) == {True}
    assert set(terminations.values()) == {False}


# -- learning ------------------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_mappo_learns_to_spread():
    """A short run: everything finite, and a return well above the untrained policy's."""
    env, params = make("MPE_simple_spread_v3")
    agent = MAPPO(learning_rate=2e-3, epochs=4, minibatches=4, gamma=0.95)
    chunk = make_train_step(env, params, agent, num_envs=64, num_steps=26, iterations=20)
    state = create_train_state(env, params, agent, num_envs=64, num_iterations=120)
    returns = []
    for _ in range(6):
        state, metrics = chunk(state)
        assert all(np.isfinite(value).all() for value in metrics.values())
        returns.append(float(metrics["episode/return_sum"].sum() / metrics["episode/finished"].sum()))
    assert returns[-1] > returns[0] + 3, returns


@pytest.mark.extended
def test_in_a_battle_the_fallen_wait_and_earn_nothing():
    """Marines that stand still lose; what the living may do and see is JaxMARL's, and a lost battle is an end."""
    env, params = make("HeuristicEnemySMAX", scenario="3m")
    step, own_step = jax.jit(env.step_env), jax.jit(env.inner.step_env)
    look = jax.jit(lambda s: (env.agent_mask(s, params), env.action_mask(s, params), env.world_state(s, params)))
    _, state = jax.jit(env.reset_env)(jax.random.key(0), params)
    stop, fell, over, time = jnp.full(3, 4, jnp.int32), [], False, 0
    while not over:
        before, key = state, jax.random.key(time)
        shown, state, reward, over, _ = step(key, before, stop, params)
        own_shown, own, own_reward, *_ = own_step(key, before.inner, dict(zip(env.inner.agents, stop, strict=True)))
        alive, mask, world = look(state)
        allies = np.asarray(own.state.unit_alive[:3])
        np.testing.assert_array_equal(alive, np.asarray(before.alive) if over else allies)
        np.testing.assert_allclose(shown, np.stack([own_shown[a] for a in env.inner.agents]), atol=1e-5)
        np.testing.assert_allclose(world, own_shown["world_state"], atol=1e-4)
        np.testing.assert_allclose(reward, np.where(before.alive, own_reward["ally_0"], 0), atol=1e-6)
        legal = env.inner.get_avail_actions(own)
        np.testing.assert_array_equal(mask, [legal[a].astype(bool) for a in env.inner.agents])
        assert mask[~allies].sum() == (~allies).sum()
        assert mask[~allies, 4].all()
        assert not env.is_truncated(state, params)
        fell.append(3 - int(allies.sum()))
        time += 1
    assert fell[-1] == 3
    assert {1, 2} & set(fell)


@pytest.mark.extended
def test_an_undecided_battle_is_cut_off():
    env, params = make("HeuristicEnemySMAX", scenario="3m", max_steps=2)
    _, state = env.reset_env(jax.random.key(0), params)
    ends = []
    for time in range(3):
        _, state, _, terminated, _ = env.step_env(jax.random.key(time), state, jnp.full(3, 4, jnp.int32), params)
        ends.append((bool(terminated), bool(env.is_truncated(state, params))))
    assert ends == [(False, False), (False, False), (False, True)]


def test_a_scenario_by_name():
    env, _ = make("HeuristicEnemySMAX", scenario="2s3z")
    assert env.num_agents == 5
    assert env.inner.scenario.tolist() == [2, 2, 3, 3, 3] * 2
    with pytest.raises(UserError, match=r"unknown SMAX scenario '3mm'\. Did you mean '3m'"):
        make("HeuristicEnemySMAX", scenario="3mm")
