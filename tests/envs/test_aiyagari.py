"""Aiyagari's economy: its chain, its equilibrium against an independent solver's, its two cross-sections."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import MAPPO, REINFORCE
from equimorph.agents.agent import check_pair
from equimorph.agents.classical import solve
from equimorph.agents.classical.aiyagari import equilibrium, household_policy, model_of
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.envs.economies._cross_section import gini, move
from equimorph.envs.economies.aiyagari import rouwenhorst, stationary, tauchen
from equimorph.errors import UserError

IMPATIENCE = 1 / 0.96 - 1


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def general():
    """The stationary equilibrium of the default calibration, by the classical solver."""
    return equilibrium(*make(calibration="general"))


def make(**overrides):
    return equimorph.make("Aiyagari-v0", **overrides)


def start(env, params):
    return jax.jit(env.initial_state)(jax.random.key(0), params)


def household(env, params, assets, own):
    return start(env, params).replace(a=jnp.array([assets]), own=jnp.array([own]))


def rule(env, params):
    """Some policy that depends on all that a household sees."""

    def decide(state):
        seen = env.observation(state, params)
        return Decision(jax.nn.sigmoid(1.5 + 0.3 * seen @ jnp.arange(1.0, seen.shape[-1] + 1))[..., None])

    return decide


def evaluated(env, params, states, decide, report=None):
    """Conditions or errors at each state, by the shocks' exact rule."""

    def one(state):
        nodes, weights = env.shocks(params).nodes("exact", 0, state)
        return residuals(decide, state, nodes, weights, env, params, report=report)

    return jax.jit(jax.vmap(one))(states)


# -- the chain ---------------------------------------------------------------------------------------------------------


def moments(x, matrix):
    pi = np.asarray(jax.jit(stationary)(jnp.asarray(matrix)))
    mean = pi @ x
    variance = pi @ (x - mean) ** 2
    return mean, np.sqrt(variance), (pi * (x - mean)) @ matrix @ (x - mean) / variance


@pytest.mark.parametrize(("size", "rho"), [(2, 0.5), (7, -0.3)])
def test_rouwenhorst_keeps_spread_and_autocorrelation(size, rho):
    x, matrix = jax.jit(rouwenhorst, static_argnums=2)(rho, 0.4, size)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-14)
    np.testing.assert_allclose(moments(np.asarray(x), np.asarray(matrix)), (0, 0.4, rho), atol=1e-12)


def test_tauchen_comes_near_them_with_many_points():
    x, matrix = jax.jit(tauchen, static_argnums=2)(0.6, 0.4, 101)
    np.testing.assert_allclose(moments(np.asarray(x), np.asarray(matrix)), (0, 0.4, 0.6), atol=5e-3)


@pytest.mark.parametrize("overrides", [{}, {"discretisation": "rouwenhorst", "rho": 0.9}, {"labor_states": 4}])
def test_mean_labour_is_one(overrides):
    env, params = make(**overrides)
    pi = np.asarray(env.shares(params)[1][0])
    np.testing.assert_allclose(pi @ env.chain(params)[1], pi, atol=1e-14)
    assert float(pi @ env.efficiency(params)) == pytest.approx(1, abs=1e-14)


# -- the known answers -------------------------------------------------------------------------------------------------


def test_equilibrium(known, general):
    assert 100 * general.r == known("aiyagari.r_pct(sig=.2,rho=.6,mu=3,Tauchen7,3sd)")
    assert general.capital == known("aiyagari.K")
    assert general.w == pytest.approx(1.19413, abs=2e-5)
    answer = general.household
    assert float(gini(jnp.tile(answer.grid, 7), jnp.ravel(general.mass))) == pytest.approx(0.390, abs=5e-4)
    assert general.mass[answer.saved < 1e-9].sum() == pytest.approx(0.0034, abs=5e-5)
    np.testing.assert_allclose(answer.consumption[:, 0], known("aiyagari.c(a=0)").expected, atol=2e-4)
    _, params = make()
    assert (float(params.r), float(params.w)) == pytest.approx((general.r, general.w), abs=1e-5)


def test_another_discretisation_has_another_equilibrium():
    found = equilibrium(*make(calibration="general", discretisation="rouwenhorst"), points=500)
    assert 100 * found.r == pytest.approx(3.9127, abs=0.003)


def test_policy_at_given_prices(known):
    env, params = make()
    policy = solve(env, params).policy

    state = household(env, params, 0.0, 0)

    @jax.jit
    @jax.vmap
    def consumption(assets, own):
        here = state.replace(a=assets[None], own=own[None])
        return env.consumption(here, policy(here), params)[0]

    found = consumption(jnp.repeat(jnp.array([0.0, 5.0]), 7), jnp.tile(jnp.arange(7), 2))
    assert list(map(float, found[:7])) == known("aiyagari.c(a=0)")
    assert (float(found[7]), float(found[13])) == pytest.approx((1.33968, 1.48188), abs=5e-5)


def paths(env, params, policy, number, length):
    def step(state, key):
        return env.step_env(key, state, policy(state), params)[1], state

    def one(key):
        return jax.lax.scan(step, env.reset_env(key, params)[1], jax.random.split(key, length))[1]

    states = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), number))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states)


def test_the_answer_scores_as_the_answer():
    env, params = make()
    answer = solve(env, params)
    states = paths(env, params, answer.policy, 20, 100)

    def decide(state):
        return Decision(answer.policy(state))

    def both(*args):
        return env.euler_error(*args) | env.conditions(*args)

    found = evaluated(env, params, states, decide, both)
    errors = np.abs(found["euler"])
    assert errors.mean() < 1e-6
    assert errors.max() < 2e-4
    assert np.abs(found["borrowing"]).max() < 2e-4

    def recursion(state):
        nodes, weights = env.shocks(params).nodes("exact", 0, state)
        after = jax.vmap(lambda shock: answer.value(env.transition(state, answer.policy(state), shock, params)))(nodes)
        return env.reward(state, answer.policy(state), params) + params.beta * weights @ after

    recursion, value = (jax.jit(jax.vmap(f))(states) for f in (recursion, answer.value))
    np.testing.assert_allclose(recursion, value, atol=2e-4)


def test_consuming_one_percent_more_today_is_an_error_of_at_least_that():
    """Less is saved, so tomorrow's consumption falls too: the error is 1 % and what that adds."""
    env, params = make()
    policy = solve(env, params).policy
    state = household(env, params, 5.0, 3)
    nodes, weights = env.shocks(params).nodes("exact", 0, state)

    @jax.jit
    def error(factor):
        c = factor * env.consumption(state, policy(state), params)
        decision = Decision(1 - c / env.available(state, params))
        after = jax.vmap(lambda shock: env.transition(state, decision.action, shock, params))(nodes)
        h = jax.vmap(
            lambda s: env.expectation_terms(state, decision, s, Decision(policy(s)), params, next_policy=None)["saving"]
        )(after)
        return env.euler_error(state, decision, {"saving": weights @ h}, params)["euler"]

    assert abs(error(1.0)) < 1e-5
    assert -0.0125 < error(1.01) < 1 / 1.01 - 1


@pytest.mark.extended
def test_where_the_limit_binds_the_household_would_consume_more():
    env, params = make()
    policy = solve(env, params).policy
    state = household(env, params, 0.0, 0)
    states = state.replace(a=jnp.array([[0.0], [20.0]]), own=jnp.array([[0], [3]]))
    states = states.replace(
        **{name: jnp.stack([getattr(state, name)] * 2) for name in ("time", "mass", "capital", "z")}
    )

    def report(*args):
        wanted = (params.beta * args[2]["saving"]) ** (-1 / params.mu)
        return env.euler_error(*args) | env.conditions(*args) | {"wanted": wanted}

    found = evaluated(env, params, states, lambda state: Decision(policy(state)), report)
    assert float(policy(state)[0]) == 0
    assert float(found["wanted"][0]) > 1.02 * 0.64079
    assert abs(float(found["borrowing"][0])) < 1e-9
    assert abs(float(found["euler"][0])) < 1e-12
    # To save when poor is as wrong as to consume everything when rich.
    wrong = evaluated(env, params, states, lambda state: Decision(jnp.where(state.a > 0, 0.0, 0.1)), env.conditions)
    assert wrong["borrowing"][0] > 0.01
    assert wrong["borrowing"][1] < -0.1


@pytest.mark.parametrize("mu", [1.0, 3.0])
def test_a_percent_of_consumption_for_ever_is_a_loss_of_a_percent(mu):
    env, params = make(mu=mu)
    scale = (1 - params.beta) * (1 - mu)
    value = 3.7 if mu == 3 else 8.0
    less = value + np.log(0.99) / (1 - params.beta) if mu == 1 else (0.99 ** (1 - mu) * (1 + scale * value) - 1) / scale
    assert float(env.consumption_equivalent(less, value, params)) == pytest.approx(0.01, abs=1e-12)


def test_assets_without_bound_are_refused():
    env, params = make(r=IMPATIENCE + 1e-6)
    with pytest.raises(UserError, match=r"assets grow without bound; the interest rate must be below 0\.0416667"):
        solve(env, params)


# -- the cross-section -------------------------------------------------------------------------------------------------


def test_every_household_meets_its_own_chances():
    """The exact rule's common number gives each household the row of its own state; samples are independent."""
    env, params = make(calibration="general", num_households=7)
    state = start(env, params).replace(own=jnp.arange(7))
    law, matrix = env.shocks(params), np.asarray(env.chain(params)[1])
    nodes, weights = law.nodes("exact", 0, state)
    assert nodes.shape == (43, 8)
    after = np.asarray(jax.vmap(lambda shock: law.next_own(state, 0, shock))(nodes))
    found = np.stack([np.asarray(weights) @ (after == own) for own in range(7)], axis=1)
    np.testing.assert_allclose(found, matrix, atol=1e-14)
    draws = law.draws(jax.random.key(1), 40_000, state)
    drawn = np.asarray(jax.vmap(lambda shock: law.next_own(state, 0, shock))(draws))
    np.testing.assert_allclose(np.stack([(drawn == own).mean(axis=0) for own in range(7)], axis=1), matrix, atol=0.01)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(7), atol=0.03)


@pytest.mark.extended
def test_agents_and_histogram_are_one_economy():
    """The same cross-section has the same conditions, by 43 common numbers or by the chances of own states."""
    (sample, params), (histogram, _) = (
        make(calibration="general", num_households=70),
        make(calibration="histogram", grid_size=10),
    )
    state = jax.tree.map(lambda x: x[None], start(sample, params))
    found = [evaluated(env, params, state, rule(env, params))["borrowing"] for env in (sample, histogram)]
    assert np.std(found[0]) > 0.01
    # The histogram's next mean is that of a grid of 10 points on which lotteries keep the mean.
    np.testing.assert_allclose(found[0], found[1], atol=1e-12)


def test_lotteries_keep_people_and_means():
    grid = jnp.array([0.0, 1.0, 3.0, 7.0])
    mass = jnp.array([0.1, 0.2, 0.0, 0.1, 0.3, 0.1, 0.1, 0.1])
    saved = jnp.array([0.0, 0.25, 2.0, 6.0, 0.5, 1.0, 4.0, 7.0])
    own = jnp.array([[0.9, 0.1], [0.4, 0.6]])
    moved = np.asarray(move(mass, saved, grid, own)).reshape(2, 4)
    # By hand: of own state 0, .1 + .2 x .75 to the point 0, .2 x .25 to 1, .1 x .25 to 3, .1 x .75 to 7.
    first, second = np.array([0.25, 0.05, 0.025, 0.075]), np.array([0.15, 0.25, 0.075, 0.125])
    np.testing.assert_allclose(moved, [0.9 * first + 0.4 * second, 0.1 * first + 0.6 * second], atol=1e-14)
    assert moved.sum() == pytest.approx(1)
    assert moved.sum(axis=0) @ grid == pytest.approx(float(mass @ saved))


@pytest.mark.extended
def test_the_histogram_stays_in_equilibrium(general):
    """From the solver's stationary distribution, at capital's own prices and on a coarser grid, capital stays."""
    env, params = make(calibration="histogram", grid_size=100)
    policy = solve(env, params).policy
    grid = np.asarray(env.grid(params))
    low = np.clip(np.searchsorted(grid, general.household.grid, side="right") - 1, 0, 98)
    up = (general.household.grid - grid[low]) / np.diff(grid)[low]
    mass = np.zeros((7, 100))
    for own in range(7):
        np.add.at(mass[own], low, general.mass[own] * (1 - up))
        np.add.at(mass[own], low + 1, general.mass[own] * up)
    state = start(env, params)
    state = state.replace(mass=jnp.asarray(mass.ravel()), capital=jnp.asarray(general.capital))

    def step(state, key):
        _, after, _, _, info = env.step_env(key, state, policy(state), params)
        return after, (after.capital, after.mass.sum(), info["off_grid"])

    _, (capital, total, off) = jax.lax.scan(step, state, jax.random.split(jax.random.key(0), 30))
    np.testing.assert_allclose(capital, general.capital, rtol=0.005)
    np.testing.assert_allclose(total, 1, atol=1e-12)
    assert not np.any(off)
    assert np.all(env.successor(state, state, params) == -1)


def test_nobody_moves_prices():
    env, params = make(calibration="general", num_households=4)
    state = start(env, params)

    def next_rewards(action):
        after = env.transition(state, action, jnp.full(5, 0.4), params)
        return env.reward(after, jnp.full((4, 1), 0.7), params)

    slopes = np.asarray(jax.jit(jax.jacobian(next_rewards))(jnp.full((4, 1), 0.8)))[..., 0]
    np.testing.assert_allclose(slopes, np.diag(np.diag(slopes)), atol=1e-15)
    assert np.all(np.diag(slopes) > 0)

    # Yet prices follow the mean of what all save.
    @jax.jit
    def after(share):
        after = env.transition(state, jnp.full((4, 1), share), jnp.full(5, 0.4), params)
        return after.capital, after.a.mean(), env.budget(after, params).gross_return

    rich, poor = after(0.9), after(0.1)
    assert float(rich[0]) == pytest.approx(float(rich[1]))
    assert float(rich[2]) < float(poor[2])


def test_prices_and_inequality_are_reported():
    env, params = make(calibration="general", num_households=5)
    state = start(env, params).replace(a=jnp.arange(5.0), capital=jnp.array(2.0))
    found = jax.jit(env.definitions)(state, jnp.full((5, 1), 0.5), params)
    assert float(found["gini"]) == pytest.approx(0.4)  # of 0, 1, 2, 3, 4
    assert float(found["interest_rate"]) == pytest.approx(0.36 * 2**-0.64 - 0.08)
    assert float(found["wage"]) == pytest.approx(0.64 * 2**0.36)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"equilibrium": "genral"}, "Did you mean 'general'"),
        ({"discretisation": "tauchn"}, "Did you mean 'tauchen'"),
        ({"households": "histogam", "equilibrium": "general"}, "Did you mean 'histogram'"),
        ({"num_households": 5}, "num_households=5 does not apply to equilibrium='partial'"),
        ({"households": "histogram"}, "does not apply to equilibrium='partial'"),
        ({"calibration": "general", "grid_size": 50}, "grid_size = 50 applies to households='histogram'"),
        ({"calibration": "histogram", "num_households": 5}, "num_households = 5 applies to households='agents'"),
        ({"calibration": "general", "num_households": 1}, "num_households = 1 must be at least 2"),
        ({"calibration": "general", "concept": "planner"}, "does not go with equilibrium='general'"),
        ({"calibration": "general", "r": 0.02}, "r follows from the capital"),
        ({"labor_states": 1}, "labor_states = 1 must be at least 2"),
        ({"amin": -20.0}, "leaves nothing to consume"),
        ({"calibration": "general", "amin": -20.0}, "leaves nothing to consume"),
        ({"calibration": "histogram", "amax": 1e-6}, "amax = 1e-06 must exceed the mean assets under full insurance"),
        ({"amin": 1.0}, "parameter amin"),
    ],
)
def test_what_does_not_go_together(overrides, message):
    with pytest.raises(UserError, match=message) as error:
        make(**overrides)
    assert "\n" not in str(error.value)


def test_concepts_follow_the_variant():
    assert make()[0].concept == "planner"
    assert make(calibration="general")[0].concept == "competitive"


def test_debt_up_to_the_limit():
    env, params = make(amin=-1.0)
    state = household(env, params, -1.0, 0)
    nodes = env.shocks(params).nodes("exact", 0, state)[0]

    @jax.jit
    def acted(share):
        saved = env.transition(state, share, nodes[0], params).a[0]
        return saved, env.available(state, params)[0], env.floored(state, share, params)

    for share, floored in ((0.0, False), (0.5, False), (1.0, True)):
        saved, available, found = acted(jnp.array([share]))
        assert float(saved) == pytest.approx(-1 + share * float(available))
        assert bool(found) == floored
    answer = household_policy(model_of(env, params, 300), float(params.r), float(params.w), None)
    assert answer.saved.min() == pytest.approx(-1)
    assert float(solve(env, params).policy(state)[0]) == 0


@pytest.mark.parametrize("learner", [MAPPO, REINFORCE])
def test_rewards_are_not_learnt_from_where_nobody_is_followed(learner):
    env, params = make(calibration="histogram")
    with pytest.raises(UserError, match=r"points of a histogram.*households='agents', or agent 'deqn'"):
        check_pair(learner(), env, params, 8, 8)
    check_pair(learner(), *make(calibration="general"), 8, 8)
