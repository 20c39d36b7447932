"""The linear income tax against its formula, its workers against theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs import Decision
from equimorph.envs.economies.linear_tax import income, laffer_rate, utilities, welfare
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("LinearTax-v0", **overrides)


def condition(env, params, rate):
    return env.conditions(None, Decision(jnp.array([rate])), {}, params)["tax"]


def test_the_best_rate_and_its_welfare(known):
    env, params = make()
    reference, state = env.reference(params), env.initial_state(jax.random.key(0), params)
    rate = reference.policy(state)
    assert float(rate[0]) == known("linear_tax.tau(n=[.5,.75,1,1.5,2.5],g=1/n,e=.5)")
    assert float(reference.value(state)) == pytest.approx(0.79187279, abs=5e-9)
    assert float(env.reward(state, rate, params)) == pytest.approx(0.79187279, abs=5e-9)
    assert float(welfare(jnp.array(0.0), params)) == pytest.approx(0.66407604, abs=5e-9)
    assert float(laffer_rate(params)) == pytest.approx(0.66667, abs=5e-6)


@pytest.mark.parametrize(
    "overrides", [{}, {"aversion": 0.3, "elasticity": 1.2}, {"skills": [0.2, 1.0, 6.0]}, {"aversion": 0.0}]
)
def test_the_condition_is_the_slope_of_welfare(overrides):
    env, params = make(**overrides)
    best = float(env.reference(params).policy(None)[0])
    assert float(condition(env, params, best)) == pytest.approx(0, abs=1e-14)
    for rate in (0.1, 0.5, 0.9):
        slope = float(jax.grad(welfare)(rate, params) / income(rate, params).mean())
        assert float(condition(env, params, rate)) == pytest.approx((1 - rate) * slope, abs=1e-12)
        assert float(welfare(rate, params)) < float(welfare(best, params)) + 1e-15


def test_the_best_rate_is_found_by_search_too():
    env, params = make()
    rates = jnp.linspace(0, 1, 100_001)
    found = rates[jnp.argmax(jax.vmap(lambda t: welfare(t, params))(rates))]
    assert float(found) == pytest.approx(float(env.reference(params).policy(None)[0]), abs=1e-5)
    revenue = jax.vmap(lambda t: env.definitions(None, t[None], params)["lump_sum"])(rates)
    assert float(rates[jnp.argmax(revenue)]) == pytest.approx(2 / 3, abs=1e-5)


def test_workers_choose_their_best_hours():
    env, params = make()
    rate = 0.3
    hours = env.definitions(None, jnp.array([rate]), params)["hours"]
    np.testing.assert_allclose(params.skills * (1 - rate) - hours ** (1 / params.elasticity), 0, atol=1e-14)
    lump = rate * income(rate, params).mean()

    def utility(h):
        return (1 - rate) * params.skills * h + lump - h**3 / 3

    np.testing.assert_allclose(utilities(rate, params), utility(hours), rtol=1e-13)
    for other in (0.99, 1.01):
        assert np.all(utility(other * hours) < utility(hours))


def test_a_rate_one_percent_off_costs_its_curvature():
    """W'' at the best rate, from W'(t) = mean(z) ((1 - gb) - e t / (1 - t))."""
    env, params = make()
    best = float(env.reference(params).policy(None)[0])
    curvature = float(income(best, params).mean() * params.elasticity / (1 - best) ** 2)
    for factor in (0.99, 1.01):
        loss = float(welfare(best, params) - welfare(factor * best, params))
        assert loss == pytest.approx(curvature * (0.01 * best) ** 2 / 2, rel=0.03)


def test_rewards_are_shares_of_income_without_tax():
    (env, params), (raw, _) = make(), make(reward_scale="utility")
    state, action = env.initial_state(jax.random.key(0), params), jnp.array([0.4])
    _, after, reward, terminated, _ = env.step_env(jax.random.key(0), state, action, params)
    plain = raw.step_env(jax.random.key(0), state, action, params)[2]
    assert float(plain) == pytest.approx(float(welfare(0.4, params)), abs=1e-15)
    none = float(welfare(0.0, params))
    assert float(reward) == pytest.approx((float(plain) - none) / float(income(0.0, params).mean()), abs=1e-14)
    assert terminated
    assert float(after.tax) == 0.4


def test_everything_taxed_is_finite_and_reported():
    env, params = make()
    state = env.initial_state(jax.random.key(0), params)
    for rate, held in ((1.0, True), (0.99, False)):
        _, _, reward, _, info = env.step_env(jax.random.key(0), state, jnp.array([rate]), params)
        assert np.isfinite(reward)
        assert bool(info["floored"]) == held
    assert np.isfinite(jax.grad(lambda t: welfare(t, params))(1.0))


@pytest.mark.parametrize(
    ("skills", "message"),
    [
        ([], "parameter skills is empty; give at least one number"),
        ([[1.0, 2.0]], r"skills has shape \[1, 2\]; give a list of wages"),
        (1.0, r"skills has shape \[\]; give a list of wages"),
    ],
)
def test_skills_are_a_list(skills, message):
    with pytest.raises(UserError, match=message):
        make(skills=skills)


def test_mistakes_are_named():
    with pytest.raises(UserError, match=r"parameter skills = .* lie in \(0, inf\)"):
        make(skills=[0.5, -1.0])
    with pytest.raises(UserError, match="parameter elasticity"):
        make(elasticity=0.0)
