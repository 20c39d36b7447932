"""Wrappers show another view of the same world, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs.wrappers import Pooled, RescaleAction
from equimorph.errors import UserError


@pytest.fixture
def rescaled():
    env, params = equimorph.make("BrockMirman-v0")
    return env, RescaleAction(env), params


def test_rescaled_environments_keep_the_contract(rescaled):
    _, env, params = rescaled
    equimorph.check_environment(env, params)


@pytest.mark.parametrize(("share", "action"), [(0.0, -1.0), (0.3456, 2 * 0.3456 - 1), (1.0, 1.0)])
def test_rescaled_actions_are_the_same_shares(rescaled, share, action):
    env, wrapped, params = rescaled
    key = jax.random.key(0)
    _, state = env.reset_env(key, params)
    expected = env.step_env(key, state, jnp.array([share]), params)
    found = wrapped.step_env(key, state, jnp.array([action]), params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_known_answer_is_rescaled_too(rescaled):
    env, wrapped, params = rescaled
    _, state = env.reset_env(jax.random.key(0), params)
    np.testing.assert_allclose(wrapped.reference(params).policy(state), [2 * 0.36 * 0.96 - 1], rtol=1e-5)
    np.testing.assert_allclose(wrapped.centre(params), 2 * env.centre(params) - 1, rtol=1e-6)
    np.testing.assert_allclose(wrapped.to_inner(jnp.array([0.0]), params), [0.5])


def test_discrete_actions_cannot_be_rescaled():
    with pytest.raises(UserError, match=r"needs an action that is a Box, and CellCount-v0 has"):
        RescaleAction(equimorph.make("CellCount-v0")[0])


def test_pooling_gives_every_cell_the_same_action():
    inner, params = equimorph.make("CellCount-v0", mode="hazard")
    env = Pooled(inner)
    key = jax.random.key(1)
    _, state = env.reset_env(key, params)
    observation, following, reward, terminated, _ = env.step_env(key, state, jnp.array([0.4]), params)
    _, expected, rewards, over, _ = inner.step_env(key, state, jnp.full((64, 1), 0.4), params)
    for a, b in zip(jax.tree.leaves(following), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    alive = np.asarray(state.tissue.alive)
    assert 0 < alive.sum() < 64
    np.testing.assert_allclose(reward, np.asarray(rewards)[alive].mean(), rtol=1e-6)
    np.testing.assert_array_equal(observation, inner.world_state(expected, params))
    assert bool(terminated) == bool(over)


def test_equal_wrappers_are_equal():
    one, two = (equimorph.make("CellCountPooled-v0")[0] for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != equimorph.make("CellCountPooled-v0", capacity=32)[0]
