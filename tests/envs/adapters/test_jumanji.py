"""Jumanji's environments behind our contract: Jumanji's own transitions, ends, masks and bounds."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs import spaces
from equimorph.errors import UserError

pytest.importorskip("jumanji")

import jumanji
from jumanji import specs, types

from equimorph.envs.adapters.jumanji import JumanjiEnvironment

pytestmark = pytest.mark.extended

SNAKE = {"num_rows": 4, "num_cols": 4, "time_limit": 20}


@pytest.mark.parametrize(("name", "options"), [("Snake-v1", SNAKE), ("Knapsack-v1", {})])
def test_the_contract_holds(name, options):
    equimorph.check_environment(*equimorph.make(f"jumanji:{name}", **options))


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("Snake-v1", SNAKE, 25),
        ("Minesweeper-v0", {}, 15),
        ("Cleaner-v0", {}, 8),
    ],
)
def test_steps_are_jumanjis(name, options, count):
    """From one key with the same legal actions: the same observations, masks, rewards and ends."""
    env, params = equimorph.make(f"jumanji:{name}", **options)
    theirs = jumanji.make(name, **options)
    (shown, state), (inner, expected) = (
        jax.jit(env.reset_env)(jax.random.key(5), params),
        jax.jit(theirs.reset)(jax.random.key_data(jax.random.key(5))),
    )
    step, their_step = jax.jit(env.step_env), jax.jit(theirs.step)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(count):
        mask = np.asarray(expected.observation.action_mask)
        fields = [each for each in expected.observation._fields if each != "action_mask"]
        flat = [np.ravel(getattr(expected.observation, each)) for each in fields]
        np.testing.assert_array_equal(shown, np.concatenate(flat).astype(np.float32))
        if isinstance(env.action_space(params), spaces.Discrete):
            np.testing.assert_array_equal(env.action_mask(state, params), mask.reshape(1, -1))
            action = rng.choice(np.flatnonzero(mask))
            their_action = np.array(np.unravel_index(action, mask.shape)).reshape(theirs.action_spec.shape)
        else:
            np.testing.assert_array_equal(env.action_mask(state, params), mask[None])
            action = their_action = np.array([rng.choice(np.flatnonzero(row)) for row in mask])
        shown, state, reward, terminated, _ = step(jax.random.key(9), state, jnp.asarray(action, jnp.int32), params)
        inner, expected = their_step(inner, jnp.asarray(their_action, jnp.int32))
        assert float(reward) == float(expected.reward)
        assert bool(terminated) == bool(expected.last() & (expected.discount == 0))
        assert not bool(env.is_truncated(state, params))
        if terminated:
            ends += 1
            shown, state = env.reset_env(jax.random.key(ends), params)
            inner, expected = theirs.reset(jax.random.key_data(jax.random.key(ends)))
    assert ends > 0 or name == "Cleaner-v0"


class Seen(NamedTuple):
    time: jax.Array


class Cut(jumanji.Environment):
    """Truncates after three steps, unless action 1 was taken, which terminates."""

    observation_spec = specs.Spec(Seen, "Seen", time=specs.BoundedArray((), jnp.int32, 0, 3, "time"))
    action_spec = specs.DiscreteArray(2)

    def reset(self, key):
        return {"key": key, "time": jnp.int32(0)}, types.restart(Seen(jnp.int32(0)))

    def step(self, state, action):
        time = state["time"] + 1
        shown, reward = Seen(time), jnp.float32(1)
        index = jnp.where(action == 1, 2, jnp.where(time == 3, 1, 0))
        ways = [types.transition, types.truncation, types.termination]
        return {"key": state["key"], "time": time}, jax.lax.switch(index, ways, reward, shown)


def test_a_last_step_with_discount_one_is_a_truncation():
    env = JumanjiEnvironment("Cut-v0", {}, Cut())
    params = env.default_params
    _, start = env.reset_env(jax.random.key(0), params)

    def flags(*actions):
        state, found = start, []
        for action in actions:
            _, state, _, terminated, _ = env.step_env(jax.random.key(0), state, jnp.int32(action), params)
            found.append((bool(terminated), bool(env.is_truncated(state, params))))
        return found

    assert flags(0, 0, 0) == [(False, False), (False, False), (False, True)]
    assert flags(0, 1) == [(False, False), (True, False)]
    assert flags(0, 0, 1)[-1] == (True, False)
    assert env.action_mask(start, params) is None
    equimorph.check_environment(env, params)


def test_our_time_limit_truncates_and_jumanjis_terminates():
    for limits, expected in (
        ({"time_limit": 3}, (True, False)),
        ({"max_steps_in_episode": 3}, (False, True)),
        ({"time_limit": 3, "max_steps_in_episode": 3}, (True, False)),
    ):
        env, params = equimorph.make("jumanji:SlidingTilePuzzle-v0", **limits)
        state = env.reset_env(jax.random.key(0), params)[1]
        for time in range(1, 4):
            action = jnp.argmax(env.action_mask(state, params)[0]).astype(jnp.int32)
            _, state, _, terminated, _ = env.step_env(jax.random.key(0), state, action, params)
            found = bool(terminated), bool(env.is_truncated(state, params))
            assert found == (expected if time == 3 else (False, False))


def test_choices_without_masks_of_their_own_are_combined():
    env, params = equimorph.make("jumanji:RubiksCube-v0")
    assert env.choices == (6, 1, 3)
    assert env.action_space(params).n == 18
    separate, its_params = equimorph.make("jumanji:Cleaner-v0")
    assert separate.action_space(its_params).nvec.tolist() == [4, 4, 4]


def test_bounds_are_jumanjis_in_the_order_of_the_fields():
    env, params = equimorph.make("jumanji:Maze-v0")
    space = env.observation_space(params)
    assert env.inner.reset(jax.random.PRNGKey(0))[1].observation._fields[:3] == (
        "agent_position",
        "target_position",
        "walls",
    )
    np.testing.assert_array_equal(space.low, [0] * 104 + [-np.inf])
    np.testing.assert_array_equal(space.high, [9] * 4 + [1] * 100 + [np.inf])


def test_equal_by_value():
    made = [equimorph.make("jumanji:Snake-v1", **options)[0] for options in (SNAKE, SNAKE, {})]
    assert made[0] == made[1]
    assert hash(made[0]) == hash(made[1])
    assert made[0] != made[2]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Snak-v1", {}, "unknown environment of Jumanji's 'Snak-v1'. Did you mean 'Snake-v1'"),
        ("Snake-v1", {"num_row": 3}, "of jumanji:Snake-v1 'num_row'. Did you mean 'num_rows'"),
        ("Connector-v3", {}, "jumanji:Connector-v3 pays each of its 10 agents a reward of its own"),
    ],
)
def test_mistakes_are_told_by_name(name, options, message):
    with pytest.raises(UserError, match=message):
        equimorph.make(f"jumanji:{name}", **options)


def test_learners_refuse_choices_with_masks_of_their_own():
    with pytest.raises(UserError, match="jumanji:Cleaner-v0: no action head for a MultiDiscrete space"):
        equimorph.train("jumanji:Cleaner-v0", iterations=1)


@pytest.mark.slow
def test_masked_ppo_keeps_the_snake_alive():
    """Illegal moves end the game at once; with the mask the policy is never sampled there, and it learns to eat."""
    run = equimorph.train(
        "jumanji:Snake-v1",
        iterations=30,
        rollout={"num_envs": 16, "num_steps": 32},
        env=SNAKE,
        learning_rate=3e-3,
        widths=(32,),
        progress=False,
    )
    found = equimorph.evaluate(run, num_episodes=64)
    assert found["return"] > found["untrained"]["return_sampled"] + 0.5
    assert found["finished"] == 1.0
