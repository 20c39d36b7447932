"""TargetShape: silhouettes of the right size and place, the best disc, and what the overlap counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.agent import View
from equimorph.agents.classical.tissues import rule_agent
from equimorph.envs.tissues._sensing import HALF_WIDTH, PIXELS, inside, occupancy, raster_points, soft_iou
from equimorph.errors import UserError

from .tissue_play import check_played, play

PIXEL_AREA = (2 * HALF_WIDTH / PIXELS) ** 2


@pytest.mark.parametrize("shape", ["ellipse", "L", "V"])
def test_silhouettes_have_their_area_around_the_origin(shape):
    env, params = equimorph.make("TargetShape-v0", shape=shape)
    covered = np.asarray(env.silhouette(params))
    assert covered.sum() * PIXEL_AREA == pytest.approx(28 * np.sqrt(3) / 2, rel=0.02)
    np.testing.assert_allclose(covered @ np.asarray(raster_points()) / covered.sum(), 0, atol=0.05)


def test_the_best_disc_overlaps_the_ellipse_by_its_known_share():
    env, params = equimorph.make("TargetShape-v0")
    distance = np.linalg.norm(np.asarray(raster_points()), axis=1)
    discs = jax.vmap(lambda radius: soft_iou(inside(distance - radius), env.silhouette(params)))
    assert float(discs(jnp.linspace(1.5, 4.5, 61)).max()) == pytest.approx(0.56, abs=0.01)


def shaped(weights, observation, key):
    """Divide by chance, and push along x, away from the middle."""
    out = jnp.stack([jnp.sign(observation[:, 5]), jnp.zeros_like(observation[:, 5])], axis=-1)
    return {
        "axis": jnp.zeros_like(out) + jnp.array([1.0, 0.0]),
        "divide": jax.random.bernoulli(key, weights[0], observation.shape[:1]).astype(jnp.int32),
        "push": weights[1] * out,
    }


@pytest.mark.extended
def test_overlap_is_gained_by_dividing_and_pushing_along_the_ellipse():
    env, params = equimorph.make("TargetShape-v0")
    keys = jax.random.split(jax.random.key(0), 3)
    still, along = (play(env, params, shaped, jnp.array(w), keys, 6) for w in ([0.45, 0.0], [0.45, 0.6]))
    for played in (still, along):
        check_played(played, lambda score: 10 * score)
    np.testing.assert_array_equal(still.info["num_cells"], along.info["num_cells"])
    width = lambda played: played.after.tissue.position[:, -1, :, 0].std(axis=-1).mean()  # noqa: E731
    assert width(along) > 1.2 * width(still)
    assert along.info["score"][:, -1].mean() > along.info["score"][:, 0].mean() + 0.2
    cell = jax.tree.map(lambda x: jnp.asarray(x)[0, 0], still.before.tissue)
    cell = cell.set("alive", jnp.arange(48) == 0).set("position", jnp.zeros((48, 2)))
    assert float(occupancy(cell).sum()) * PIXEL_AREA == pytest.approx(np.pi * 0.55**2, rel=0.25)
    assert float(soft_iou(occupancy(cell), occupancy(cell))) == pytest.approx(1.0)


def test_growth_to_a_disc_doubles_until_the_number_fits():
    env, params = equimorph.make("TargetShape-v0")
    rule = rule_agent("disc_growth", env, params).rule
    for step in range(8):
        observation = jnp.full((48, 8), 1 - 2 * step / 8)
        assert np.all(rule(View(observation, jnp.ones(48, bool)), None)["divide"] == (step < 3))  # 4 to 32, of 28
    with pytest.raises(UserError, match="Elongation-v0 has none"):
        rule_agent("disc_growth", *equimorph.make("Elongation-v0"))


def test_an_unknown_silhouette_is_refused():
    with pytest.raises(UserError, match="Did you mean 'ellipse'"):
        equimorph.make("TargetShape-v0", shape="elipse")
