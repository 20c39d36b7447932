"""Saving under a borrowing limit: the endogenous-grid answer against independent numbers, and its own equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

import equimorph
from equimorph.agents import DEQN
from equimorph.agents.classical import solve, solve_with
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.errors import UserError

CALIBRATIONS = ("hark", "two_point", "deaton", "carroll")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(calibration=None, **overrides):
    return equimorph.make("BufferStock-v0", calibration=calibration, **overrides)


def at(m):
    """The state with cash on hand `m`, a number or an array of them."""
    env, params = make()
    state = env.reset_env(jax.random.key(0), params)[1]
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, np.shape(m)), state).replace(m=jnp.asarray(m, float))


def consumption(env, params, m):
    """What the reference consumes at an array of cash on hand."""
    policy = solve(env, params).policy
    one = jax.vmap(lambda state: env.definitions(state, policy(state), params)["consumption"])
    return np.asarray(jax.jit(one)(at(m)))


def decide(env, params):
    policy = solve(env, params).policy
    return lambda state: Decision(policy(state))


# -- the answer ------------------------------------------------------------------------------------------------------


def test_consumption_of_the_default(known):
    env, params = make()
    assert list(consumption(env, params, [0.5, 1, 2, 5, 10])) == known("buffer_stock.c(m=.5,1,2,5,10)")
    others = [0.3, 0.766684, 0.971038, 1.103886, 1.840608]
    np.testing.assert_allclose(consumption(env, params, [0.3, 0.8, 1.5, 3, 20]), others, atol=3e-6)


def test_value_of_the_default(known):
    env, params = make()
    value = solve(env, params).value
    assert float(value(at(1.0))) == known("buffer_stock.V(m=1)")
    others = {0.3: -27.3450, 0.5: -26.0117, 0.8: -25.2571, 1.5: -24.3550, 2.0: -23.8575, 3.0: -22.9830}
    others |= {5.0: -21.4890, 10.0: -18.6067, 20.0: -14.8207}
    values = jax.jit(jax.vmap(value))(at(list(others)))
    np.testing.assert_allclose(values, list(others.values()), atol=1e-4)


@pytest.mark.parametrize("calibration", ["default", "two_point"])
def test_the_limit_binds_below_the_kink(known, calibration):
    env, params = make(calibration)
    policy = solve(env, params).policy
    kink = float(policy.m[0])
    assert kink == (known("buffer_stock.kink") if calibration == "default" else pytest.approx(0.63067909, abs=2e-8))
    assert float(policy(at(kink * (1 - 1e-12)))[0]) == 0.0
    assert float(policy(at(kink * (1 + 1e-6)))[0]) > 0.0


def test_the_two_point_economy(known):
    env, params = make("two_point")
    assert list(consumption(env, params, [0.5, 1, 2, 5])) == known("two_point_income.c(m=.5,1,2,5)")
    assert float(solve(env, params).value(at(1.0))) == known("two_point_income.V(m=1)")
    table = [0.5, 0.714440, 0.790622, 0.917058, 1.003950, 1.303717]
    np.testing.assert_allclose(consumption(env, params, [0.5, 0.8, 1, 1.5, 2, 5]), table, atol=1e-6)
    assert float(solve(env, params).value(at(1.0))) == pytest.approx(-21.56064, abs=1e-5)


@pytest.mark.parametrize(
    ("calibration", "means", "constrained"),
    [("hark", {"m": 2.1631, "c": 1.0331, "a": 1.1300}, 0.0037), ("two_point", {"a": 1.3775}, 0.0320)],
)
def test_the_ergodic_distribution(calibration, means, constrained):
    """By iteration on the distribution of end-of-period assets; the means were simulated by another solver."""
    env, params = make(calibration)
    a = 40 * np.linspace(0, 1, 2001) ** 2
    law = env.shocks(params)
    psi, theta = np.asarray(law.values).T
    chance = np.asarray(law.probabilities)
    m = a[:, None] * float(params.interest) / (float(params.growth) * psi) + theta
    share = np.asarray(jax.jit(jax.vmap(solve(env, params).policy))(at(m.ravel()))).reshape(m.shape)
    after = np.minimum(share * m, a[-1])
    cell = np.clip(np.searchsorted(a, after, side="right") - 1, 0, len(a) - 2)
    up = (after - a[cell]) / (a[cell + 1] - a[cell])
    origin = np.broadcast_to(np.arange(len(a))[:, None], m.shape)
    moves = sum(
        sparse.csr_array(((weight * chance).ravel(), (to.ravel(), origin.ravel())), shape=(len(a), len(a)))
        for weight, to in ((1 - up, cell), (up, cell + 1))
    )
    density = np.where(a < 4, 1.0, 0.0) / np.sum(a < 4)
    for _ in range(1000):
        density = moves @ density
    weight = density[:, None] * chance
    found = {"m": np.sum(weight * m), "a": np.sum(weight * after), "c": np.sum(weight * (m - after))}
    assert {name: found[name] for name in means} == pytest.approx(means, abs=2e-3)
    assert np.sum(weight[share == 0]) == pytest.approx(constrained, rel=0.01)


# -- its equations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calibration", "overrides"), [*((name, {}) for name in CALIBRATIONS), ("two_point", {"limit": -0.5})]
)
def test_the_answer_scores_as_exact(calibration, overrides):
    env, params = make(calibration, **overrides)
    m = np.exp(np.linspace(np.log(0.05), np.log(15), 401)) + float(params.limit)
    nodes, weights = env.shocks(params).nodes("exact", 0, None)
    policy = decide(env, params)

    @jax.jit
    @jax.vmap
    def found(state):
        report = residuals(policy, state, nodes, weights, env, params, report=env.euler_error)
        return report | residuals(policy, state, nodes, weights, env, params) | {"share": policy(state).action[0]}

    values = found(at(m))
    assert np.max(np.abs(values["euler"])) < 5e-6
    assert np.max(np.abs(values["borrowing"])) < 5e-6
    assert (np.min(values["share"]) == 0) == (calibration != "carroll")


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_the_value_solves_its_recursion(calibration):
    """Discounts vary with the growth of permanent income."""
    env, params = make(calibration)
    policy, value = solve(env, params).policy, solve(env, params).value
    nodes, weights = env.shocks(params).nodes("exact", 0, None)

    def recursion(state):
        action = policy(state)
        after = jax.vmap(lambda shock: env.transition(state, action, shock, params))(nodes)
        discount = jax.vmap(lambda s: env.step_discount(state, s, params))(after)
        return env.reward(state, action, params) + weights @ (discount * jax.vmap(value)(after))

    states = at([0.4, 0.7, 1.0, 1.3, 2.1, 3.7, 8.0])
    expected = np.asarray(jax.jit(jax.vmap(value))(states))
    np.testing.assert_allclose(jax.jit(jax.vmap(recursion))(states), expected, rtol=2e-6)


def test_the_stated_tolerance_covers_a_finer_solution():
    env, params = make("two_point")
    m = np.exp(np.linspace(np.log(0.3), np.log(15), 2001))
    coarse = solve_with("endogenous_grid", env, params, size=100)
    shares = [np.asarray(jax.jit(jax.vmap(r.policy))(at(m))) for r in (coarse, solve(env, params))]
    assert 0 < np.max(np.abs(shares[0] - shares[1])) < coarse.tolerance
    assert solve(env, params).tolerance < coarse.tolerance


def test_one_percent_off():
    env, params = make()
    nodes, weights = env.shocks(params).nodes("exact", 0, None)

    def reported(state, factor):
        best = decide(env, params)(state)
        off = Decision(1 - factor * (1 - best.action))
        return residuals(
            decide(env, params),
            state,
            nodes,
            weights,
            env,
            params,
            report=lambda s, d, expected, p: env.euler_error(s, off, expected, p),
        )["euler"]

    for m, factor in ((0.5, 0.99), (2.0, 0.99), (2.0, 1.01)):  # at 0.5 the limit binds
        assert float(reported(at(m), factor)) == pytest.approx(1 / factor - 1, abs=5e-6)
    value = solve(env, params).value(at(1.0))
    loss = env.consumption_equivalent(value * 0.99 ** (1 - params.gamma), value, params)
    assert float(loss) == pytest.approx(0.01, rel=1e-9)


# -- the environment -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_incomes_average_one_and_discounts_average_what_is_said(calibration):
    env, params = make(calibration)
    nodes, weights = env.shocks(params).nodes("exact", 0, None)
    np.testing.assert_allclose(weights @ nodes, [1, 1], rtol=1e-12)
    state, action = at(1.0), jnp.array([0.3])
    after = jax.vmap(lambda shock: env.transition(state, action, shock, params))(nodes)
    discounts = jax.vmap(lambda s: env.step_discount(state, s, params))(after)
    assert float(weights @ discounts) == pytest.approx(float(env.effective_discount(state, action, params)), rel=1e-12)
    variance = weights @ (nodes - 1) ** 2
    expected = {"hark": (0.0099, 0.036), "two_point": (0, 0.25), "deaton": (0, 0.01), "carroll": (0.0099, 0.0149)}
    np.testing.assert_allclose(variance, expected[calibration], atol=1.5e-3)


def test_a_share_below_a_millionth_is_none():
    env, params = make(limit=-0.1)
    state = at(1.0)
    for share, kept in ((5e-7, 0.0), (2e-6, 2e-6)):
        action = jnp.array([share])
        assert float(env.slacks(state, Decision(action), params)["borrowing"]) == kept
        assert float(env.definitions(state, action, params)["assets"]) == pytest.approx(-0.1 + 1.1 * kept, abs=1e-15)


def test_nothing_left_to_consume_is_flagged():
    env, params = make("carroll")
    state = env.transition(at(1.0), jnp.zeros(1), jnp.array([1.0, 0.0]), params)
    assert float(state.m) == 0.0
    assert bool(env.floored(state, jnp.array([0.5]), params))
    assert np.isfinite(env.reward(state, jnp.array([0.5]), params))
    assert np.all(np.isfinite(env.observation(state, params)))
    assert not bool(env.floored(at(1.0), jnp.array([0.5]), params))


def test_the_answer_in_single_precision():
    env, params = make()
    wide = consumption(env, params, [0.5, 0.9, 2.0, 7.0])
    with jax.enable_x64(False):
        env, params = make()
        narrow = consumption(env, params, [0.5, 0.9, 2.0, 7.0])
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, wide, rtol=1e-6)


def test_the_variants_keep_the_contract():
    equimorph.check_environment(*make("deaton"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"transitory": "normale"}, "Did you mean 'normal'"),
        ({"permanent_points": 0}, "permanent_points = 0"),
        ({"gamma": 1.0}, "gamma = 1 is log utility"),
        ({"gamma": [2.0, 1.0]}, "gamma = 1 is log utility"),
        ({"beta": 0.99, "growth": 0.98}, "must be below 1, or no value is finite"),
        ({"beta": 0.99, "interest": 0.97}, "must be below 1, or the rich save"),
        ({"limit": -10.0}, "a debt at limit = -10 cannot be kept.*; raise limit"),
        ({"limit": 5.0}, "least assets at limit = 5 cannot be kept.*; lower limit"),
        ({"transitory": "two_point", "sd_transitory": 1.5}, "sd_transitory = 1.5 makes the lowest income -0.5"),
    ],
)
def test_parameters_without_an_answer_are_refused(overrides, message):
    with pytest.raises(UserError, match=message) as error:
        make(**overrides)
    assert "\n" not in str(error.value)


def test_learners_and_solvers_that_do_not_fit_are_refused():
    env, params = make("two_point")
    with pytest.raises(UserError, match="not affine in its expectation"):
        DEQN(expectation="all_in_one").check(env, params, 16, 8)
    with pytest.raises(UserError, match=r"'endogenous_grid' solves BufferStock-v0 only.*'closed_form'"):
        solve_with("endogenous_grid", *equimorph.make("BrockMirman-v0"))
