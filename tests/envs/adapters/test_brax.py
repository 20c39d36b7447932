"""Brax's environments behind our contract: Brax's own transitions, and a time limit."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.errors import UserError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # jaxopt, which Brax imports, says that it is no longer maintained
    brax_envs = pytest.importorskip("brax.envs")

from equimorph.envs.adapters.brax import BraxEnvironment

pytestmark = [
    pytest.mark.filterwarnings("ignore:Brax System, piplines and environments:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing .* directly from `Data` is deprecated:DeprecationWarning"),
]


def test_the_contract_holds():
    equimorph.check_environment(*equimorph.make("brax:fast"))


def same_steps(name, count, **options):
    """Step ours and Brax's side by side from one key; how often episodes ended by themselves."""
    env, params = equimorph.make(f"brax:{name}", **options)
    theirs = brax_envs.get_environment(name, **options)
    key = jax.random.key(3)
    (observation, state), expected = jax.jit(env.reset_env)(key, params), jax.jit(theirs.reset)(key)
    np.testing.assert_array_equal(observation, expected.obs)
    step, their_step = jax.jit(env.step_env), jax.jit(theirs.step)
    ends = 0
    for time in range(count):
        action = env.action_space(params).sample(jax.random.fold_in(key, time))
        observation, state, reward, terminated, info = step(key, state, action, params)
        expected = their_step(expected, action)
        np.testing.assert_allclose(observation, expected.obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(reward, expected.reward, rtol=1e-5, atol=1e-6)
        assert bool(terminated) == bool(expected.done)
        assert set(info) == {*expected.metrics, "action_clipped"}
        ends += int(terminated)
    return ends


def test_fast_is_braxs():
    assert same_steps("fast", 10) == 0


@pytest.mark.slow
@pytest.mark.extended
def test_a_pendulum_is_braxs():
    """A random policy drops it: Brax's `done` is our termination."""
    assert same_steps("inverted_pendulum", 60) > 0


def test_the_time_limit_truncates():
    env, params = equimorph.make("brax:fast", max_steps_in_episode=4)
    state = env.reset_env(jax.random.key(0), params)[1]
    cut = []
    for _ in range(5):
        _, state, _, terminated, _ = env.step_env(jax.random.key(0), state, jnp.ones(1), params)
        cut.append(bool(env.is_truncated(state, params)))
        assert not terminated
    assert cut == [False, False, False, True, True]
    assert int(equimorph.make("brax:fast")[1].max_steps_in_episode) == 1000


def test_a_state_is_not_written_to():
    """Some of Brax's environments update the metrics of the state that they are given."""

    class Writer:
        action_size = 1

        def reset(self, rng):
            zero = jnp.float32(0)
            return brax_envs.State(None, jnp.zeros(1), zero, zero, {"steps": zero})

        def step(self, state, action):
            state.metrics.update(steps=state.metrics["steps"] + 1)
            return state.replace(obs=state.obs + 1)

    env = BraxEnvironment("writer", {}, Writer())
    params = env.default_params
    state = env.reset_env(jax.random.key(0), params)[1]
    after = env.step_env(jax.random.key(0), state, jnp.zeros(1), params)[1]
    assert float(state.inner.metrics["steps"]) == 0.0
    assert float(after.inner.metrics["steps"]) == 1.0


def test_equal_by_value():
    made = [equimorph.make("brax:fast", **options)[0] for options in ({}, {}, {"obs_mode": "dict_state"})]
    assert made[0] == made[1]
    assert hash(made[0]) == hash(made[1])
    assert made[0] != made[2]
    space = made[2].observation_space()
    assert list(space.spaces) == ["state"]
    assert space.spaces["state"].shape == (2,)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fest", {}, "unknown environment of Brax's 'fest'. Did you mean 'fast'"),
        ("ant", {"bakend": "spring"}, "unknown option or parameter of brax:ant 'bakend'. Did you mean 'backend'"),
        ("fast", {"obs_mode": "colour"}, "brax:fast cannot be made: 'colour' is not a valid ObservationMode"),
        ("fast", {"max_steps_in_episode": 0.5}, "must be a whole number"),
    ],
)
def test_mistakes_are_told_by_name(name, options, message):
    with pytest.raises(UserError, match=message):
        equimorph.make(f"brax:{name}", **options)


@pytest.mark.slow
def test_ppo_goes_fast():
    """The reward is how far one got: pushing all the time is best, and it takes PPO seconds to find."""
    run = equimorph.train(
        "brax:fast",
        iterations=40,
        rollout={"num_envs": 16, "num_steps": 32},
        env={"params": {"max_steps_in_episode": 32}},
        learning_rate=3e-3,
        widths=(16,),
        progress=False,
    )
    found = equimorph.evaluate(run, num_episodes=4)
    always = 0.02 * 0.02 * sum(time * (time + 1) / 2 for time in range(1, 33))
    assert found["return"] == pytest.approx(always, rel=1e-3)
    assert found["untrained"]["return_sampled"] < 0.7 * always
