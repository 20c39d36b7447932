"""rejax on our environments, through gymnax's five values."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.wrappers import LegacyStepAPIWrapper

import equimorph
from equimorph.envs.adapters.rejax import LegacyStepAPI
from equimorph.envs.wrappers import RescaleAction
from equimorph.errors import UserError

rejax = pytest.importorskip("rejax")


@pytest.mark.parametrize("env_id", ["BrockMirman-v0", "CellCountPooled-v0", "FishWar-v0", "Cournot-v0"])
def test_steps_are_those_of_gymnaxs_own_wrapper(env_id):
    env, params = equimorph.make(env_id)
    params = params.replace(max_steps_in_episode=jnp.int32(2))
    ours, theirs = LegacyStepAPI(env), LegacyStepAPIWrapper(env)
    key = jax.random.key(3)
    observation, state = ours.reset(key, params)
    np.testing.assert_array_equal(observation, theirs.reset(key, params)[0])
    action = env.action_space(params).sample(key)
    dones = []
    for _ in range(2):
        found = ours.step(key, state, action, params)
        expected = theirs.step(key, state, action, params)
        assert len(found) == 5
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(a, b)
        state = found[1]
        dones.append(bool(found[3]))
    assert dones == [getattr(env, "one_shot", False), True]


def test_copies_and_equal_environments_are_one_to_the_compiler():
    env, _ = equimorph.make("BrockMirman-v0")
    wrapped = LegacyStepAPI(env)
    assert copy.deepcopy(wrapped) == wrapped
    assert hash(wrapped) == hash(LegacyStepAPI(equimorph.make("BrockMirman-v0")[0]))
    assert wrapped != LegacyStepAPI(equimorph.make("BrockMirman-v0", concept="competitive")[0])


def test_an_action_that_was_squeezed_gets_its_axis_back():
    env, params = equimorph.make("BrockMirman-v0")
    wrapped, key = LegacyStepAPI(env), jax.random.key(0)
    _, state = wrapped.reset(key, params)
    squeezed, whole = (wrapped.step(key, state, np.float32(0.3).reshape(shape), params) for shape in ((), (1,)))
    for a, b in zip(jax.tree.leaves(squeezed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_stepped_on_the_host_is_refused():
    with pytest.raises(UserError, match="gymnasium:CartPole-v1 is stepped on the host"):
        LegacyStepAPI(equimorph.make("gymnasium:CartPole-v1")[0])


@pytest.mark.slow
@pytest.mark.extended
def test_ppo_learns_to_save():
    env, params = equimorph.make("BrockMirman-v0")
    algorithm = rejax.get_algo("ppo").create(
        env=LegacyStepAPI(RescaleAction(env)),
        env_params=params,
        num_envs=64,
        num_steps=64,
        num_epochs=4,
        num_minibatches=4,
        total_timesteps=64 * 64 * 120,
        eval_freq=64 * 64 * 120,
        skip_initial_evaluation=True,
        learning_rate=1e-3,
        gamma=0.96,
        ent_coef=0.0,
        max_grad_norm=0.5,
        agent_kwargs={"activation": "tanh"},
    )
    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: ())

    def loss(state):
        """Share of consumption that the mean action of the steady state would lose for ever."""
        output = algorithm.actor.apply(
            state.actor_ts.params, np.zeros((1, 2), np.float32), method=lambda m, x: m.action_mean(m.features(x))
        )
        share, alpha, beta = np.clip((output[0, 0] + 1) / 2, 0, 1), 0.36, 0.96
        worth = lambda s: np.log(1 - s) + alpha * beta / (1 - alpha * beta) * np.log(s)  # noqa: E731
        return 1 - np.exp(worth(share) - worth(alpha * beta))

    # Its biases start at 0, so the middle of the bounds is saved.
    assert loss(algorithm.init_state(jax.random.key(0))) > 0.06
    assert loss(jax.jit(algorithm.train)(jax.random.key(0))[0]) <= 0.01
