"""JaxMARL's door out: the same transitions in dicts, births included, and JaxMARL's own wrappers on top."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs import spaces
from equimorph.envs.environment import add_agent_axis
from equimorph.errors import UserError

from ...probes import Scripted, busy_script, script

pytest.importorskip("jaxmarl")

from equimorph.envs.adapters._jaxmarl import import_jaxmarl
from equimorph.envs.adapters.jaxmarl import JaxMARLEnv, to_jaxmarl

jaxmarl_spaces = import_jaxmarl("jaxmarl.environments.spaces")
MultiAgentEnv = import_jaxmarl("jaxmarl.environments.multi_agent_env").MultiAgentEnv
wrappers = import_jaxmarl("jaxmarl.wrappers.baselines")


def busy(**changes):
    """Three agents who are born and die, with three actions each, in episodes of five steps."""
    return JaxMARLEnv(Scripted(discrete=True), busy_script(dead=0.0, **changes))


def stacked(env, by_agent):
    return np.stack([by_agent[agent] for agent in env.agents])


def split(env, joint):
    return {agent: joint[i] for i, agent in enumerate(env.agents)}


# -- the same transitions ------------------------------------------------------------------------------------------


def test_a_loop_over_dicts_is_the_environments_own():
    """Scanned and vmapped, with births and resets: every array equals what `step_env` gives with the same keys."""
    door = equimorph.make("CellCount-v0", api="jaxmarl", capacity=8, target=6, max_steps_in_episode=4)
    env, params = door.env, door.params
    steps, copies = 12, 3
    space = env.action_space(params)

    @jax.jit
    def through(key):
        def step(carry, key):
            state, observations = carry
            key_action, key = jax.random.split(key)
            actions = split(door, space.sample(key_action))
            legal = door.get_avail_actions(state)
            observations, following, *told = door.step(key, state, actions)
            return (following, observations), (state, observations, *told, legal)

        observations, state = door.reset(key)
        return jax.lax.scan(step, (state, observations), jax.random.split(key, steps))[1]

    @jax.jit
    def own(key):
        def step(state, key):
            key_action, key = jax.random.split(key)
            key, key_reset = jax.random.split(key)
            observation, following, reward, terminated, info = env.step_env(
                key, state, space.sample(key_action), params
            )
            over = terminated | env.is_truncated(following, params)
            fresh = env.reset_env(key_reset, params)
            after = jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, (observation, following))
            alive, stays = env.agent_mask(following, params), env.successor(state, following, params) >= 0
            done = over | ~alive | (env.agent_mask(state, params) & ~stays)
            world = env.world_state(after[1], params)
            return after[1], (state, after[0], world, reward, done, over, info, env.agent_mask(state, params))

        return jax.lax.scan(step, env.reset_env(key, params)[1], jax.random.split(key, steps))[1]

    keys = jax.random.split(jax.random.key(4), copies)
    states, observations, rewards, dones, infos, legal = jax.vmap(through)(keys)
    their_states, observation, world, reward, done, over, info, alive = jax.vmap(own)(keys)
    same = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(same, states, their_states)
    for i, agent in enumerate(door.agents):
        same(observations[agent], observation[:, :, i])
        same(rewards[agent], reward[:, :, i])
        np.testing.assert_array_equal(dones[agent], done[:, :, i])
        dead = ~np.asarray(alive[:, :, i])
        assert not np.asarray(rewards[agent])[dead].any()
        np.testing.assert_array_equal(legal[agent], np.where(dead[..., None], [True, False], True))
    same(observations["world_state"], world)
    np.testing.assert_array_equal(dones["__all__"], over)
    np.testing.assert_array_equal(infos["terminated"], np.repeat(over[..., None], env.num_agents, axis=-1))
    assert not infos["truncated"].any()
    for name, value in info.items():
        np.testing.assert_array_equal(infos[name], np.repeat(np.asarray(value)[..., None], env.num_agents, axis=-1))
    assert over.sum() >= 2 * copies
    newborn = ~np.asarray(alive)[:, :-1] & np.asarray(alive)[:, 1:] & ~np.asarray(over)[:, :-1, None]
    assert newborn.any()
    assert not stacked(door, dones).transpose(1, 2, 0)[:, :-1][newborn].any()


def test_actions_without_choices_are_all_available():
    door = JaxMARLEnv(Scripted(), busy_script())
    available = door.get_avail_actions(door.reset(jax.random.key(0))[1])
    assert {agent: mask.tolist() for agent, mask in available.items()} == {key: [True, True] for key in door.agents}


def test_a_life_ends_where_a_slot_changes_hands():
    """Slot 0 dies and stays empty; slot 1 is retaken at once; slot 2 is born; then the time limit ends all."""
    alive = np.array([[1, 1, 0], [0, 1, 1], [0, 1, 1]] + [[1, 1, 1]] * 5, bool)
    next_slot = np.array([[-1, -1, -1], [-1, 1, 2]] + [[0, 1, 2]] * 6)
    door = JaxMARLEnv(Scripted(), script(alive=alive, next_slot=next_slot, dead=0.0, limit=2))
    _, state = door.reset(jax.random.key(0))
    actions = dict.fromkeys(door.agents, jnp.zeros(2))
    _, state, _, dones, infos = door.step_env(jax.random.key(0), state, actions)
    assert {k: bool(v) for k, v in dones.items()} == {
        "agent_0": True,
        "agent_1": True,
        "agent_2": False,
        "__all__": False,
    }
    assert not infos["truncated"].any()
    _, _, _, dones, infos = door.step_env(jax.random.key(0), state, actions)
    assert all(dones.values())
    assert infos["truncated"].tolist() == [True] * 3
    assert not infos["terminated"].any()


def test_illegal_actions_are_not_available():
    env, params = Scripted(discrete=True), busy_script(dead=0.0)
    door = JaxMARLEnv(env, params)
    _, state = door.reset(jax.random.key(0))
    for time in range(5):
        available = stacked(door, door.get_avail_actions(state.replace(time=jnp.int32(time))))
        expected = np.where(params.alive[time][:, None], params.legal[time], [True, False, False])
        np.testing.assert_array_equal(available, expected)


# In every run one agent, generations that succeed each other, households with integers in their state, one shot.
SEVERAL = ["BrockMirman-v0", "OLG-v0", "KrusellSmith-v0", "Auction-v0"]
MORE = [pytest.param(id, marks=pytest.mark.extended) for id in ("FishWar-v0", "IRBC-v0", "Cournot-v0")]


@pytest.mark.parametrize("id", [*SEVERAL, *MORE])
def test_every_environment_steps(id):
    door = equimorph.make(id, api="jaxmarl")
    assert isinstance(door, MultiAgentEnv)
    assert door.num_agents == len(door.agents) == door.env.num_agents
    observations, state = door.reset(jax.random.key(0))
    expected, their_state = jax.jit(door.env.reset_env)(jax.random.key(0), door.params)
    joint = door.env.action_space(door.params).sample(jax.random.key(1))
    actions = split(door, add_agent_axis(door.env, joint))
    np.testing.assert_allclose(
        stacked(door, observations), add_agent_axis(door.env, np.asarray(expected)), rtol=1e-5, atol=1e-5
    )
    observations, _, rewards, dones, _ = door.step_env(jax.random.key(2), state, actions)
    expected, _, reward, *_ = jax.jit(door.env.step_env)(jax.random.key(2), their_state, joint, door.params)
    np.testing.assert_allclose(
        stacked(door, observations), add_agent_axis(door.env, np.asarray(expected)), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(stacked(door, rewards), np.atleast_1d(reward), rtol=1e-5, atol=1e-5)
    assert set(dones) == {*door.agents, "__all__"}
    assert observations["world_state"].shape == (door.state_size,) == (door.world_state_size(),)
    for agent in door.agents:
        assert door.action_space(agent).contains(actions[agent])
        assert door.observation_space(agent).contains(observations[agent])


def test_step_can_reset_to_a_given_state():
    door = busy(limit=1, label=1.0)
    _, state = door.reset(jax.random.key(0))
    observations, wanted = door.reset(jax.random.key(9))
    after, reached, *_ = door.step(jax.random.key(1), state, dict.fromkeys(door.agents, 0), wanted)
    jax.tree.map(np.testing.assert_array_equal, reached, wanted)
    jax.tree.map(np.testing.assert_allclose, after, observations)


# -- JaxMARL's wrappers --------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_rollout_manager():
    """Batches, the agents' ids behind each observation, zeros for the done, the sum of rewards."""
    door = busy()
    manager = wrappers.CTRolloutManager(door, batch_size=4)
    observations, state = manager.batch_reset(jax.random.key(0))
    np.testing.assert_array_equal(observations["agent_2"][:, 2:], np.eye(3)[[2] * 4])
    actions = {
        agent: manager.batch_sample(key, agent)
        for agent, key in zip(door.agents, jax.random.split(jax.random.key(1), 3), strict=True)
    }
    keys = jax.random.split(jax.random.key(2), 4)
    observations, _, rewards, dones, _ = manager.batch_step(jax.random.key(2), state, actions)
    own, _, earned, *_ = jax.vmap(door.step)(keys, state, actions)
    for agent in door.agents:
        shown = np.where(np.asarray(dones[agent])[:, None], 0, own[agent])
        np.testing.assert_allclose(observations[agent][:, :2], shown)
    np.testing.assert_allclose(rewards["__all__"], sum(earned[agent] for agent in door.agents), rtol=1e-6)
    assert observations["__all__"].shape == (4, 6)
    assert set(manager.get_valid_actions(state)) == set(door.agents)


@pytest.mark.parametrize("wrapper", ["LogWrapper", "MPELogWrapper"])
def test_log_wrappers_count_episodes(wrapper):
    door = busy()
    logged = getattr(wrappers, wrapper)(door)
    factor = door.num_agents if wrapper == "MPELogWrapper" else 1
    _, state = logged.reset(jax.random.key(0))
    earned = np.zeros(3)
    for key in jax.random.split(jax.random.key(1), 5):
        actions = split(door, door.env.action_space(door.params).sample(key))
        _, state, rewards, dones, infos = logged.step(key, state, actions)
        earned += stacked(door, rewards)
    assert dones["__all__"]
    np.testing.assert_allclose(infos["returned_episode_returns"], factor * earned, rtol=1e-5)
    assert infos["returned_episode_lengths"].tolist() == [5] * 3
    # JaxMARL's learners flatten every entry to one number an agent.
    assert all(leaf.shape == (3,) for leaf in jax.tree.leaves(infos))


class WorldStateWrapper(wrappers.JaxMARLWrapper):
    """The centralised critic's view for each agent, with its id: what JaxMARL's MAPPO puts around SMAX."""

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key):
        observations, state = self._env.reset(key)
        return self.with_world(observations), state

    @functools.partial(jax.jit, static_argnums=0)
    def step(self, key, state, actions):
        observations, *rest = self._env.step(key, state, actions)
        return self.with_world(observations), *rest

    def with_world(self, observations):
        world = jnp.tile(observations["world_state"], (self._env.num_agents, 1))
        return {**observations, "world_state": jnp.concatenate([world, jnp.eye(self._env.num_agents)], axis=1)}

    def world_state_size(self):
        return self._env.state_size + self._env.num_agents


def test_a_wrapped_world_state_and_actions_of_shape_one():
    """Actions may come as `(num_envs, 1)`, which is how JaxMARL's learners hand them over."""
    door = busy()
    env = wrappers.LogWrapper(WorldStateWrapper(door))
    keys = jax.random.split(jax.random.key(0), 4)
    observations, state = jax.vmap(env.reset)(keys)
    assert observations["world_state"].shape == (4, 3, env.world_state_size())
    actions = dict.fromkeys(door.agents, jnp.ones((4, 1), jnp.int32))
    column = jax.vmap(env.step)(keys, state, actions)
    flat = jax.vmap(env.step)(keys, state, {agent: x[:, 0] for agent, x in actions.items()})
    jax.tree.map(np.testing.assert_array_equal, column, flat)


# -- identity, and mistakes ----------------------------------------------------------------------------------------


def test_equal_doors_share_one_program():
    one, two, other = busy(), busy(), busy(discount=0.5)
    assert one == two
    assert hash(one) == hash(two)
    assert one != other
    results = []
    for door in (one, two):
        _, state = door.reset(jax.random.key(0))
        door.step(jax.random.key(1), state, dict.fromkeys(door.agents, 0))
        results.append((JaxMARLEnv.reset._cache_size(), MultiAgentEnv.step._cache_size()))
    assert results[0] == results[1]
    other.reset(jax.random.key(0))
    assert JaxMARLEnv.reset._cache_size() == results[0][0] + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent_1": None}, "'agent_1' has no action; give one for each"),
        ({"agnt_2": 0}, r"has no agent 'agnt_2'\. Did you mean 'agent_2'"),
        ({"agent_2": 0.5}, r"action of 'agent_2' must be int32\[\], got float32\[\]"),
        ({"agent_2": np.zeros(2, int)}, r"action of 'agent_2' must be int32\[\], got int32\[2\]"),
        ({"agent_2": (0, 1)}, "action of 'agent_2' must be built like"),
    ],
)
def test_a_wrong_action_is_named(change, message):
    door = busy()
    _, state = door.reset(jax.random.key(0))
    actions = dict.fromkeys(door.agents, 0) | change
    with pytest.raises(UserError, match=message) as error:
        door.step_env(jax.random.key(0), state, {agent: x for agent, x in actions.items() if x is not None})
    assert "\n" not in str(error.value)


def test_spaces_and_their_twins():
    key = jax.random.key(0)
    nested = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Box(-1.0, 2.0, (2,))])})
    twin = to_jaxmarl(nested)
    assert bool(twin.contains(nested.sample(key)))
    assert isinstance(twin.spaces["a"], jaxmarl_spaces.Discrete)
    assert (twin.spaces["a"].n, twin.spaces["b"].spaces[0].high) == (3, 2.0)
    choices = to_jaxmarl(spaces.MultiDiscrete([2, 5]))
    assert isinstance(choices, jaxmarl_spaces.MultiDiscrete)
    assert choices.num_categories.tolist() == [2, 5]
    with pytest.raises(UserError, match="JaxMARL has no twin"):
        to_jaxmarl(spaces.MultiDiscrete([[2, 3], [4, 5]]))


def test_make_passes_mistakes_on():
    with pytest.raises(UserError, match="Did you mean 'target'"):
        equimorph.make("CellCount-v0", api="jaxmarl", targt=3.0)


def python(code, cwd):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120
    )


def test_import_is_late_and_quiet(tmp_path):
    code = (
        "import sys, equimorph\n"
        "equimorph.make('BrockMirman-v0')\n"
        "assert 'jaxmarl' not in sys.modules\n"
        "import warnings; warnings.filterwarnings('ignore', 'jax.core.pytype')\n"
        "streams = sys.stdout, sys.stderr\n"
        "equimorph.make('BrockMirman-v0', api='jaxmarl')\n"
        "assert (sys.stdout, sys.stderr) == streams\n"
        "print('made')"
    )
    run = python(code, tmp_path)
    assert run.stdout == "made\n", run.stderr


def test_without_jaxmarl_it_says_how_to_get_it(tmp_path):
    code = (
        "import sys; sys.modules['jaxmarl'] = None\n"
        "import equimorph\n"
        "try: equimorph.make('BrockMirman-v0', api='jaxmarl')\n"
        "except equimorph.errors.UserError as error: print(error)"
    )
    run = python(code, tmp_path)
    assert run.stdout.strip().endswith("pip install 'equimorph[jaxmarl]'"), run.stderr
