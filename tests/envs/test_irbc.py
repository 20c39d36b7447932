"""Many countries: accounting, the planner's split, the nested growth model, and an independent solver's points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.classical import solve, solve_with
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.envs.economies.irbc import output, productivity, split, weighted_utility
from equimorph.envs.quadrature import normal_nodes
from equimorph.envs.shocks import directions
from equimorph.errors import UserError
from equimorph.training.evaluation.errors import fixed_nodes, measure
from equimorph.training.evaluation.rules import Rule


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("IRBC-v0", **overrides)


def at(env, params, k, log_a):
    """A state with these capitals and log productivities."""
    state = env.steady_state(params)[0]
    shape = (env.num_agents,)
    k, log_a = (jnp.broadcast_to(jnp.asarray(x, float), shape) for x in (k, log_a))
    return state.replace(k=k, a=jnp.exp(log_a))


def logits(env, params, state, capital):
    """The actions that leave these capitals (of reversible investment)."""
    cost = params.ka / 2 * state.k * (capital / state.k - 1) ** 2
    resources = (output(state, params) + (1 - params.delta) * state.k).sum()
    per_head = (resources - capital.sum() - cost.sum()) / env.num_agents
    return jnp.log(capital / per_head * (productivity(params) - params.delta))[:, None]


@pytest.mark.parametrize("calibration", ["smooth", "adjustment", "irreversible"])
def test_resources_are_used_up_exactly(calibration):
    env, params = make(calibration=calibration, num_agents=3)

    def account(key):
        keys = jax.random.split(key, 3)
        state = env.initial_state(keys[0], params)
        found = env.uses(state, jax.random.uniform(keys[1], (3, 1), minval=-4.0, maxval=4.0), params)
        cost = params.ka / 2 * state.k * (found.capital / state.k - 1) ** 2
        used = (found.consumption + found.capital + cost).sum()
        invested = found.capital - (1 - params.delta) * state.k
        return (
            used - (output(state, params) + (1 - params.delta) * state.k).sum(),
            jnp.minimum(found.consumption.min(), found.capital.min()),
            jnp.abs(invested - found.investment).max(),
            invested.min(),
        )

    gap, least, difference, invested = jax.jit(jax.vmap(account))(jax.random.split(jax.random.key(0), 200))
    assert float(jnp.abs(gap).max()) < 1e-13
    assert float(least.min()) > 0
    assert float(difference.max()) < 1e-14
    assert (float(invested.min()) >= 0) == env.irreversible


def test_steady_state():
    for calibration, a in (("smooth", 0.0975028058), ("adjustment", 0.0558361)):
        env, params = make(calibration=calibration, num_agents=3)
        assert float(productivity(params)) == pytest.approx(a, abs=5e-8)
        state, decision = env.steady_state(params)
        found = residuals(lambda s, d=decision: d, state, jnp.zeros((1, 4)), jnp.ones(1), env, params)
        np.testing.assert_allclose(found["euler"], 0, atol=1e-13)
        consumption = env.definitions(state, decision.action, params)["consumption"]
        assert float(consumption.sum()) == pytest.approx(3 * float(productivity(params) - params.delta), rel=1e-13)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 30.0])
def test_marginal_utility_is_the_same_in_every_country(scale):
    env, params = make(calibration="adjustment", num_agents=7)
    ies = env.ies(params)
    np.testing.assert_allclose(1 / ies[jnp.array([0, -1])], [4, 1])
    total = scale * 0.3

    def marginal(total):
        return split(total, ies, params)[1]

    c, found = split(jnp.array(total), ies, params)
    assert float(c.sum()) == pytest.approx(total, rel=1e-13)
    slopes = jax.grad(lambda c: weighted_utility(c, ies, params).sum())(c)
    np.testing.assert_allclose(slopes, found, rtol=1e-11)
    # sum_j c_j(lambda) = C, differentiated.
    wanted = -found / (ies * c).sum()
    assert float(jax.grad(marginal)(total)) == pytest.approx(float(wanted), rel=1e-11)
    # With s = sum_j ies_j c_j and d c_j = ies_j c_j / s: d(-lambda / s), once more.
    s, curve = (ies * c).sum(), (ies**2 * c).sum()
    second = found / s**2 * (1 + curve / s)
    assert float(jax.grad(jax.grad(marginal))(total)) == pytest.approx(float(second), rel=1e-10)


@functools.cache
def growth():
    """The one-country economy with risk aversion 2, and its solution."""
    with jax.enable_x64(True):
        env, params = equimorph.make("Growth-v0", gamma=2.0)
        return env, params, solve(env, params)


@pytest.mark.parametrize("num_agents", [2, 4, 10])
def test_equal_countries_under_a_common_shock_are_one_country(num_agents):
    one, numbers, answer = growth()
    env, params = make(num_agents=num_agents, sigma_idio=0.0, ies_first=0.5, ies_last=0.5)
    nodes, weights = one.shocks(numbers).nodes("gauss_hermite", 7, None)
    shocks = jnp.concatenate([nodes, jnp.zeros((7, num_agents))], axis=1)

    def alone(state):
        return one.steady_state(numbers)[0].replace(k=state.k[0], z=state.a[0])

    def decide(state):
        single = alone(state)
        left = one.transition(single, answer.policy(single), jnp.zeros(1), numbers).k
        return Decision(logits(env, params, state, jnp.full(num_agents, left)))

    def report(k, log_a):
        state = at(env, params, k, log_a)
        consumption = one.consumption(alone(state), answer.policy(alone(state)), numbers)
        named = env.definitions(state, decide(state).action, params)
        errors = residuals(decide, state, shocks, weights, env, params)["euler"]
        return jnp.abs(errors).max(), jnp.abs(named["consumption"] - consumption).max()

    points = jnp.array([1.0, 0.9, 1.1, 0.95]), jnp.array([0.0, 0.03, -0.04, -0.03])
    errors, gaps = jax.jit(jax.vmap(report))(*points)
    assert float(errors.max()) < 1e-9
    assert float(gaps.max()) < 1e-14


def test_countries_are_interchangeable():
    """Turning the circle of symmetric countries turns what they see, earn and leave."""
    env, params = make(num_agents=3, ka=0.5)
    state, action = at(env, params, [0.9, 1.0, 1.2], [0.02, -0.03, 0.0]), jnp.array([[0.1], [-0.2], [0.05]])
    shock = jnp.array([0.5, 1.0, -1.0, 0.3])
    turned = at(env, params, [1.2, 0.9, 1.0], [0.0, 0.02, -0.03])
    after = env.transition(state, action, shock, params)
    after_turned = env.transition(turned, jnp.roll(action, 1, 0), shock.at[1:].set(jnp.roll(shock[1:], 1)), params)
    np.testing.assert_allclose(env.observation(turned, params), jnp.roll(env.observation(state, params), 1, 0))
    np.testing.assert_allclose(after_turned.k, jnp.roll(after.k, 1), rtol=1e-13)
    np.testing.assert_allclose(after_turned.a, jnp.roll(after.a, 1), rtol=1e-13)
    np.testing.assert_allclose(env.observation(state, params)[1, :3], jnp.log(jnp.array([1.0, 1.2, 0.9])) / 0.2)


def test_irreversible_investment_nests_the_reversible():
    free, numbers = make(calibration="adjustment")
    env, params = make(calibration="irreversible")
    state = at(env, params, [1.02, 0.97], [0.01, -0.02])
    chosen, shock = jnp.array([[0.3], [-0.6]]), jnp.array([0.2, -1.0, 0.5])
    left = env.uses(state, chosen, params).capital
    same = logits(free, numbers, state, left)
    nobody, one = Decision(chosen, jnp.zeros(2)), Decision(same)
    after = env.transition(state, chosen, shock, params)
    np.testing.assert_allclose(free.transition(state, same, shock, numbers).k, after.k, rtol=1e-13)

    def terms(economy, numbers, today, later):
        return economy.expectation_terms(state, today, after, later, numbers, next_policy=lambda _: later)

    following = env.uses(after, chosen, params).capital
    later = Decision(logits(free, numbers, after, following))
    expected, theirs = terms(env, params, nobody, nobody), terms(free, numbers, one, later)
    np.testing.assert_allclose(expected["capital"], theirs["capital"], rtol=1e-12)
    found, theirs = (e.conditions(state, d, expected, params) for e, d in ((env, nobody), (free, one)))
    np.testing.assert_allclose(found["euler"], theirs["euler"], atol=1e-12)
    np.testing.assert_allclose(found["irreversibility"], 0, atol=1e-10)
    # A multiplier tomorrow takes (1 - delta) mu' off the worth of capital; one today closes a gap.
    multiplier = jnp.array([0.1, 0.0])
    priced = terms(env, params, nobody, Decision(chosen, multiplier))["capital"]
    cost = env.marginal_cost(after, env.uses(after, chosen, params), params)
    np.testing.assert_allclose(expected["capital"] - priced, (1 - params.delta) * multiplier * cost, rtol=1e-12)
    gap = env.conditions(state, Decision(chosen, multiplier), expected, params)["euler"] - found["euler"]
    np.testing.assert_allclose(gap, multiplier, atol=1e-14)


def test_the_floor_under_investment_binds_exactly():
    env, params = make(calibration="irreversible")
    state = at(env, params, [1.3, 0.8], 0.0)
    stopped = Decision(jnp.array([[-4.0], [0.5]]), jnp.array([0.2, 0.0]))
    slack = env.slacks(state, stopped, params)["irreversibility"]
    assert float(slack[0]) == 0.0
    assert float(slack[1]) > 0.5
    left = env.transition(state, stopped.action, jnp.zeros(3), params).k
    assert float(left[0]) == pytest.approx(1.3 * (1 - 0.01), rel=1e-14)
    conditions = env.conditions(state, stopped, {"capital": jnp.ones(2)}, params)
    np.testing.assert_allclose(conditions["irreversibility"], 0, atol=1e-10)


@pytest.mark.parametrize("calibration", ["smooth", "adjustment"])
def test_one_percent_of_consumption(calibration):
    env, params = make(calibration=calibration, num_agents=3)
    total = 3 * (productivity(params) - params.delta)

    def worth(total):
        ies = env.ies(params)
        return weighted_utility(split(total, ies, params)[0], ies, params).mean()

    value, lower = (worth(share * total) / (1 - params.beta) for share in (1.0, 0.99))
    assert float(env.consumption_equivalent(lower, value, params)) == pytest.approx(0.01, rel=1e-9)
    base, unit = env.reward_units(params)
    assert float(base) == pytest.approx(float(worth(total)), rel=1e-12)
    assert float(unit) == pytest.approx(float(jax.grad(lambda share: worth(share * total))(1.0)), rel=1e-11)
    # Consuming one percent more than the Euler equation asks for is an error of that size in every country.
    state, decision = env.steady_state(params)
    asked, marginal = split(0.99 * total, env.ies(params), params)
    found = env.euler_error(state, decision, {"capital": jnp.full(3, marginal / params.beta)}, params)["euler"]
    consumption = env.definitions(state, decision.action, params)["consumption"]
    np.testing.assert_allclose(1 + found, asked / consumption, rtol=1e-12)


@pytest.mark.parametrize("sigma_idio", [0.01, 0.0])
def test_innovations_have_fewer_dimensions_than_shocks(sigma_idio):
    """Moments of next period's productivity are exact with nodes in as many dimensions as it moves in."""
    env, params = make(num_agents=3, sigma_idio=sigma_idio, sigma_common=0.02)
    state, decision = env.steady_state(params)

    def log_a(shock):
        return jnp.log(env.transition(state, decision.action, shock, params).a)

    found = directions(log_a, 4)
    assert found.shape == (4, 3 if sigma_idio else 1)
    nodes, weights = normal_nodes("gauss_hermite", found.shape[1], 5)
    innovations = np.asarray(jax.vmap(log_a)(jnp.asarray(nodes @ found.T)))
    covariance = sigma_idio**2 * np.eye(3) + 0.02**2
    np.testing.assert_allclose((innovations * weights[:, None]).T @ innovations, covariance, atol=1e-15)
    # The fourth moment of a sum with variance v is 3 v^2.
    powers = np.array([1.0, -2.0, 0.5])
    fourth = weights @ (innovations @ powers) ** 4
    assert fourth == pytest.approx(3 * (powers @ covariance @ powers) ** 2, rel=1e-10)


def test_a_direction_that_matters_off_the_draws_derivatives_is_kept():
    """A kink hides a shock from derivatives at some draws, not from the function."""
    np.testing.assert_array_equal(directions(lambda e: jnp.stack([e[0], jnp.sign(e[1])]), 2), np.eye(2))
    np.testing.assert_array_equal(directions(lambda e: e, 2), np.eye(2))


def test_a_report_with_fewer_nodes_says_the_same():
    env, params = make(calibration="adjustment")
    rule = LinearPolicyRule(jnp.asarray([[0.1, -0.05], [0.02, 0.3]]))
    states = jax.vmap(env.initial_state, (0, None))(jax.random.split(jax.random.key(0), 64), params)
    found = measure(rule, states, env, params)
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 5, None)

    @jax.jit
    def wanted(state):
        return residuals(rule.bind(env, params), state, nodes, weights, env, params)["euler"]

    np.testing.assert_allclose(found["residuals"]["euler"], jax.vmap(wanted)(states), atol=1e-11)
    assert fixed_nodes(rule, states, env, params)[0].shape == (25, 3)


class LinearPolicyRule(Rule):
    """Logits that are linear in logs of own capital and productivity, and of the other's."""

    slopes: jax.Array

    def bind(self, env, params):
        def decide(state):
            own = jnp.stack([jnp.log(state.k), jnp.log(state.a)], axis=1)
            return Decision((own @ self.slopes[0] - own[::-1] @ self.slopes[1])[:, None])

        return decide


def test_all_earn_the_mean():
    env, params = make(calibration="adjustment", reward_scale="utility")
    state = at(env, params, [1.1, 0.9], 0.0)
    own = env.reward(state, jnp.zeros((2, 1)), params)
    earned = env.step_env(jax.random.key(0), state, jnp.zeros((2, 1)), params)[2]
    np.testing.assert_allclose(earned, own.mean())
    assert float(own[1] - own[0]) != 0


def test_one_country_is_refused():
    with pytest.raises(UserError, match="use Growth-v0"):
        make(num_agents=1)
    assert [make(num_agents=n)[0].solver for n in (2, 3)] == ["chebyshev", "log_linear"]
    assert make(calibration="irreversible")[0].solver is None


@pytest.mark.slow
@pytest.mark.extended
def test_published_points_of_the_smooth_calibration(known):
    env, params = make(calibration="smooth")
    answer = solve_with("chebyshev", env, params, degree=4, order=3, width=4.0)
    assert answer.tolerance < 1e-4

    def look(k, log_a):
        state = at(env, params, k, log_a)
        return env.definitions(state, answer.policy(state), params)

    named = look([1.0, 1.0], [0.03, -0.03])
    assert [float(k) for k in named["capital"]] == known("irbc_jmm_N2.k'(k=1,a=e^±.03)")
    # Weights are free up to a factor, so lambda is read relative to the steady state's.
    state, decision = env.steady_state(params)
    steady = env.definitions(state, decision.action, params)
    assert float(named["lambda"] / steady["lambda"]) == pytest.approx(0.9997176, abs=5e-6)
    np.testing.assert_allclose(look([1.1, 0.9], 0.0)["capital"], 0.9998818, atol=5e-6)


@pytest.mark.extended
def test_published_points_with_adjustment_costs():
    env, params = make(calibration="adjustment")
    answer = solve_with("chebyshev", env, params, degree=4, order=3, width=4.0)
    for k, log_a, capital in (
        ([1.1, 0.9], [0.0, 0.0], [1.0855828, 0.9141942]),
        ([1.0, 1.0], [0.03, -0.03], [1.0050098, 0.9950181]),
    ):
        state = at(env, params, k, log_a)
        np.testing.assert_allclose(env.definitions(state, answer.policy(state), params)["capital"], capital, atol=5e-6)
    state = at(env, params, 1.0, 0.0)
    found = env.definitions(state, answer.policy(state), params)
    assert float(found["lambda"]) == pytest.approx(1.3879188, abs=5e-6)
