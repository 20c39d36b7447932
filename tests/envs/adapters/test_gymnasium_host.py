"""Gymnasium's environments as learners know them, and their stepping on the host."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import equimorph
from equimorph.envs import spaces
from equimorph.envs.adapters._gymnasium_encoding import encode, encoded_space
from equimorph.envs.adapters.gymnasium_host import UNLIMITED
from equimorph.errors import UserError


class Still(gymnasium.Env):
    """Has the spaces that it is given."""

    def __init__(self, observations=None, actions=None):
        self.observation_space = observations or Box(-1.0, 1.0, (2,))
        self.action_space = actions or Discrete(2)


def vector(mode):
    return lambda num_envs, max_episode_steps=-1: SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1", max_episode_steps=max_episode_steps)] * num_envs, autoreset_mode=mode
    )


gymnasium.register("AdapterTest/Still-v0", Still)
gymnasium.register("AdapterTest/SameStep-v0", vector_entry_point=vector(AutoresetMode.SAME_STEP), max_episode_steps=9)
gymnasium.register("AdapterTest/NextStep-v0", vector_entry_point=vector(AutoresetMode.NEXT_STEP))


def still(**given):
    return equimorph.make("gymnasium:AdapterTest/Still-v0", **given)[0]


@pytest.mark.parametrize(
    ("id", "overrides", "message"),
    [
        ("CartPol-v1", {}, "gymnasium:CartPol-v1 is not known to Gymnasium: .*Did you mean: `CartPole`"),
        ("CartPole-v9", {}, "version `v9` for environment `CartPole` doesn't exist.*`v1`"),
        ("CartPole", {}, "Did you mean 'CartPole-v1'"),
        ("CartPole-v1", {"sutton_barto_rewards": True}, "gymnasium:CartPole-v1 .*Did you mean 'sutton_barto_reward'"),
        ("CartPole-v1", {"max_step_in_episode": 3}, "Did you mean 'max_steps_in_episode'"),
        ("CartPole-v1", {"max_episode_steps": 3, "max_steps_in_episode": 4}, "are both set"),
        ("CartPole-v1", {"max_steps_in_episode": 0}, "max_steps_in_episode = 0"),
        ("FrozenLake-v1", {"map_name": "9y9"}, "gymnasium:FrozenLake-v1 cannot be made: KeyError '9y9'"),
        ("AdapterTest/NextStep-v0", {}, "vector environment only, which resets in mode AutoresetMode.NEXT_STEP"),
    ],
)
def test_mistakes_are_told_in_one_line(id, overrides, message):
    with pytest.raises(UserError, match=message) as caught:
        equimorph.make(f"gymnasium:{id}", **overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"actions": Box(-np.inf, np.inf, (1,))}, "actions are unbounded, from -inf to inf.*finite bounds"),
        ({"actions": Box(0, 5, (1,), np.int32)}, "real numbers, this one takes int32"),
        ({"actions": MultiDiscrete([2, 3])}, "no actions for a MultiDiscrete space"),
        ({"observations": Text(5)}, "observations in a Text space have no fixed size"),
        ({"observations": Dict(a=Discrete(2), b=Graph(Discrete(2), None))}, "in a Graph space"),
    ],
)
def test_spaces_that_learners_cannot_take_are_refused_by_name(given, message):
    with pytest.raises(UserError, match=f"gymnasium:AdapterTest/Still-v0: .*{message}"):
        still(**given)


def test_what_a_learner_knows():
    env, params = equimorph.make("gymnasium:CartPole-v1")
    assert env.name == "gymnasium:CartPole-v1"
    assert env.num_agents == 1
    assert env.num_actions == 2
    assert env.capabilities == {"host"}
    assert int(params.max_steps_in_episode) == 500
    space = env.observation_space(params)
    np.testing.assert_array_equal(space.high, gymnasium.make("CartPole-v1").observation_space.high)
    assert int(equimorph.make("gymnasium:Blackjack-v1")[1].max_steps_in_episode) == UNLIMITED


def test_equal_by_value():
    def hashes(id="gymnasium:CartPole-v1", **options):
        env = equimorph.make(id, **options)[0]
        return env, hash(env)

    assert hashes() == hashes()
    assert hashes(sutton_barto_reward=True) == hashes(sutton_barto_reward=True)
    for other in (hashes(sutton_barto_reward=True), hashes("gymnasium:Acrobot-v1")):
        assert hashes()[0] != other[0]
    lake = ["SF", "FG"]
    assert hashes("gymnasium:FrozenLake-v1", desc=lake) == hashes("gymnasium:FrozenLake-v1", desc=list(lake))


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (Discrete(3, start=5), 6, [0, 1, 0]),
        (MultiDiscrete([2, 3]), [1, 2], [0, 1, 0, 0, 1]),
        (MultiDiscrete([[2], [3]], start=[[1], [0]]), [[1], [1]], [1, 0, 0, 1, 0]),
        (MultiBinary(3), [1, 0, 1], [1, 0, 1]),
        (Box(-5.0, 5.0, (2,), np.float64), [0.5, -1.0], [0.5, -1.0]),
        (Box(0, 255, (2,), np.uint8), [0, 200], [0, 200]),
    ],
)
def test_observations_are_numbers(space, value, expected):
    """Choices are one-hot; the rest is as it was; one observation or a batch of them."""
    value = np.asarray(value)
    like = encoded_space("it", space)
    for given, wanted in ((value, np.array(expected)), (np.stack([value] * 4), np.array([expected] * 4))):
        found = encode(space, given)
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == like.dtype
    assert tuple(like.shape) == np.shape(expected)
    assert bool(like.contains(np.array(expected)))


def test_observations_of_several_parts_keep_their_containers():
    space = Dict(place=Discrete(2), more=Tuple([Box(-1.0, 1.0, (1,)), MultiBinary(2)]))
    env = still(observations=space)
    found = env.encode({"place": 1, "more": (np.array([0.5], np.float32), np.array([0, 1], np.int8))})
    np.testing.assert_array_equal(found["place"], [0, 1])
    np.testing.assert_array_equal(found["more"][1], [0, 1])
    shown, _ = jax.eval_shape(env.reset_env, jax.random.key(0), env.default_params)
    assert jax.tree.structure(shown) == jax.tree.structure(found)
    assert jax.tree.map(lambda x: x.shape, shown) == jax.tree.map(lambda x: x.shape, found)
    assert spaces.flat_size(env.observation_space()) == 5


def test_actions_are_gymnasiums():
    shifted = still(actions=Discrete(3, start=-1))
    np.testing.assert_array_equal(shifted.decode(np.array([0, 1, 2], np.int32)), [-1, 0, 1])
    assert shifted.decode(np.int32(2)) in shifted.actions
    bounded = still(actions=Box(np.array([0.1, -1.0]), np.array([0.3, 1.0]), dtype=np.float64))
    action = bounded.decode(np.array([[0.1, -1.0], [0.3, 1.0], [7.0, 0.5]], np.float32))
    assert all(each in bounded.actions for each in action)
    np.testing.assert_allclose(action[2], [0.3, 0.5])


def test_steps_are_refused_here():
    env, params = equimorph.make("gymnasium:CartPole-v1")
    key = jax.random.key(0)
    for call in (env.reset, env.reset_env):
        with pytest.raises(UserError, match=r"stepped on the host, not in JAX; train it by equimorph\.train"):
            call(key, params)
    _, state = jax.eval_shape(env.reset_env, key, params)
    for call in (env.step, env.step_env):
        with pytest.raises(UserError, match="stepped on the host"):
            call(key, state, 0, params)
    with pytest.raises(jax.errors.JaxRuntimeError, match="stepped on the host"):
        jax.jit(env.reset_env)(key, params)
    with pytest.raises(UserError, match="stepped on the host"):
        equimorph.check_environment(env, params)


@pytest.mark.parametrize(
    ("id", "limit"),
    [("CartPole-v1", 12), ("AdapterTest/SameStep-v0", 12), ("FrozenLake-v1", 100), ("Blackjack-v1", UNLIMITED)],
)
def test_the_simulator_is_gymnasium_environment_by_environment(id, limit):
    """Against the environments by themselves, seeded alike and reset by hand; last observations are kept."""
    env, params = equimorph.make(f"gymnasium:{id}", max_steps_in_episode=limit)
    simulator = env.simulator(params, 3, [7, 8, 9])
    steps = -1 if limit == UNLIMITED else limit
    own = "CartPole-v1" if id.startswith("AdapterTest") else id
    alone = [gymnasium.make(own, max_episode_steps=steps) for _ in range(3)]
    shown = [env.encode(each.reset(seed=seed)[0]) for each, seed in zip(alone, (7, 8, 9), strict=True)]
    time, ends, rng = np.zeros(3, int), {"terminated": 0, "truncated": 0}, np.random.default_rng(0)
    for _ in range(60):
        for index, expected in enumerate(shown):
            jax.tree.map(lambda x, y, i=index: np.testing.assert_array_equal(x[i], y), simulator.observation, expected)
        np.testing.assert_array_equal(simulator.time, time)
        action = rng.integers(0, env.num_actions, 3).astype(np.int32)
        outcome = simulator.step(action)
        for index, each in enumerate(alone):
            observation, reward, terminated, truncated, _ = each.step(int(action[index]))
            jax.tree.map(
                lambda x, y, i=index: np.testing.assert_array_equal(x[i], y),
                outcome.observation,
                env.encode(observation),
            )
            assert outcome.reward[index] == np.float32(reward)
            assert (outcome.terminated[index], outcome.truncated[index]) == (terminated, truncated)
            ends["terminated"] += terminated
            ends["truncated"] += truncated
            time[index] = 0 if terminated or truncated else time[index] + 1
            shown[index] = env.encode(each.reset()[0] if terminated or truncated else observation)
    assert ends["terminated"] > 0
    assert ends["truncated"] > 0 or limit > 60
    simulator.restart()
    np.testing.assert_array_equal(simulator.time, 0)
    simulator.close()
