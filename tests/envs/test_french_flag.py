"""FrenchFlag: a perfect flag at any length without noise, a worse one with it, and a straight-through derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.errors import UserError

from .tissue_play import check_played, play


def ratio(weights, observation, key):
    """x / L from the two readings; or, by `weights`, from the left one and the mean length."""
    both = observation[:, 0] / jnp.minimum(observation[:, 0] + observation[:, 1], -1e-3)
    share = jnp.where(weights > 0, -observation[:, 0] * weights, both)
    return jnp.clip(jnp.floor(3 * share), 0, 2).astype(jnp.int32)


@pytest.mark.extended
def test_two_gradients_make_a_perfect_flag_at_any_length_and_one_does_not():
    env, params = equimorph.make("FrenchFlag-v0", kT=0.0, reading_noise=0.0, max_steps_in_episode=3, substeps=1)
    keys = jax.random.split(jax.random.key(0), 64)
    perfect = play(env, params, ratio, jnp.array(0.0), keys, 3)
    check_played(perfect, lambda score: 10 * score)
    np.testing.assert_array_equal(perfect.info["score"], 1.0)
    columns = perfect.info["num_cells"][:, 0] / 4
    assert set(columns) == {6, 7, 8, 9, 10, 11, 12}
    single = play(env, params, ratio, params.decay_length / params.length, keys, 3)
    # With thresholds for nine columns, a sheet of six has right the three whose stripe is the same; of nine, all.
    np.testing.assert_array_equal(single.info["score"][columns == 9], 1.0)
    x = np.arange(6) + 0.5
    expected = np.mean(np.clip(np.floor(3 * x / 9), 0, 2) == np.floor(3 * x / 6))
    np.testing.assert_allclose(single.info["score"][columns == 6], expected, rtol=1e-6)
    noisy = play(env, params.replace(reading_noise=jnp.array(0.5)), ratio, jnp.array(0.0), keys, 3)
    assert 0.4 < noisy.info["score"].mean() < 0.9
    assert not np.array_equal(noisy.seen[:, 1, :, 0], noisy.seen[:, 2, :, 0])


@pytest.mark.extended
def test_logits_are_differentiable_through_the_choice():
    env, params = equimorph.make("FrenchFlag-v0", calibration="logits", substeps=1, kT=0.0)
    _, state = jax.jit(env.reset_env)(jax.random.key(0), params)
    wrong = jnp.zeros((48, 3)).at[:, 0].set(1.0)

    def reward(logits):
        return env.step_env(jax.random.key(1), state, logits, params)[2][0]

    value, slope = jax.jit(jax.value_and_grad(reward))(wrong)
    assert float(value) == pytest.approx(0.0, abs=1e-5)  # all were of the first fate already
    cells = int(state.tissue.alive.sum())
    share = jax.nn.softmax(jnp.array([1.0, 0.0, 0.0]))
    right = cells - 1  # the last column lies in the third stripe
    np.testing.assert_allclose(slope[right], 10 / cells * share[2] * (jnp.array([0, 0, 1]) - share), rtol=1e-4)
    assert np.all(np.asarray(slope[cells:]) == 0)
    assert env.capabilities == {"score", "differentiable"}
    assert equimorph.make("FrenchFlag-v0")[0].capabilities == {"score"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"mode": "decisions"}, "Did you mean 'decision'"),
        ({"length": 10.0}, "13 columns of 4 cells.*capacity of 48"),
        ({"length": 4.0, "scaling": 0.5}, "2 columns.*must be at least 3"),
        ({"founders": 5}, "founders"),
    ],
)
def test_mistakes_are_refused_by_name(overrides, message):
    with pytest.raises(UserError, match=message):
        equimorph.make("FrenchFlag-v0", **overrides)
