"""Elongation: what a shape is worth, one division a step, and that the axis makes a tissue long."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs.tissues._cells import close_packed_balls, newborn_radius
from equimorph.envs.tissues._forces import SoftRepulsion
from equimorph.errors import UserError

from .tissue_play import check_played, play


def everybody(weights, observation, key):
    """Equal propensities, and one axis for all."""
    return jnp.concatenate(
        [jnp.full((*observation.shape[:-1], 1), 0.5), jnp.zeros_like(observation[:, :2]) + weights], 1
    )


@pytest.mark.extended
def test_one_cell_divides_a_step_and_the_axis_makes_it_long():
    env, params = equimorph.make("Elongation-v0", capacity=16, founders=4, max_steps_in_episode=12, orientation=20.0)
    keys = jax.random.split(jax.random.key(0), 16)
    means = {}
    for name, axis in (("along", [0.0, 1.0]), ("across", [1.0, 0.0])):
        played = play(env, params, everybody, jnp.array(axis), keys, 12)
        check_played(played, lambda score: score / 10)
        np.testing.assert_array_equal(played.after.events.births.sum(axis=-1), 1)
        np.testing.assert_array_equal(played.over, np.broadcast_to(np.arange(1, 13) == 12, (16, 12)))
        assert not np.any(played.info["overflow"])
        means[name] = played.info["score"][:, -1].mean()
    # A round tissue of 16 cells has about 0.069 n^2 = 18.
    assert means["across"] < 18 < means["along"]
    assert means["along"] > 1.5 * means["across"]
    last = jax.tree.map(lambda x: jnp.asarray(x)[0, -1], played.after)
    straight = jnp.stack([jnp.zeros(16), jnp.arange(16.0)], axis=-1)
    row = last.replace(tissue=last.tissue.set("position", straight))
    assert float(env.score(row, params)) == pytest.approx(16 * (16**2 - 1) / 12, rel=1e-5)


def test_the_score_of_a_division_is_its_share_of_the_propensities():
    env, params = equimorph.make("Elongation-v0", calibration="unoriented", capacity=8, founders=4, substeps=2)
    _, state = jax.jit(env.reset_env)(jax.random.key(0), params)
    action = jnp.array([[0.1], [0.2], [0.3], [0.4], [1.0], [1.0], [1.0], [1.0]])
    _, after, *_ = jax.jit(env.step_env)(jax.random.key(1), state, action, params)
    mother = int(np.flatnonzero(after.events.births)[0])
    expected = np.zeros(8)
    expected[mother] = np.log(0.1 * (mother + 1))
    np.testing.assert_allclose(env.event_log_prob(state, action, after, params), expected, rtol=1e-5)
    slope = jax.grad(lambda a: env.event_log_prob(state, a, after, params).sum())(action)[:, 0]
    np.testing.assert_allclose(
        slope, np.where(np.arange(8) < 4, -1, 0) + expected.astype(bool) / action[:, 0], rtol=1e-5
    )


def test_in_space_a_daughter_touches_her_mother_along_the_axis():
    env, params = equimorph.make(
        "Elongation-v0", dimensions=3, capacity=16, founders=13, substeps=1, orientation=1e4, kT=0.0, founder_noise=0.0
    )
    observation, state = jax.jit(env.reset_env)(jax.random.key(0), params)
    founders = np.asarray(state.tissue.position[:13])
    apart = np.linalg.norm(founders[:, None] - founders[None], axis=-1)
    # a ball and the twelve that touch it
    np.testing.assert_allclose(np.sort(apart[0]), [0] + 12 * [1], atol=1e-6)
    # shell by shell, y^2 sums to a third of r^2
    np.testing.assert_allclose(env.score(state, params), 12 / 3, rtol=1e-5)
    axis = np.array([2.0, -1.0, 2.0]) / 3
    action = jnp.concatenate([jnp.full((16, 1), 0.01).at[4].set(1.0), jnp.broadcast_to(axis, (16, 3))], axis=1)
    step = jax.jit(env.step_env)
    seeds = [int(np.flatnonzero(step(jax.random.key(k), state, action, params)[1].events.births)[0]) for k in range(20)]
    assert seeds.count(4) > 10, "it has nine tenths of the propensities"
    _, after, *_ = step(jax.random.key(seeds.index(4)), state, action, params)
    offset = np.asarray(after.tissue.position[13] - after.tissue.position[4])
    np.testing.assert_allclose(np.abs(offset @ axis), 2 * newborn_radius(3), rtol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(offset), 2 * newborn_radius(3), rtol=1e-3)
    np.testing.assert_allclose(2 * after.tissue.radius[13] ** 3, 0.5**3, rtol=1e-5)
    assert observation.shape == (16, 8)
    assert env.render(after, params).shape == (256, 256, 3)


def test_step_limit_in_space_is_that_of_packed_newborns():
    """2 / lambda_max of the energy of 135 close-packed newborns: within an eighth of the limit, and above it."""
    with jax.enable_x64(True):
        position = 2 * newborn_radius(3) * (1 - 1e-9) * jnp.asarray(close_packed_balls(135))
        tissue = SimpleNamespace(
            position=position,
            radius=jnp.full(135, newborn_radius(3)),
            alive=jnp.ones(135, bool),
            displacement=jnp.subtract,
        )
        energy = lambda x: SoftRepulsion().total_energy(x.reshape(135, 3), tissue)  # noqa: E731
        stiffest = np.linalg.eigvalsh(np.asarray(jax.jit(jax.hessian(energy))(position.ravel())))[-1]
    with pytest.raises(UserError, match=r"must be below 0\.157[0-9]*,"):
        equimorph.make("Elongation-v0", dimensions=3, dt=0.158)
    assert 0.157 < 2 / stiffest < 1.125 * 0.1575


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"mode": "categorial"}, "Did you mean 'categorical'"),
        ({"mode": "decision", "oriented": False}, "oriented=False applies to mode='categorical'"),
        ({"oriented": False, "orientation": 1.0}, "orientation does not apply with oriented=False"),
        ({"dt": 0.2}, "dt = 0.2 must be below 0.1667"),
        ({"dimensions": 4}, "dimensions must be 2 or 3, got 4"),
    ],
)
def test_mistakes_are_refused_by_name(overrides, message):
    with pytest.raises(UserError, match=message):
        equimorph.make("Elongation-v0", **overrides)


def test_an_axis_leaves_no_scored_events():
    env, params = equimorph.make("Elongation-v0")
    assert env.capabilities == {"score"}
    assert equimorph.make("Elongation-v0", oriented=False)[0].capabilities == {"score", "events"}
    with pytest.raises(UserError, match="oriented=False"):
        env.event_log_prob(None, None, None, params)
