"""Pictures say what a state is: points and bars move with the state, paths are lines, and frames keep their size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph

BLUE, ORANGE, GREEN = (0x4C, 0x72, 0xB0), (0xDD, 0x84, 0x52), (0x55, 0xA8, 0x68)


def pixels(picture, colour):
    """Rows and columns of a colour's pixels, `[P, 2]`."""
    return np.argwhere(np.all(picture == np.array(colour), axis=-1))


def middle(picture, colour):
    return pixels(picture, colour).mean(axis=0)


def path_of(env, params, action, steps=30):
    """The states `[T]` that a constant action leads to."""

    def step(state, key):
        state = env.step_env(key, state, action, params)[1]
        return state, state

    return jax.jit(lambda s: jax.lax.scan(step, s, jax.random.split(jax.random.key(1), steps))[1])(
        env.initial_state(jax.random.key(0), params)
    )


# Their pictures are those of Elongation with other colours, or over a silhouette.
ALIKE = {f"{task}-v0" for task in ("TypeBalance", "WoundHealing", "Chemotaxis", "FrenchFlag", "StressHomogeneity")}
EVERY = [pytest.param(id, marks=pytest.mark.extended) if id in ALIKE else id for id in equimorph.list_envs()]


@pytest.mark.parametrize("env_id", EVERY)
def test_frames_are_pictures_of_one_size(env_id):
    env, params = equimorph.make(env_id)
    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    reset, step = (jax.jit(f, compiler_options=quick) for f in (env.reset_env, env.step_env))
    _, state = reset(jax.random.key(0), params)
    first = env.render(state, params)
    action = env.action_space(params).sample(jax.random.key(1))
    _, state, *_ = step(jax.random.key(2), state, action, params)
    second = env.render(state, params)
    assert first.dtype == second.dtype == np.uint8
    assert first.ndim == 3
    assert first.shape == second.shape
    assert first.shape[-1] == 3
    assert np.any(first != second)
    np.testing.assert_array_equal(env.render(state, params), second)


def test_the_point_lies_where_the_state_does():
    env, params = equimorph.make("BrockMirman-v0")
    steady, _ = env.steady_state(params)
    cross = middle(env.render(steady.replace(k=1.2 * steady.k), params), GREEN)
    at = {
        (k, z): middle(env.render(steady.replace(k=k * steady.k, z=z * steady.z), params), BLUE) - cross
        for k, z in ((1.15, 1.0), (1.2, 1.0), (0.8, 1.0), (1.0, 1.15), (1.0, 0.85))
    }
    # Columns grow with k and rows fall with z; both scales are 25 % to either side.
    width, height = 0.76 * 400 / 0.5, 0.81 * 400 / 0.5
    for (k, z), (row, column) in at.items():
        assert column == pytest.approx(width * (k - 1), abs=2)
        assert row == pytest.approx(-height * (z - 1), abs=2)


def test_the_path_is_a_line_that_ends_at_the_present():
    env, params = equimorph.make("BrockMirman-v0")
    path = path_of(env, params, jnp.array([0.3456]))
    last = jax.tree.map(lambda leaf: leaf[-1], path)
    alone, whole = env.render(last, params), env.render(path, params)
    assert len(pixels(alone, ORANGE)) == 0
    assert len(pixels(whole, ORANGE)) > 50
    assert len(pixels(whole, BLUE)) == pytest.approx(len(pixels(alone, BLUE)), rel=0.1)
    shorter = env.render(jax.tree.map(lambda leaf: leaf[-10:], path), params)
    assert len(pixels(shorter, ORANGE)) < len(pixels(whole, ORANGE))


def test_a_single_quantity_is_a_bar_and_its_path_runs_over_time():
    env, params = equimorph.make("StochasticAK-v0")
    state = env.initial_state(jax.random.key(0), params)
    counts = [len(pixels(env.render(state.replace(k=jnp.array(k)), params), BLUE)) for k in (0.55, 0.9)]
    assert counts[1] / counts[0] == pytest.approx(0.9 / 0.55, rel=0.03)
    line = pixels(env.render(path_of(env, params, jnp.array([0.95])), params), ORANGE)
    assert np.ptp(line[:, 1]) > 250


def test_players_are_bars_from_the_first_on_top():
    env, params = equimorph.make("LogitPricing-v0", memory=1, num_firms=4)
    steady = env.steady_state(params)[0]
    price = steady.price * jnp.array([1.2, 1.0, 1.1, 1.0])
    bars = pixels(env.render(steady.replace(price=price), params), BLUE)
    rows, lengths = np.unique(bars[:, 0], return_counts=True)
    first, third = (lengths[(rows >= low) & (rows < high)] for low, high in ((0, 200), (200, 400)))
    assert np.median(first) == pytest.approx(2 * np.median(third), rel=0.05)
    assert len(pixels(env.render(steady, params), BLUE)) == 0


def test_a_pair_of_players_is_a_point_in_their_plane():
    env, params = equimorph.make("LogitPricing-v0", memory=1)
    steady = env.steady_state(params)[0]

    def marker(price):
        found = pixels(env.render(steady.replace(price=steady.price * jnp.array(price)), params), BLUE)
        return found[found[:, 0] < 270].mean(axis=0)

    assert marker((1.1, 1.0))[1] > marker((1.0, 0.9))[1] > marker((0.9, 1.0))[1]
    assert marker((1.0, 1.1))[0] < marker((0.9, 1.0))[0] < marker((1.0, 0.9))[0]


def test_a_state_that_is_not_finite_can_still_be_seen():
    env, params = equimorph.make("BrockMirman-v0")
    steady, _ = env.steady_state(params)
    assert env.render(steady.replace(k=jnp.nan), params).shape[-1] == 3
    env, params = equimorph.make("LogitPricing-v0", memory=1, num_firms=3)
    steady, _ = env.steady_state(params)
    assert env.render(steady.replace(price=jnp.array([1.0, jnp.inf, jnp.nan])), params).shape[-1] == 3
