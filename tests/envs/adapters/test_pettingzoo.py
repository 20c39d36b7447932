"""PettingZoo's door: its own tests, the same transitions as behind it, and what is refused."""

import dataclasses
import subprocess
import sys
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils import seeding

import equimorph
from equimorph.envs import spaces
from equimorph.envs.environment import add_agent_axis
from equimorph.envs.wrappers import RescaleAction
from equimorph.errors import UserError

from ...probes import Scripted, busy_script, script

pytest.importorskip("pettingzoo")

with warnings.catch_warnings():  # its tests import games of PettingZoo's in a way that it deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

from pettingzoo.utils import parallel_to_aec

from equimorph.envs.adapters import pettingzoo as door
from equimorph.envs.adapters.pettingzoo import PettingZooEnv

SHORT = {"BrockMirman-v0": {"max_steps_in_episode": 7}, "StochasticAK-v0": {"max_steps_in_episode": 7}}
# Built of the parts that CellCount, Elongation (a Box) and WoundHealing (a Dict) have.
ALIKE = {
    *("TargetShape-v0", "TypeBalance-v0", "Chemotaxis-v0", "Aggregation-v0", "FrenchFlag-v0", "StressHomogeneity-v0"),
}
IDS = [
    *[pytest.param(id, marks=pytest.mark.extended) if id in ALIKE else id for id in equimorph.list_envs()],
    "CartPole-v1",
]


def open_door(id, **overrides):
    return equimorph.make(id, api="pettingzoo", **(SHORT.get(id, {}) | overrides))


# -- PettingZoo's own tests ----------------------------------------------------------------------------------------

# A list of possible agents is fixed, and not everybody who could be born is.
UNBORN = "No agents present but not all possible_agents are terminated or truncated"
# PettingZoo finds these unusual: observations without bounds, a single number, nothing to see, and actions of parts.
TASTE = (
    "Action space for each agent probably should be",
    "Agent's (minimum|maximum) observation space value is",
    "Observation is a single number",
    "Observation numpy array is all zeros",
)


@pytest.mark.parametrize("id", IDS)
def test_parallel_api(id, capsys):
    env = open_door(id)
    with warnings.catch_warnings():
        if door._changes(env.env):
            warnings.filterwarnings("ignore", UNBORN)
        parallel_api_test(env, num_cycles=60)
    assert "Passed" in capsys.readouterr().out


@pytest.mark.parametrize("id", IDS)
def test_turn_based_api(id, capsys):
    with warnings.catch_warnings():
        for message in TASTE:
            warnings.filterwarnings("ignore", message)
        api_test(parallel_to_aec(open_door(id)), num_cycles=30)
    assert "Passed" in capsys.readouterr().out


@pytest.mark.parametrize("id", IDS)
def test_seeds(id):
    parallel_seed_test(lambda: open_door(id), num_cycles=10)
    seed_test(lambda: parallel_to_aec(open_door(id)), num_cycles=10)


def test_other_seeds_are_other_episodes():
    env = open_door("BrockMirman-v0")
    first = [env.reset(seed=seed)[0]["agent_0_0"].tolist() for seed in (0, 1)]
    first += [env.reset()[0]["agent_0_0"].tolist() for _ in range(2)]
    first += [open_door("BrockMirman-v0").reset()[0]["agent_0_0"].tolist() for _ in range(2)]
    assert len({tuple(observation) for observation in first}) == 6


# -- the same transitions ------------------------------------------------------------------------------------------

CASES = {
    "BrockMirman-v0": lambda: equimorph.make("BrockMirman-v0", max_steps_in_episode=6),
    "CartPole-v1": lambda: equimorph.make("CartPole-v1"),
    "CellCount-v0": lambda: equimorph.make("CellCount-v0"),
    "hazard": lambda: equimorph.make("CellCount-v0", calibration="hazard"),
    "busy": lambda: (Scripted(discrete=True), busy_script(dead=0.0)),
}


# two compilations of one step differ in the last digit, and the next step starts from there
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("case", CASES)
def test_an_episode_is_the_environments_own(case):
    """Driven by hand with the documented keys: observations, rewards, ends, infos, masks and the global state."""
    env, params = CASES[case]()
    through = PettingZooEnv(env, params)
    reset, step, world = jax.jit(env.reset_env), jax.jit(env.step_env), jax.jit(env.world_state)
    key = jax.random.key(seeding.np_random(7)[0].integers(2**32, dtype=np.uint32))
    key, key_reset = jax.random.split(key)
    expected, state = reset(key_reset, params)
    observations, infos = through.reset(seed=7)
    while through.agents:
        expected = np.asarray(add_agent_axis(env, expected))
        legal = env.action_mask(state, params)
        np.testing.assert_allclose(through.state(), world(state, params), **ROUNDING)
        before = dict(through._roster.slots)
        joint = np.array(through._idle)
        for agent, slot in before.items():
            np.testing.assert_allclose(observations[agent], expected[slot], **ROUNDING)
            mask = infos[agent].get("action_mask")
            assert (mask is None) == (legal is None)
            if mask is not None:
                np.testing.assert_array_equal(mask, legal[slot])
            joint[slot] = through.action_space(agent).sample(mask)
        actions = {agent: joint[slot] for agent, slot in before.items()}
        key, key_step = jax.random.split(key)
        squeezed = joint if env.num_agents > 1 else joint[0]
        expected, following, reward, terminated, told = step(key_step, state, squeezed, params)
        observations, rewards, terminations, truncations, infos = through.step(actions)
        reward = np.asarray(add_agent_axis(env, reward))
        truncated = bool(env.is_truncated(following, params))
        stays = np.asarray(env.successor(state, following, params)) >= 0
        for agent, slot in before.items():
            assert rewards[agent] == pytest.approx(float(reward[slot]), rel=1e-4, abs=1e-5)
            assert terminations[agent] == bool(terminated | ~stays[slot])
            assert truncations[agent] == (truncated and bool(stays[slot]))
            for name, value in told.items():
                np.testing.assert_allclose(infos[agent][name], np.asarray(value).item(), **ROUNDING)
        state = following
    assert bool(terminated) or truncated
    expected = np.asarray(add_agent_axis(env, expected))
    for agent, slot in through._roster.slots.items():
        np.testing.assert_allclose(observations[agent], expected[slot], **ROUNDING)


def test_observations_may_be_written_to_and_lie_in_their_space():
    env = open_door("CellCount-v0")
    observations, _ = env.reset(seed=0)
    for agent, observation in observations.items():
        assert env.observation_space(agent).contains(observation)
        observation[:] = 0.0
    again = env.step(dict.fromkeys(env.agents, 0))[0]
    assert all(observation.any() for observation in again.values())
    assert env.state().dtype == np.float32
    assert env.state_space.contains(env.state())


# -- compilation ---------------------------------------------------------------------------------------------------


def test_equal_environments_share_one_program():
    counts = []
    for seed, beta in ((0, 0.9), (1, 0.8)):
        env = open_door("BrockMirman-v0", beta=beta)
        env.reset(seed=seed)
        for action in (np.float32([0.3]), [0.2], np.array([1], np.int64)):
            env.step({"agent_0_0": action})
        env.state()
        counts.append([program._cache_size() for program in (door._reset, door._step, door._world)])
    assert counts[0] == counts[1]


def test_integers_of_any_width_are_one_program():
    env = open_door("CartPole-v1")
    env.reset(seed=0)
    env.step({"agent_0_0": 0})
    before = door._step._cache_size()
    for action in (np.int8(1), np.uint64(0), np.array(1, np.int64)):
        env.step({"agent_0_0": action})
    assert door._step._cache_size() == before


# -- mistakes, and the rest of the interface -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"cell_0_0": 0, "cell_1_0": 0, "cell_2_0": 0}, "1 of 4 living agents have no action, .* 'cell_3_0'"),
        ({**{f"cell_{i}_0": 0 for i in range(4)}, "cell_4_0": 0}, "no agent 'cell_4_0' is alive. Did you mean"),
        ({**{f"cell_{i}_0": 0 for i in range(3)}, "cell_3_0": 2}, "agent 'cell_3_0'.* one of 0 to 1, got 2"),
        ({**{f"cell_{i}_0": 0 for i in range(3)}, "cell_3_0": 0.5}, "agent 'cell_3_0'.* whole number"),
        ({**{f"cell_{i}_0": 0 for i in range(3)}, "cell_3_0": [0]}, "agent 'cell_3_0'"),
    ],
)
def test_a_wrong_action_is_named(actions, message):
    env = open_door("CellCount-v0")
    env.reset(seed=0)
    state = env.env_state
    with pytest.raises(UserError, match=message) as error:
        env.step(actions)
    assert "\n" not in str(error.value)
    assert env.env_state is state


def test_continuous_actions_are_clipped_by_the_environment_and_nan_is_refused():
    env = open_door("BrockMirman-v0")
    env.reset(seed=0)
    assert env.step({"agent_0_0": [0.5]})[-1]["agent_0_0"]["action_clipped"] is False
    assert env.step({"agent_0_0": [1.5]})[-1]["agent_0_0"]["action_clipped"] is True
    with pytest.raises(UserError, match=r"'agent_0_0'.*not a number"):
        env.step({"agent_0_0": [np.nan]})


def test_steps_need_an_episode():
    env = open_door("BrockMirman-v0", max_steps_in_episode=1)
    for call in (lambda: env.step({}), env.state):
        with pytest.raises(UserError, match=r"no episode has begun; call reset\(\)"):
            call()
    env.reset(seed=0)
    env.step({"agent_0_0": [0.5]})
    with pytest.raises(UserError, match=r"the episode has ended; call reset\(\)"):
        env.step({})


def test_names_are_known_or_refused():
    env = open_door("CellCount-v0")
    assert len(env.possible_agents) == len(set(env.possible_agents)) == 64 * 5
    for agent in (env.possible_agents[0], env.possible_agents[-1]):
        assert env.action_space(agent) is env.action_space(agent)
        assert env.observation_space(agent) is env.observation_space(agent)
    assert env.action_space("cell_0_0") is not env.action_space("cell_1_0")
    env.reset(seed=0)
    for agent in ("cell_64_0", "cell_0_5", "cell_00_0", "cell_1", 3):
        with pytest.raises(UserError, match=f"CellCount-v0 has no agent {agent!r}"):
            env.action_space(agent)
    with pytest.raises(UserError, match="Did you mean 'cell_1_0'"):
        env.observation_space("cell_1__0")


def test_possible_agents_of_a_population_that_stays_and_of_one_too_large_to_list():
    assert open_door("BrockMirman-v0").possible_agents == ["agent_0_0"]
    assert not hasattr(open_door("CellCount-v0", max_steps_in_episode=10_000), "possible_agents")


def test_pictures():
    pendulum, params = equimorph.make("Pendulum-v1")
    env = open_door("CellCount-v0", render_mode="rgb_array")
    with pytest.raises(UserError, match="no episode has begun"):
        env.render()
    env.reset(seed=0)
    picture = env.render()
    assert (picture.dtype, picture.ndim, picture.shape[2]) == (np.uint8, 3, 3)
    np.testing.assert_array_equal(picture, env.env.render(env.env_state, env.params))
    assert open_door("CellCount-v0").render() is None
    assert open_door("CartPole-v1").metadata["render_modes"] == []
    # A wrapper passes pictures on; it has none of its own.
    assert PettingZooEnv(RescaleAction(pendulum), params).metadata["render_modes"] == []
    with pytest.raises(UserError, match=r"unknown render_mode of CellCount-v0 'rgb_aray'\. Did you mean 'rgb_array'"):
        open_door("CellCount-v0", render_mode="rgb_aray")
    env.close()
    env.close()


def test_make_passes_mistakes_on():
    with pytest.raises(UserError, match="Did you mean 'beta'"):
        open_door("BrockMirman-v0", betta=0.9)
    assert float(open_door("BrockMirman-v0", calibration="patient").params.beta) == pytest.approx(0.99)


@dataclasses.dataclass(frozen=True)
class Composite(Scripted):
    """The script, with an action and an observation that are made of parts."""

    def agent_action_space(self, params):
        return spaces.Dict({"move": spaces.Discrete(3), "force": spaces.Tuple([spaces.Box(-1.0, 3.0, (2,))])})

    def agent_observation_space(self, params):
        return spaces.Dict({"pair": spaces.Box(-1e6, 1e6, (2,)), "count": spaces.Discrete(9)})

    def centre(self, params):
        return {"move": jnp.int32(0), "force": (jnp.ones(2),)}

    def observe(self, key, state, action, params):
        return {"pair": super().observe(key, state, action, params), "count": jnp.full((3,), state.time)}

    def world_state(self, state, params):
        return jnp.zeros(1)

    def step_env(self, key, state, action, params):
        *outcome, _ = super().step_env(key, state, action, params)
        return *outcome, {"force": action["force"][0], "move": action["move"]}


def test_spaces_of_parts():
    env = PettingZooEnv(Composite(), script(limit=2))
    observations, _ = env.reset(seed=0)
    actions = {agent: env.action_space(agent).sample() for agent in env.agents}
    for agent in env.agents:
        assert env.observation_space(agent).contains(observations[agent])
    infos = env.step(actions)[-1]
    for agent, action in actions.items():
        assert infos[agent]["move"] == action["move"]
        np.testing.assert_array_equal(infos[agent]["force"], action["force"][0])
    with pytest.raises(UserError, match=r"agent 'agent_1_0'.*move"):
        env.step({**actions, "agent_1_0": {"move": 1}})


def test_without_pettingzoo_it_says_how_to_get_it(tmp_path):
    code = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "import equimorph\n"
        "try: equimorph.make('BrockMirman-v0', api='pettingzoo')\n"
        "except equimorph.errors.UserError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.stdout.strip().endswith("pip install 'equimorph[pettingzoo]'"), run.stderr


def test_spaces_are_gymnasiums():
    env = open_door("CellCount-v0", calibration="hazard")
    assert isinstance(env.action_space("cell_0_0"), gymnasium.spaces.Box)
    assert str(env) == "CellCount-v0"
