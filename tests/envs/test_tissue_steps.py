"""The steps and forces that tissues add to the simulator, against the simulator and against known laws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_morph import build_state_from_model, check_stochastic_step
from jax_morph.physics import Harmonic, Hertzian, LennardJones, Morse, SoftSphere

from equimorph.envs.tissues._cells import close_packed
from equimorph.envs.tissues._forces import MorseAdhesion, SoftRepulsion, stable_step
from equimorph.envs.tissues._steps import CategoricalDivision, Model
from equimorph.envs.tissues.french_flag import ReadingNoise


def cluster(*steps, capacity=16, cells=13):
    """Cells of different sizes, close-packed and shaken."""
    state = build_state_from_model(Model(steps)).init_empty(capacity=capacity, n_space_dim=2, n_types=1)
    alive = jnp.arange(capacity) < cells
    place = 0.9 * close_packed(capacity) + 0.15 * np.random.default_rng(0).normal(size=(capacity, 2))
    radius = np.random.default_rng(1).uniform(0.35, 0.5, capacity)
    return state.update(
        alive=alive,
        position=jnp.where(alive[:, None], place, 0.0),
        radius=jnp.where(alive, radius, 0.0),
    )


def test_written_out_adhesion_equals_the_differentiated_energy():
    """With pairs inside contact, in the well, where the cutoff fades, and beyond it."""
    with jax.enable_x64(True):
        state = cluster()
        distance = np.linalg.norm(
            np.asarray(state.position)[:13, None] - np.asarray(state.position)[None, :13], axis=-1
        )
        contact = np.asarray(state.radius)[:13, None] + np.asarray(state.radius)[None, :13]
        assert {0, 1, 2, 3} <= set(np.digitize(distance / contact, [1.0, 1.5, 2.5]).ravel())
        settings = {"epsilon": 1.3, "alpha": 2.1}
        theirs, ours = jax.jit(lambda s: (Morse(**settings).forces(s), MorseAdhesion(**settings).forces(s)))(state)
        assert float(jnp.abs(theirs).max()) > 1
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("potential", "measured"),
    [
        (Morse(), 0.0064),
        (Morse(epsilon=1.0, alpha=3.0), 0.0165),
        (SoftSphere(epsilon=4.0), 0.09),
        (Harmonic(), 0.13),
        (Hertzian(), 1.6),
        pytest.param(LennardJones(), 0.0025, marks=pytest.mark.extended),
    ],
)
def test_longest_step_is_about_what_clusters_of_37_cells_bear(potential, measured):
    """Measured figures are 2 / lambda_max of relaxed clusters; an endless sheet is a tenth to a quarter off."""
    assert stable_step(potential, 1.0) == pytest.approx(measured, rel=0.25)


def test_a_sheet_of_springs_has_six_times_their_stiffness():
    assert stable_step(SoftRepulsion(epsilon=2.0), 0.5) == pytest.approx(2 * 0.5**2 / (6 * 2.0), rel=1e-6)


def test_categorical_division_has_its_law():
    """One living cell a step, with probability d / sum d, and the score of that; nobody where all d are 0."""
    step = CategoricalDivision(n_space_dim=2)
    state = cluster(step, capacity=8, cells=4)
    state = state.set("division_rate", jnp.array([1.0, 0.0, 3.0, 6.0, 50.0, 0.0, 0.0, 0.0]))  # the fifth is dead
    check_stochastic_step(step, state, dt=0.1, key=jax.random.key(0))

    @functools.partial(jax.jit)
    def outcomes(state, keys):
        def one(key):
            after = step(state, dt=0.1, key=key)
            return after.divided, after.alive.sum(), step.logp(state, step.trace_from_state(after), 0.1)

        return jax.vmap(one)(keys)

    divided, cells, log_prob = (np.asarray(x) for x in outcomes(state, jax.random.split(jax.random.key(1), 20_000)))
    chance = np.array([0.1, 0.0, 0.3, 0.6])
    np.testing.assert_array_equal(divided.sum(axis=1), 1)
    np.testing.assert_array_equal(cells, 5)
    frequency = divided.mean(axis=0)
    assert np.all(np.abs(frequency[:4] - chance) < 4 * np.sqrt(chance * (1 - chance) / 20_000) + 1e-12)
    np.testing.assert_allclose(log_prob, np.log(chance[divided[:, :4].argmax(axis=1)]), rtol=1e-5)
    idle, cells, log_prob = outcomes(
        state.set("division_rate", jnp.zeros(8)), jax.random.split(jax.random.key(1), 20_000)
    )
    assert not np.any(idle)
    assert np.all(np.asarray(cells) == 4)
    assert np.all(np.asarray(log_prob) == 0)


def test_reading_noise_keeps_the_simulators_contract():
    step = ReadingNoise()
    recorded = check_stochastic_step(step, cluster(step), key=jax.random.key(3))
    assert float(jnp.abs(recorded["reading_noise"]).max()) > 0.5
