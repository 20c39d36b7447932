"""StressHomogeneity: what evens growth, what leaves it uneven, and that the middle is driven and pressed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.errors import UserError

from .tissue_play import check_played, play


def idle(weights, observation, key):
    return jnp.zeros((observation.shape[0], 1))


@pytest.mark.extended
def test_an_answer_to_the_drive_evens_growth_and_none_leaves_it_uneven():
    env, params = equimorph.make("StressHomogeneity-v0", max_steps_in_episode=5, drive_width=2.0)
    played = play(env, params, idle, (), jax.random.split(jax.random.key(0), 8), 5)
    check_played(played, lambda score: -score)
    before, after = played.before.tissue, played.after.tissue
    assert played.info["num_cells"][:, -1].mean() > 20
    alive, propensity = after.alive[0, -1], after.propensity[0, -1]
    values = propensity[alive]
    assert played.info["score"][0, -1] == pytest.approx(values.std() / values.mean(), rel=1e-4)
    assert played.info["score"][:, -1].min() > 0.15
    # The drive is what the propensity was, and highest in the middle.
    middle = before.position[0, 0][before.alive[0, 0]].mean(axis=0)
    away = np.linalg.norm(before.position[0, 0] - middle, axis=-1)
    np.testing.assert_allclose(before.drive[0, 0][:19], np.exp(-away[:19] / 2.0), rtol=1e-4)
    np.testing.assert_allclose(before.propensity[0, 0], before.drive[0, 0], rtol=1e-4)

    _, state = jax.jit(env.reset_env)(jax.random.key(1), params)
    even = -jnp.log(jnp.maximum(state.tissue.drive, 1e-6))[:, None] / 2

    def reward(action):
        written = env.write_action(state.tissue, action, params)
        return env.potential(written, params)

    assert float(even[:19].max()) < 1
    assert float(reward(even)) == pytest.approx(0.0, abs=1e-3)
    assert float(reward(0.9 * even)) < -0.01


def test_it_is_differentiated_and_not_scored():
    env, params = equimorph.make("StressHomogeneity-v0")
    assert env.capabilities == {"score", "differentiable"}
    with pytest.raises(UserError, match="differentiated pathwise"):
        env.event_log_prob(None, None, None, params)
