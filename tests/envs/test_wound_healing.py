"""WoundHealing: deaths and wounds are recorded, balance keeps the number, and repair is measured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs.tissues.wound_healing import recovery_time
from equimorph.errors import UserError

from .tissue_play import check_played, play

SMALL = {"capacity": 32, "substeps": 2, "founders": 16, "target": 16.0, "max_steps_in_episode": 6}


def divide(weights, observation, key):
    """With one probability for all."""
    chosen = jax.random.bernoulli(key, weights, observation.shape[:1]).astype(jnp.int32)
    return {"divide": chosen, "push": jnp.zeros((observation.shape[0], 2))}


@pytest.mark.extended
def test_balanced_births_keep_the_number():
    env, params = equimorph.make("WoundHealing-v0", **SMALL, wound_step=3, wound_radius=0.0, death_rate=0.5)
    keys = jax.random.split(jax.random.key(0), 150)
    balance = jnp.expm1(params.death_rate * env.substeps * params.dt)
    calm = play(env, params, divide, balance, keys, 6)
    check_played(calm)
    cells = calm.info["num_cells"]
    assert not np.any(calm.info["overflow"])
    assert calm.after.events.deaths.sum() > 1000
    # A martingale whose steps have a variance of about 0.2 a cell.
    np.testing.assert_allclose(cells.mean(axis=0), 16, atol=4 * np.sqrt(16 * 0.2 * 6 / 150))
    assert not np.any(calm.over)
    last = jax.tree.map(lambda x: jnp.asarray(x)[0, -1], calm.after)
    assert bool(env.is_truncated(last, params))


def test_a_wound_is_made_once_in_the_middle_and_recorded():
    env, params = equimorph.make("WoundHealing-v0", **SMALL, wound_step=3, wound_radius=1.2, death_rate=0.0)
    played = play(env, params, divide, jnp.array(0.0), jax.random.split(jax.random.key(0), 8), 6)
    check_played(played)
    deaths = played.after.events.deaths
    np.testing.assert_array_equal(deaths.any(axis=(0, 2)), np.arange(6) == 3)
    assert np.all(np.isin(deaths.sum(axis=(1, 2)), np.arange(3, 9)))  # the middle, and most of its ring
    before, gone = played.before.tissue, deaths[:, 3] > 0
    middle = before.position[:, 3].sum(axis=1) / before.alive[:, 3].sum(axis=1, keepdims=True)
    away = np.linalg.norm(before.position[:, 3] - middle[:, None], axis=-1)
    assert np.all(away[gone] < 1.5)
    assert np.all(away[before.alive[:, 3] & ~gone] > 0.9)
    n, gap = played.info["num_cells"], played.info["gap"]
    reward = played.reward.max(axis=-1)
    np.testing.assert_allclose(reward, 1 - (np.abs(n / 16 - 1) + gap) / 2, rtol=1e-4)
    assert gap[:, 3].mean() > gap[:, 2].mean() + 0.2
    assert played.info["iou"][:, 3].mean() < played.info["iou"][:, 2].mean() - 0.2


def test_recovery_is_counted_from_the_wound():
    overlap = np.array([0.9, 0.8, 0.5, 0.6, 0.77, 0.9])
    assert recovery_time(overlap, 2) == 2
    assert recovery_time(overlap, 2, share=0.6) == 0
    assert recovery_time(overlap[:4], 2) == float("inf")
    with pytest.raises(UserError, match="wound_step = 0 must lie within"):
        recovery_time(overlap, 0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"target": 65.0}, "target = 65 must not exceed the capacity of 64"),
        ({"wound_step": 60}, "wound_step = 60 must be below max_steps_in_episode = 60"),
    ],
)
def test_mistakes_are_refused_by_name(overrides, message):
    with pytest.raises(UserError, match=message):
        equimorph.make("WoundHealing-v0", **overrides)
