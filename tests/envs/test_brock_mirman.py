"""Brock and Mirman's economy against its closed form and an independent solver's numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs import Decision
from equimorph.envs.economies.brock_mirman import constant_value
from equimorph.errors import UserError

AL_BE = "(al=.36,be=.96)"


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("BrockMirman-v0", **overrides)


def states(env, params, number=5):
    return [env.reset_env(jax.random.key(seed), params)[1] for seed in range(number)]


def residual(env, params, state, share):
    """The Euler condition of saving `share` for ever, by quadrature; and what stands inside the expectation."""
    decision = Decision(jnp.array([share]))
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 5, state)

    def inside(shock):
        after = env.transition(state, decision.action, shock, params)
        return env.expectation_terms(state, decision, after, decision, params, next_policy=lambda _: decision)["saving"]

    terms = jax.vmap(inside)(nodes)
    return env.conditions(state, decision, {"saving": weights @ terms}, params)["euler"], terms


def expected_value(env, params, state, share, value):
    """u + beta E V(s') at one state, by quadrature."""
    action = jnp.array([share])
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 9, state)
    after = jax.vmap(lambda shock: value(env.transition(state, action, shock, params)))(nodes)
    return env.reward(state, action, params) + params.beta * weights @ after


def test_saved_share_and_steady_state(known):
    env, params = make()
    state, decision = env.steady_state(params)
    assert float(env.saved_share(params)) == known(f"brock_mirman.s{AL_BE}")
    assert float(state.k) == known(f"brock_mirman.kss{AL_BE}")
    assert float(decision.action[0]) == known(f"brock_mirman.s{AL_BE}")
    assert float(env.definitions(state, decision.action, params)["consumption"]) == pytest.approx(0.359990479992)


def test_value_at_the_steady_state(known):
    env, params = make()
    value = env.reference(params).value(env.steady_state(params)[0])
    assert float(value) == known("brock_mirman.V(kss,z=1)(al=.36,be=.96,rho=.9)")
    env, params = make(calibration="patient")
    value = env.reference(params).value(env.steady_state(params)[0])
    assert float(value) == pytest.approx(-102.1010004518, abs=1e-9)


def test_value_is_linear_in_logs(known):
    env, params = make()
    at = env.steady_state(params)[0]
    value = env.reference(params).value
    one = value(at.replace(k=jnp.ones(()), z=jnp.ones(())))
    rich, lucky = (value(at.replace(k=jnp.exp(k), z=jnp.exp(z))) - one for k, z in ((1.0, 0.0), (0.0, 1.0)))
    assert [float(one), float(rich), float(lucky)] == known("brock_mirman.A,B,D")


@pytest.mark.parametrize("share", [0.3456, 0.2, 0.9])
def test_value_of_any_constant_share_solves_its_recursion(share):
    env, params = make()
    for state in states(env, params):

        def value(state):
            return constant_value(state, jnp.array(share), params)

        assert float(expected_value(env, params, state, share, value)) == pytest.approx(float(value(state)), abs=1e-9)


@pytest.mark.parametrize(
    ("factor", "regret", "loss"),
    [
        (0.9, 0.1045, 4.2e-3),
        (0.95, 0.02564, 1.0e-3),
        (0.99, 1.012e-3, 4.0e-5),
        (1.01, 1.006e-3, 4.0e-5),
        (1.05, 0.02485, 9.9e-4),
        (1.1, 0.09806, 3.9e-3),
    ],
)
def test_regret_is_the_same_in_every_state(factor, regret, loss):
    env, params = make()
    for state in states(env, params, 2):
        best = env.reference(params).value(state)
        value = constant_value(state, factor * env.saved_share(params), params)
        assert float(best - value) == pytest.approx(regret, rel=6e-4)
        assert float(env.consumption_equivalent(value, best, params)) == pytest.approx(loss, rel=0.03)


def test_regret_of_saving_five_percent_too_much(known):
    env, params = make()
    state = env.steady_state(params)[0]
    value = constant_value(state, 1.05 * env.saved_share(params), params)
    assert float(env.reference(params).value(state) - value) == known("brock_mirman.regret(s=1.05s*)")


def test_value_of_uniformly_random_saving(known):
    env, params = make()
    at = env.steady_state(params)[0]
    # E log s = E log(1 - s) = -1 for a uniform share, and the value is linear in both.
    shares = jnp.array([0.2, 0.7])
    values = jax.vmap(lambda share: constant_value(at, share, params))(shares)
    logs = jnp.stack([jnp.log(1 - shares), jnp.log(shares)], axis=1)
    b = 0.36 / (1 - 0.36 * 0.96)
    weights = jnp.array([1.0, 0.96 * b]) / (1 - 0.96)
    base = values - logs @ weights
    np.testing.assert_allclose(base[0], base[1], atol=1e-9)
    assert float(base[0] - weights.sum()) == known("brock_mirman.V_uniform_policy(kss)")


def test_return_of_a_finite_episode():
    env, params = make(reward_scale="utility", sigma=1e-300)
    state, decision = env.steady_state(params)
    best, total = env.reference(params).value(state), 0.0
    for t in range(20):
        _, state, reward, terminated, _ = env.step_env(jax.random.key(t), state, decision.action, params)
        total += 0.96**t * float(reward)
        assert not terminated
    assert total == pytest.approx(float((1 - 0.96**20) * best), abs=1e-9)


@pytest.mark.parametrize("share", [0.2, 0.3456, 0.6])
def test_euler_residual_depends_on_nothing_but_the_share(share):
    env, params = make()
    for state in states(env, params):
        euler, terms = residual(env, params, state, share)
        assert float(euler) == pytest.approx(0.3456 / share - 1, abs=1e-12)
        np.testing.assert_allclose(terms, terms[0], rtol=1e-12)


@pytest.mark.parametrize(("concept", "index"), [("competitive", 0), ("planner", 1)])
def test_external_effect_parts_equilibrium_and_planner(known, concept, index):
    env, params = make(calibration="externality", concept=concept)
    shares = (0.3456, 0.5376)
    assert list(shares) == known("bm_externality.s_ce,s_planner(al=.36,eta=.2,be=.96)")
    assert env.reference(params).concept == concept
    for state in states(env, params, 3):
        assert float(env.reference(params).policy(state)[0]) == pytest.approx(shares[index], abs=1e-12)
        assert abs(float(residual(env, params, state, shares[index])[0])) < 1e-12
        assert abs(float(residual(env, params, state, shares[1 - index])[0])) > 0.1


def test_competitive_loss_under_the_external_effect():
    env, params = make(calibration="externality")
    state = env.steady_state(params)[0]
    best, market = env.reference(params).value(state), constant_value(state, jnp.array(0.3456), params)
    assert float(env.consumption_equivalent(market, best, params)) == pytest.approx(0.1533, abs=5e-5)
    assert float(jnp.expm1((1 - params.beta) * (best - market))) == pytest.approx(0.181, abs=5e-4)


@pytest.mark.parametrize("wide", [False, True])
def test_both_precisions(wide):
    with jax.enable_x64(wide):
        env, params = make()
        state = env.steady_state(params)[0]
        value = env.reference(params).value(state)
        _, after, reward, _, _ = env.step_env(jax.random.key(0), state, env.centre(params), params)
        assert {leaf.dtype for leaf in (value, after.k, after.z, reward)} == {jnp.result_type(float)}
        assert float(value) == pytest.approx(-25.5419423087, abs=1e-9 if wide else 1e-4)


def test_consumption_units_differ_from_utility_by_a_constant():
    """c u'(c) = 1, so the return in consumption units is that in utility less (1 - beta^T) V at the steady state."""
    (env, params), (raw, _) = make(), make(reward_scale="utility")
    state, decision = env.steady_state(params)
    assert float(env.step_env(jax.random.key(0), state, decision.action, params)[2]) == pytest.approx(0.0, abs=1e-12)
    share, total, total_raw = jnp.array([0.2]), 0.0, 0.0
    for t in range(10):
        key = jax.random.key(t)
        _, after, reward, _, info = env.step_env(key, state, share, params)
        reward_raw = raw.step_env(key, state, share, params)[2]
        assert float(info["utility"]) == pytest.approx(float(reward_raw), abs=1e-12)
        total, total_raw, state = total + 0.96**t * reward, total_raw + 0.96**t * reward_raw, after
    constant = (1 - 0.96**10) * -25.5419423087
    assert float(total) == pytest.approx(float(total_raw) - constant, abs=1e-8)


@pytest.mark.parametrize("calibration", ["default", "externality"])
def test_observation_is_in_ergodic_standard_deviations(calibration):
    env, params = make(calibration=calibration)
    action = env.reference(params).policy(None)

    def step(state, key):
        observation, state, *_ = env.step_env(key, state, action, params)
        return state, observation

    def path(key):
        start = env.reset_env(key, params)[1]
        return jax.lax.scan(step, start, jax.random.split(key, 400))[1][100:]

    observations = np.asarray(jax.jit(jax.vmap(path))(jax.random.split(jax.random.key(0), 256))).reshape(-1, 2)
    np.testing.assert_allclose(observations.std(axis=0), 1.0, atol=0.04)
    np.testing.assert_allclose(observations.mean(axis=0), 0.0, atol=0.06)


def test_shares_at_the_ends_are_held_up_and_reported():
    env, params = make()
    state = env.steady_state(params)[0]
    for share, floored, clipped in ((0.0, True, False), (1.0, True, False), (0.5, False, False), (1.5, True, True)):
        _, after, reward, _, info = env.step_env(jax.random.key(0), state, jnp.array([share]), params)
        assert np.isfinite(reward)
        assert after.k > 0
        assert (bool(info["floored"]), bool(info["action_clipped"])) == (floored, clipped)


def test_parameters_that_do_not_go_together():
    with pytest.raises(UserError, match="alpha \\+ eta"):
        make(eta=0.7)
    with pytest.raises(UserError, match="concept of BrockMirman-v0 'nash'"):
        make(concept="nash")
    with pytest.raises(UserError, match="Did you mean 'utility'"):
        make(reward_scale="utilty")


def test_calibrations_vmap():
    env, params = make()
    swept = params.replace(beta=jnp.array([0.9, 0.96]))
    axes = jax.tree.map(lambda leaf: 0 if jnp.ndim(leaf) else None, swept)
    shares = jax.vmap(env.saved_share, in_axes=(axes,))(swept)
    np.testing.assert_allclose(shares, [0.324, 0.3456])
