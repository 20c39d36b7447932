"""Pictures say what a state is: bars move with the state, and frames keep their size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph

BLUE = np.array([0x4C, 0x72, 0xB0])


def blue_share(picture):
    """Share of the picture's pixels that bars fill."""
    return float(np.all(picture == BLUE, axis=-1).mean())


@pytest.mark.parametrize("env_id", equimorph.list_envs())
def test_frames_are_pictures_of_one_size(env_id):
    env, params = equimorph.make(env_id)
    _, state = env.reset_env(jax.random.key(0), params)
    first = env.render(state, params)
    action = env.action_space(params).sample(jax.random.key(1))
    _, state, *_ = jax.jit(env.step_env)(jax.random.key(2), state, action, params)
    second = env.render(state, params)
    assert first.dtype == second.dtype == np.uint8
    assert first.ndim == 3
    assert first.shape == second.shape
    assert first.shape[-1] == 3
    assert np.any(first != second)


def test_no_bars_in_the_steady_state_and_longer_ones_farther_away():
    env, params = equimorph.make("BrockMirman-v0")
    steady, _ = env.steady_state(params)
    shares = [blue_share(env.render(steady.replace(k=factor * steady.k), params)) for factor in (1.0, 1.1, 1.2)]
    assert shares[0] < 0.002
    assert shares[2] == pytest.approx(2 * shares[1], rel=0.1)


def test_a_state_that_is_not_finite_can_still_be_seen():
    env, params = equimorph.make("BrockMirman-v0")
    steady, _ = env.steady_state(params)
    assert env.render(steady.replace(k=jnp.nan), params).shape[-1] == 3
