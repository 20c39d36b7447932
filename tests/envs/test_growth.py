"""The growth economy against an independent solver's numbers, and against Brock and Mirman's closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.classical import solve, solve_with
from equimorph.agents.classical.log_linear import linearize
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.envs.economies.growth import spreads
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("Growth-v0", **overrides)


def at(env, params, k, z):
    return env.steady_state(params)[0].replace(k=jnp.asarray(k, float), z=jnp.asarray(z, float))


def consumption(env, params, state):
    return float(env.definitions(state, solve(env, params).policy(state), params)["consumption"])


def test_steady_state():
    env, params = make()
    state, decision = env.steady_state(params)
    assert float(env.productivity(params)) == pytest.approx(0.0975028058, abs=5e-11)
    assert float(state.k) == 1.0
    assert float(env.definitions(state, decision.action, params)["consumption"]) == pytest.approx(
        0.0725028058, abs=5e-11
    )
    assert float(decision.action[0]) == pytest.approx(0.932398, abs=5e-7)
    np.testing.assert_array_equal(env.centre(params), decision.action)
    env, params = make(calibration="annual_log")
    state, decision = env.steady_state(params)
    assert float(env.productivity(params)) == 1.0
    assert float(state.k) == pytest.approx(6.366837, abs=5e-7)
    shares = env.definitions(state, decision.action, params)
    assert float(shares["invested_share"]) == pytest.approx(0.326972, abs=5e-7)


@pytest.mark.parametrize("gamma", [1, 2])
def test_consumption_and_value(known, gamma):
    env, params = make(calibration=f"g{gamma}")
    value = float(solve(env, params).value(at(env, params, 1.0, 1.0)))
    assert value == known(f"growth.g{gamma}.V(1,1)")
    assert consumption(env, params, at(env, params, 1.0, 1.0)) == known(f"growth.g{gamma}.c(1,1)")
    if gamma == 2:
        assert consumption(env, params, at(env, params, 0.9, 1.0)) == known("growth.g2.c(.9,1)")
        assert consumption(env, params, at(env, params, 1.0, np.exp(0.03))) == known("growth.g2.c(1,e^.03)")
    capital, poor, lucky = {1: (0.999999956, 0.067947707, 0.073173364), 2: (1.000015823, 0.069046778, 0.073259818)}[
        gamma
    ]
    state = at(env, params, 1.0, 1.0)
    after = env.transition(state, solve(env, params).policy(state), jnp.zeros(1), params)
    assert float(after.k) == pytest.approx(capital, abs=1e-9)
    assert consumption(env, params, at(env, params, 0.9, 1.0)) == pytest.approx(poor, abs=1e-9)
    assert consumption(env, params, at(env, params, 1.0, np.exp(0.03))) == pytest.approx(lucky, abs=1e-9)


@pytest.mark.extended
def test_annual_log_calibration():
    """The policy at the steady state, and the rule that is linear in capital and log productivity."""
    env, params = make(calibration="annual_log")
    state, decision = env.steady_state(params)
    share = env.definitions(state, solve(env, params).policy(state), params)["invested_share"]
    assert float(share) == pytest.approx(0.327147, abs=5e-5)
    iterated = solve_with("value_iteration", env, params, points=(31, 15))
    again = env.definitions(state, iterated.policy(state), params)["invested_share"]
    assert float(share) == pytest.approx(float(again), abs=2e-6)
    rule = linearize(env, params)

    def invested(k, log_z):
        away = jnp.stack([jnp.log(k / state.k), log_z])
        action = decision.action + jnp.asarray(rule.slopes) @ away
        return env.definitions(at(env, params, k, jnp.exp(log_z)), action, params)["invested_share"]

    by_capital, by_shock = jax.grad(invested, (0, 1))(state.k, jnp.zeros(()))
    assert float(by_capital) == pytest.approx(-0.02271, abs=5e-6)
    assert float(by_shock) == pytest.approx(0.38655, abs=5e-6)


def test_full_depreciation_and_log_utility_are_brock_and_mirman():
    env, params = make(gamma=1.0, delta=1.0, normalised=False)
    exact, theirs = equimorph.make("BrockMirman-v0", calibration="patient")
    answer, known = solve(env, params), exact.reference(theirs)
    for k, z in ((0.2, 1.0), (0.18, 1.05), (0.22, 0.93)):
        state = at(env, params, k, z)
        twin = exact.steady_state(theirs)[0].replace(k=state.k, z=state.z)
        assert float(answer.policy(state)[0]) == pytest.approx(0.3564, abs=1e-12)
        assert float(answer.value(state)) == pytest.approx(float(known.value(twin)), abs=1e-9)


@pytest.fixture(scope="module")
def visited():
    """The default economy, its solution, and states of a long simulation, `[S]`."""
    with jax.enable_x64(True):
        env, params = make()
        answer = solve(env, params)
        law = env.shocks(params)

        def step(states, keys):
            def one(state, key):
                return env.transition(state, answer.policy(state), law.sample(key, state), params)

            after = jax.vmap(one)(states, keys)
            return after, after

        start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (64,)), env.steady_state(params)[0])
        path = jax.jit(lambda s, keys: jax.lax.scan(step, s, keys)[1])(
            start, jax.random.split(jax.random.key(0), (1500, 64))
        )
        return env, params, answer, jax.tree.map(lambda leaf: leaf[300::10].reshape(-1), path)


def euler_levels(env, params, states, decide):
    """log10 of the mean and of the largest Euler error."""

    def one(state):
        nodes, weights = env.shocks(params).nodes("gauss_hermite", 11, state)
        return residuals(decide, state, nodes, weights, env, params, report=env.euler_error)["euler"]

    errors = np.abs(np.asarray(jax.jit(jax.vmap(one))(states)))
    return np.log10(errors.mean()), np.log10(errors.max())


def constant_share_of_output(env, params):
    """The Solow rule at the steady state's share."""
    steady, decision = env.steady_state(params)
    share = env.definitions(steady, decision.action, params)["invested_share"]

    def decide(state):
        saved = (1 - params.delta) * state.k + share * env.output(state, params)
        return Decision((saved / env.cash(state, params))[None])

    return decide


def test_euler_errors_of_rules(visited):
    env, params, answer, states = visited
    mean, most = euler_levels(env, params, states, constant_share_of_output(env, params))
    assert mean == pytest.approx(-2.87, abs=0.05)
    assert most == pytest.approx(-2.14, abs=0.15)
    mean, most = euler_levels(env, params, states, lambda state: Decision(answer.policy(state)))
    assert mean < -13
    assert most < -12


def test_a_policy_one_percent_off(visited):
    """c (1 + x) at one date misses the Euler equation by -x/(1 + x), plus what its own saving does to tomorrow."""
    env, params, answer, states = visited

    def decide(state):
        return Decision(1 - 1.01 * (1 - answer.policy(state)))

    mean, _ = euler_levels(env, params, states, decide)
    # c is too high for ever: tomorrow's is up by 1 % too, and down by less capital: -.01 c / k' d log c' / d log k'.
    elasticity = float(jnp.log(consumption(env, params, at(env, params, 1.01, 1.0)) / 0.072486982) / jnp.log(1.01))
    pull = (1 - params.beta * (1 - params.delta)) * (1 - params.alpha) / params.gamma
    assert 10**mean == pytest.approx(0.01 * 0.0725 * (elasticity + float(pull)), rel=0.05)


def test_simulated_states(visited):
    env, params, _, states = visited
    assert float(states.k.min()) == pytest.approx(0.85, abs=0.03)
    assert float(states.k.max()) == pytest.approx(1.17, abs=0.03)
    observed = np.asarray(jax.vmap(env.observation, (0, None))(states, params))
    np.testing.assert_allclose(observed.std(axis=0), 0.98, atol=0.05)
    np.testing.assert_allclose(observed.mean(axis=0), 0.0, atol=0.15)


@pytest.mark.parametrize("calibration", ["g1", "g2", "g5", "annual_log"])
def test_spreads_are_those_of_the_linear_rule(calibration):
    env, params = make(calibration=calibration)
    np.testing.assert_allclose(linearize(env, params).spreads, spreads(params), rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_consumption_equivalent_of_a_constant_stream(gamma):
    env, params = make(gamma=gamma)
    utility, marginal = env.reward_units(params)
    css = 0.0725028058

    def worth(c):
        flow = jnp.log(c) if gamma == 1 else (c ** (1 - gamma) - 1) / (1 - gamma)
        return flow / (1 - params.beta)

    assert float(utility) == pytest.approx(float(worth(css) * (1 - params.beta)), rel=1e-8)
    assert float(marginal) == pytest.approx(css ** (1 - gamma), rel=1e-8)
    for lost in (1e-9, 1e-3, 0.2):
        found = env.consumption_equivalent(worth((1 - lost) * css), worth(css), params)
        assert float(found) == pytest.approx(lost, rel=1e-4)


@pytest.mark.parametrize("wide", [False, True])
def test_both_precisions(wide):
    with jax.enable_x64(wide):
        env, params = make(calibration="g1")
        answer, state = solve(env, params), at(env, params, 1.0, 1.0)
        action, value = jax.jit(lambda policy, worth, s: (policy(s), worth(s)))(answer.policy, answer.value, state)
        _, after, reward, _, _ = env.step_env(jax.random.key(0), state, action, params)
        assert {leaf.dtype for leaf in (action, value, after.k, after.z, reward)} == {jnp.result_type(float)}
        assert float(value) == pytest.approx(-262.3819991, abs=1e-5 if wide else 1e-3)


def test_shares_at_the_ends_are_held_up_and_reported():
    env, params = make()
    state = env.steady_state(params)[0]
    for share, floored, clipped in ((0.0, True, False), (1.0, True, False), (0.9, False, False), (1.5, True, True)):
        _, after, reward, _, info = env.step_env(jax.random.key(0), state, jnp.array([share]), params)
        assert np.isfinite(reward)
        assert after.k > 0
        assert (bool(info["floored"]), bool(info["action_clipped"])) == (floored, clipped)


def test_a_scale_needs_to_be_asked_for():
    with pytest.raises(UserError, match=r"scale = 2 does not apply with normalised=True.*set normalised=False"):
        make(scale=2.0)
    env, params = make(scale=2.0, normalised=False)
    assert float(env.productivity(params)) == 2.0
