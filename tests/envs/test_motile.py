"""Chemotaxis and Aggregation: cells swim as they are told, find what they look for, and differentiate end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import equimorph
from equimorph.agents.agent import View
from equimorph.agents.classical.tissues import rule_agent
from equimorph.errors import UserError

from .tissue_play import check_played, play


def climbing(rule, observation, key):
    return rule(View(observation, jnp.ones(observation.shape[0], bool)), key)


def swim(weights, observation, key):
    return jnp.broadcast_to(weights, (observation.shape[0], 2))


@pytest.mark.extended
def test_climbing_cells_reach_the_source_as_fast_as_they_swim():
    env, params = equimorph.make("Chemotaxis-v0", capacity=4, founders=3, substeps=2, rot_diffusion=0.0, kT=0.0)
    params = params.replace(spread=jnp.array(1e-6), max_speed=jnp.array(2.0))
    rule = rule_agent("gradient_climbing", env, params).rule
    # One cell at a time would do; three on a spot push each other apart first.
    played = play(env, params, climbing, rule, jax.random.split(jax.random.key(0), 8), 30)
    check_played(played, lambda score: 10 * score)
    distance = np.linalg.norm(played.after.tissue.position - played.after.tissue.source[:, :, None], axis=-1)[..., :3]
    progress = -np.diff(distance, axis=1)
    np.testing.assert_allclose(progress[:, 8:14].mean(), 0.4, atol=0.01)  # 2 diameters a unit of time, 0.2 of it a step
    assert distance[:, -1].max() < 1.5
    np.testing.assert_allclose(played.info["score"], (1 / (1 + (distance / 5) ** 2)).mean(axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(played.over[0], np.arange(1, 31) == 30)


@pytest.mark.extended
def test_a_cell_swims_straight_and_turns_at_its_rate():
    env, params = equimorph.make("Aggregation-v0", capacity=2, founders=1, rot_diffusion=0.0, kT=0.0)
    keys = jax.random.split(jax.random.key(0), 2)
    straight, turning = (play(env, params, swim, jnp.array(w), keys, 4) for w in ([0.5, 0.0], [0.5, -1.0]))
    moved = straight.after.tissue.position[:, -1, 0] - straight.before.tissue.position[:, 0, 0]
    heading = straight.before.tissue.active_heading[:, 0, 0]
    np.testing.assert_allclose(moved, np.stack([np.cos(heading), np.sin(heading)], axis=-1), atol=1e-5)
    turned = turning.after.tissue.active_heading[:, -1, 0] - turning.before.tissue.active_heading[:, 0, 0]
    np.testing.assert_allclose(turned, -3.0 * 4 * 5 * 0.1, rtol=1e-5)
    assert np.all(straight.after.tissue.active_heading[:, -1, 0] == heading)


@pytest.mark.usefixtures("x64")
def test_pathwise_gradients_are_the_slopes_and_gather_cells():
    env, params = equimorph.make(
        "Aggregation-v0", capacity=9, founders=9, substeps=2, spread=2.0, max_steps_in_episode=8, max_speed=3.0
    )

    def final(weights, key):
        observation, state = env.reset_env(jax.random.key(5), params)

        def step(carry, key):
            observation, state = carry
            raw = observation @ weights
            action = jnp.stack([jax.nn.sigmoid(raw[:, 0]), jnp.tanh(raw[:, 1])], axis=-1)
            observation, state, reward, *_ = env.step_env(key, state, action, params)
            return (observation, state), reward[0]

        (_, state), rewards = jax.lax.scan(step, (observation, state), jax.random.split(key, 8))
        return -rewards.sum(), (
            env.score(state, params),
            env.score(env.reset_env(jax.random.key(5), params)[1], params),
        )

    descend = jax.jit(jax.value_and_grad(final, has_aux=True))
    weights, key = 0.3 * jax.random.normal(jax.random.key(1), (5, 2)), jax.random.key(2)
    (value, (after, before)), slope = descend(weights, key)
    assert float(value) == pytest.approx(float(after - before), abs=1e-12)
    for row, column in ((1, 0), (2, 1)):
        step = 1e-5 * jnp.zeros((5, 2)).at[row, column].set(1.0)
        difference = (descend(weights + step, key)[0][0] - descend(weights - step, key)[0][0]) / 2e-5
        assert float(slope[row, column]) == pytest.approx(float(difference), rel=1e-5)
        assert abs(float(difference)) > 1e-3
    optimiser = optax.adam(0.1)
    state = optimiser.init(weights)
    for _ in range(60):
        (_, (after, _)), slope = descend(weights, key)
        updates, state = optimiser.update(slope, state)
        weights = optax.apply_updates(weights, updates)
    assert float(after) < 0.6 * float(before)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def test_they_are_differentiable_and_steered_by_nothing_else():
    for id in ("Chemotaxis-v0", "Aggregation-v0"):
        env, _ = equimorph.make(id)
        assert env.capabilities == {"score", "differentiable"}
        assert env.with_transition_gradients() is env
    with pytest.raises(UserError, match="not of CellCount-v0"):
        rule_agent("gradient_climbing", *equimorph.make("CellCount-v0"))
