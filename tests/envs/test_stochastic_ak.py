"""Saving at a risky return: its closed form, and the errors that a wrong expectation makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs import Decision
from equimorph.envs.economies.stochastic_ak import constant_value, discounted_return
from equimorph.errors import UserError

DEFAULT, STRESS = "(be=.95,ga=2,mu=.03,sd=.1)", "(be=.95,ga=5,mu=.05,sd=.1)"


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("StochasticAK-v0", **overrides)


def wealth(env, params, k=1.0):
    return env.reset_env(jax.random.key(0), params)[1].replace(k=jnp.array(k))


def inside(env, params, share, shocks):
    """X / s^gamma at each shock: the integrand of the Euler condition, relative to marginal utility today."""
    state, decision = wealth(env, params), Decision(jnp.array([share]))

    def one(shock):
        after = env.transition(state, decision.action, shock, params)
        h = env.expectation_terms(state, decision, after, decision, params, next_policy=lambda _: decision)
        return env.conditions(state, decision, h, params)["euler"] + 1

    return jax.vmap(one)(shocks)


@pytest.mark.parametrize(("calibration", "label"), [("default", DEFAULT), ("stress", STRESS)])
def test_saved_share(known, calibration, label):
    env, params = make(calibration=calibration)
    assert float(env.reference(params).policy(wealth(env, params))[0]) == known(f"stochastic_ak.s{label}")


def test_value_at_wealth_one(known):
    env, params = make()
    assert float(env.reference(params).value(wealth(env, params))) == known("stochastic_ak.V(1)")
    env, params = make(calibration="stress")
    assert float(env.reference(params).value(wealth(env, params))) == pytest.approx(-5770027.69, abs=0.01)


def test_best_share_has_the_best_value():
    env, params = make()
    state, best = wealth(env, params, 1.7), env.reference(params)
    share = best.policy(state)[0]
    value = float(best.value(state))
    assert float(constant_value(state, share, params)) == pytest.approx(value, rel=1e-12)
    for other in (share - 1e-3, share + 1e-3):
        assert float(constant_value(state, other, params)) < value


@pytest.mark.parametrize("calibration", ["default", "stress"])
@pytest.mark.parametrize("share", [0.95, 0.97])
def test_value_solves_its_recursion(calibration, share):
    env, params = make(calibration=calibration)
    action = jnp.array([share])
    for k in (0.5, 1.0, 2.0):
        state = wealth(env, params, k)
        nodes, weights = env.shocks(params).nodes("gauss_hermite", 21, state)
        after = jax.vmap(lambda shock, state=state: env.transition(state, action, shock, params))(nodes)
        values = jax.vmap(lambda state: constant_value(state, action[0], params))(after)
        recursion = env.reward(state, action, params) + params.beta * weights @ values
        assert float(recursion) == pytest.approx(float(constant_value(state, action[0], params)), rel=1e-11)


def test_effective_discount_is_the_growth_of_discounted_utility():
    env, params = make()
    state, action = wealth(env, params, 1.3), jnp.array([0.95])
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 21, state)
    after = jax.vmap(lambda shock: env.transition(state, action, shock, params))(nodes)
    utilities = jax.vmap(lambda state: env.reward(state, action, params))(after)
    growth = params.beta * weights @ utilities / env.reward(state, action, params)
    assert float(env.effective_discount(state, action, params)) == pytest.approx(float(growth), rel=1e-12)


def test_the_centre_has_no_finite_value_in_the_default_calibration():
    env, params = make()
    state = wealth(env, params)
    assert float(env.effective_discount(state, env.centre(params), params)) > 1
    assert float(env.effective_discount(state, env.reference(params).policy(state), params)) < 1
    # The smallest share whose value is finite.
    assert float(discounted_return(params)) == pytest.approx(0.9265, abs=5e-5)
    assert env.steady_state(params) is None


@pytest.mark.parametrize(
    ("calibration", "shares"),
    [("default", (0.967397, 0.963780, 0.962723)), ("stress", (0.99774389, 0.974563, 0.967367))],
)
def test_a_square_of_few_draws_is_minimised_elsewhere(known, calibration, shares):
    """E (mean_n X / s^gamma - 1)^2 has its minimum at (m + Var X / (n m))^(1 / gamma)."""
    env, params = make(calibration=calibration)
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 41, None)
    for n, expected in zip((1, 4, 32), shares, strict=True):

        def loss(share, n=n):
            x = inside(env, params, share, nodes)
            mean = weights @ x
            return (mean - 1) ** 2 + weights @ (x - mean) ** 2 / n

        gradient = jax.grad(loss)
        assert abs(float(gradient(expected))) < 2e-4 * abs(float(gradient(0.9)))
        assert float(gradient(expected - 2e-4)) < 0 < float(gradient(expected + 2e-4))
        x = inside(env, params, 1.0, nodes)
        m, variance = weights @ x, weights @ (x - weights @ x) ** 2
        formula = float((m + variance / (n * m)) ** (1 / params.gamma))
        assert formula == pytest.approx(expected, abs=1e-6)
        if calibration == "stress" and n == 1:
            assert formula == known(f"stochastic_ak.s_naive1{STRESS}")


@pytest.mark.parametrize(
    ("calibration", "order", "error", "within"),
    [
        ("default", 3, -4e-9, 0.5e-9),
        ("default", 5, 0.0, 1e-14),
        ("stress", 3, -6e-6, 0.5e-6),
        ("stress", 5, -6e-10, 0.5e-10),
    ],
)
def test_quadrature_error(calibration, order, error, within):
    env, params = make(calibration=calibration)
    nodes, weights = env.shocks(params).nodes("gauss_hermite", order, None)
    share = float((weights @ inside(env, params, 1.0, nodes)) ** (1 / params.gamma))
    exact = float(env.reference(params).policy(None)[0])
    assert share - exact == pytest.approx(error, abs=within)


def test_the_condition_vanishes_at_the_answer_and_only_there():
    env, params = make(calibration="stress")
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 11, None)
    share = float(env.reference(params).policy(None)[0])
    assert float(weights @ inside(env, params, share, nodes)) == pytest.approx(1.0, abs=1e-12)
    assert abs(float(weights @ inside(env, params, share - 0.01, nodes)) - 1) > 0.02
    assert np.ptp(inside(env, params, share, nodes)) > 0.5  # the shock does not drop out


def test_parameters_without_an_answer_are_refused():
    with pytest.raises(UserError, match="gamma = 1"):
        make(gamma=1.0)
    with pytest.raises(UserError, match="best saved share"):
        make(beta=0.3)


def test_an_episode_is_truncated_after_32_periods():
    env, params = make()
    state = wealth(env, params).replace(time=jnp.int32(31))
    terminated, truncated = env.step(jax.random.key(0), state, env.centre(params), params)[3:5]
    assert (bool(terminated), bool(truncated)) == (False, True)
