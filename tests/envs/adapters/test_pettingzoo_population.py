"""PettingZoo's door where agents are born, die and move: a name is a person for life."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jaxtyping import Array

import equimorph
from equimorph.envs import spaces
from equimorph.envs.environment import Environment, EnvParams, EnvState, canonical_params

from ...probes import Scripted, script

pytest.importorskip("pettingzoo")

with warnings.catch_warnings():  # its tests import games of PettingZoo's in a way that it deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import parallel_api_test

from equimorph.envs.adapters.pettingzoo import PettingZooEnv


@struct.dataclass
class Town(EnvState):
    """Who lives in each house, by a number that nobody else ever gets; -1 where nobody does."""

    person: Array
    newest: Array


@dataclasses.dataclass(frozen=True)
class Moving(Environment):
    """People die, are born and move house at random. Each sees its own number, and earns it."""

    num_agents: int = 5
    concept: str = "nash"

    @property
    def default_params(self):
        return canonical_params(EnvParams(max_steps_in_episode=40))

    def agent_action_space(self, params):
        return spaces.Box(0.5, 2.0, (2,))

    def agent_observation_space(self, params):
        return spaces.Box(0.0, 1e6, (2,))

    def agent_mask(self, state, params):
        return state.person >= 0

    def observe(self, key, state, action, params):
        seen = jnp.stack([state.person, jnp.full_like(state.person, state.time)], axis=-1).astype(float)
        return jnp.where(self.agent_mask(state, params)[:, None], seen, 0.0)

    def reset_env(self, key, params):
        state = Town(jnp.int32(0), jnp.array([0, 1, 2, -1, -1], jnp.int32), jnp.int32(2))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        action, clipped = self.legal_action(action, params)
        key_move, key_die, key_born = jax.random.split(key, 3)
        person = jax.random.permutation(key_move, state.person)
        person = jnp.where(jax.random.uniform(key_die, person.shape) < 0.2, -1, person)
        born = (person < 0) & (jax.random.uniform(key_born, person.shape) < 0.4)
        number = state.newest + jnp.cumsum(born, dtype=jnp.int32)
        following = Town(state.time + 1, jnp.where(born, number, person), number[-1])
        reward = jnp.where(state.person >= 0, state.person + action.sum(-1), 0.0)
        info = {"action_clipped": clipped, "double": 2 * state.person, "alive": (state.person >= 0).sum()}
        return self.observe(key, following, None, params), following, reward, jnp.zeros((), bool), info

    def successor(self, state, next_state, params):
        same = (state.person[:, None] == next_state.person[None, :]) & (state.person >= 0)[:, None]
        return jnp.where(same.any(1), jnp.argmax(same, axis=1), -1).astype(jnp.int32)


def random_actions(env):
    return {agent: env.action_space(agent).sample() for agent in env.agents}


def test_a_name_is_a_person_for_life():
    env = PettingZooEnv(Moving(), Moving().default_params)
    observations, infos = env.reset(seed=3)
    assert env.agents == ["agent_0_0", "agent_1_0", "agent_2_0"]
    assert infos == {agent: {} for agent in env.agents}
    person = {agent: int(observation[0]) for agent, observation in observations.items()}
    gone, moves, births = set(), 0, 0
    while env.agents:
        acting, slots = list(env.agents), dict(env._roster.slots)
        state, actions = env.env_state, random_actions(env)
        observations, rewards, terminations, truncations, infos = env.step(actions)
        now, over = np.asarray(env.env_state.person).tolist(), int(env.env_state.time) == 40
        for agent in observations:
            if agent not in acting:
                births += 1
                assert agent not in person
                assert infos[agent]["alive"] == len(acting)
                assert "double" not in infos[agent]
                assert rewards[agent] == 0
                person[agent] = int(observations[agent][0])
                assert person[agent] > int(state.newest)
                continue
            assert rewards[agent] == pytest.approx(person[agent] + actions[agent].sum())
            assert infos[agent]["double"] == 2 * person[agent]
            assert observations[agent][0] == person[agent]  # also of the dead: what they saw last
            lives = person[agent] in now
            assert terminations[agent] is not lives
            assert truncations[agent] is (over and lives)
            moves += lives and now.index(person[agent]) != slots[agent]
        gone |= {agent for agent in observations if terminations[agent] or truncations[agent]}
        assert not gone & set(env.agents)
        assert {person[agent] for agent in env.agents} == (set() if over else {p for p in now if p >= 0})
        assert set(observations) <= set(env.possible_agents)
    assert len(set(person.values())) == len(person)
    assert moves > 20
    assert births > 20
    assert any(agent.endswith("_3") for agent in person)  # a slot that was taken for the fourth time


def test_deaths_and_reuse_of_a_slot_by_hand():
    """Slot 1 dies in the first step, is empty for one, and is taken in the third; slot 0 is retaken at once."""
    alive = np.array([[1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 1, 1]] + [[1, 1, 1]] * 4, bool)
    next_slot = np.array([[0, -1, 2], [0, -1, 2], [-1, -1, 2]] + [[0, 1, 2]] * 5)
    env = PettingZooEnv(Scripted(), script(alive=alive, next_slot=next_slot, reward=[1.0, 2.0, 3.0], dead=0.0, limit=5))
    lives = [["agent_0_0", "agent_1_0", "agent_2_0"]]
    env.reset(seed=0)
    told = []
    while env.agents:
        _, rewards, terminations, truncations, _ = env.step(random_actions(env))
        lives.append(sorted(env.agents))
        told.append((rewards, terminations, truncations))
    assert lives[1:] == [
        ["agent_0_0", "agent_2_0"],
        ["agent_0_0", "agent_2_0"],
        ["agent_0_1", "agent_1_1", "agent_2_0"],
        ["agent_0_1", "agent_1_1", "agent_2_0"],
        [],
    ]
    assert told[0][0] == {"agent_0_0": 1.0, "agent_1_0": 2.0, "agent_2_0": 3.0}
    assert told[0][1] == {"agent_0_0": False, "agent_1_0": True, "agent_2_0": False}
    assert told[2][1] == {"agent_0_0": True, "agent_1_1": False, "agent_2_0": False, "agent_0_1": False}
    assert told[2][0] == {"agent_0_0": 1.0, "agent_2_0": 3.0, "agent_1_1": 0.0, "agent_0_1": 0.0}
    assert set(told[4][2].values()) == {True}
    assert set(told[4][1].values()) == {False}


def test_an_agent_that_dies_as_time_runs_out_is_terminated_and_newborns_are_not_listed():
    alive = np.array([[1, 1, 0], [0, 1, 1]] + [[1, 1, 1]] * 6, bool)
    env = PettingZooEnv(Scripted(), script(alive=alive, next_slot=[-1, 1, -1], dead=0.0, limit=1))
    env.reset(seed=0)
    _, _, terminations, truncations, _ = env.step(random_actions(env))
    assert terminations == {"agent_0_0": True, "agent_1_0": False}
    assert truncations == {"agent_0_0": False, "agent_1_0": True}
    assert env.agents == []


def test_cells_divide():
    env = equimorph.make("CellCount-v0", api="pettingzoo")
    env.reset(seed=0)
    founders = list(env.agents)
    assert founders == [f"cell_{slot}_0" for slot in range(4)]
    observations, rewards, terminations, _, infos = env.step(dict.fromkeys(founders, 1))
    assert env.agents[:4] == founders
    assert len(env.agents) == infos[founders[0]]["num_cells"] == 8
    assert set(observations) == set(env.agents) == set(rewards)
    assert not any(terminations.values())
    assert infos[env.agents[-1]]["overflow"] is False
    while env.agents:
        *_, terminations, truncations, infos = env.step(random_actions(env))
    assert set(terminations.values()) == {True}
    assert set(truncations.values()) == {False}


def test_dead_slots_do_not_flag_clipping():
    env = PettingZooEnv(Moving(), Moving().default_params)
    env.reset(seed=0)
    assert not any(info["action_clipped"] for info in env.step(random_actions(env))[-1].values())


def test_parallel_api_where_people_move(capsys):
    with warnings.catch_warnings():
        # Not everybody who could be born is.
        warnings.filterwarnings("ignore", "No agents present but not all possible_agents are terminated or truncated")
        parallel_api_test(PettingZooEnv(Moving(), Moving().default_params), num_cycles=60)
    assert "Passed" in capsys.readouterr().out
