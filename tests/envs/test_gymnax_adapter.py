"""gymnax's environments behind our contract behave as gymnax's own, step by step."""

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.errors import UserError


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "FourRooms-misc"])
def test_step_by_step_equality_across_resets(id):
    (ours, params), (theirs, their_params) = equimorph.make(id, max_steps_in_episode=20), gymnax.make(id)
    their_params = their_params.replace(max_steps_in_episode=20)
    key = jax.random.key(0)
    (our_observation, our_state), (their_observation, their_state) = (
        ours.reset(key, params),
        theirs.reset(key, their_params),
    )
    np.testing.assert_array_equal(our_observation, their_observation)
    ends = 0
    for t in range(45):
        key_action, key_step = jax.random.split(jax.random.fold_in(key, t))
        action = ours.action_space(params).sample(key_action)
        observation, our_state, *rest, info = ours.step(key_step, our_state, action, params)
        their_next, their_state, *their_rest, their_info = theirs.step(key_step, their_state, action, their_params)
        np.testing.assert_allclose(observation, their_next, rtol=1e-6)
        np.testing.assert_allclose(info["final_observation"], their_info["final_observation"], rtol=1e-6)
        for mine, other in zip(rest, their_rest, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6)
        ends += bool(rest[1] | rest[2])
    assert ends >= 2


def test_states_are_strongly_typed():
    env, params = equimorph.make("Pendulum-v1")
    observation, state = env.reset(jax.random.key(0), params)
    after = env.step_env(jax.random.key(1), state, jnp.array([0.3]), params)
    for leaf in jax.tree.leaves((observation, state, after[:3])):
        assert not leaf.weak_type
    assert jax.tree.map(lambda x: x.dtype, state) == jax.tree.map(lambda x: x.dtype, after[1])


def test_equal_environments_share_one_compilation():
    (one, _), (two, _), (other, _) = (equimorph.make(id) for id in ("CartPole-v1", "CartPole-v1", "Pendulum-v1"))
    assert one == two
    assert hash(one) == hash(two)
    assert one != other
    counted = jax.jit(lambda env, x: x, static_argnums=0)
    for env in (one, two, other):
        counted(env, 0.0)
    assert counted._cache_size() == 2


def test_transition_gradients_are_a_different_environment():
    plain, params = equimorph.make("Pendulum-v1")
    differentiable = plain.with_transition_gradients()
    assert differentiable != plain
    assert "differentiable" in differentiable.capabilities
    assert "differentiable" not in plain.capabilities
    state = plain.reset_env(jax.random.key(0), params)[1]

    def speed(action, env):
        return env.step_env(jax.random.key(0), state, action, params)[1].theta_dot

    slopes = [jax.grad(speed)(jnp.array([0.3]), env) for env in (plain, differentiable)]
    assert float(slopes[0][0]) == 0.0
    assert float(slopes[1][0]) == pytest.approx(3 * 0.05)


def test_where_gymnax_has_no_gradients_neither_do_we():
    env, _ = equimorph.make("MountainCar-v0")
    assert not env.supports_transition_gradients
    with pytest.raises(ValueError, match="does not support transition gradients"):
        env.with_transition_gradients()


def test_overrides_are_checked():
    with pytest.raises(UserError, match="Did you mean 'max_torque'"):
        equimorph.make("Pendulum-v1", max_torqe=1.0)
    with pytest.raises(UserError, match="must be finite"):
        equimorph.make("Pendulum-v1", g=float("nan"))


def test_agent_axis_and_defaults():
    env, params = equimorph.make("CartPole-v1")
    assert env.num_agents == 1
    assert env.num_actions == 2
    state = env.reset_env(jax.random.key(0), params)[1]
    assert env.agent_mask(state, params).tolist() == [True]
    assert env.world_state(state, params).shape == (4,)
    assert env.reference(params) is None
    assert float(env.discount_factor(params)) == pytest.approx(0.99)


def test_parameters_vmap():
    env, params = equimorph.make("CartPole-v1")
    gravity = jnp.array([0.0, 9.8])
    state = env.reset_env(jax.random.key(0), params)[1].replace(theta=jnp.array(0.1))

    def tilt(g):
        return env.step_env(jax.random.key(0), state, jnp.int32(0), params.replace(gravity=g))[1].theta_dot

    slow, fast = jax.vmap(tilt)(gravity)
    assert float(fast) > float(slow)
