"""Price setting under logit demand against the numbers of Calvano et al. (2020), and small games by enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs import Decision
from equimorph.envs.economies.logit_pricing import best_response, deviation_profits, profit, shares
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("LogitPricing-v0", **overrides)


def start(env, params, seed=0):
    return env.initial_state(jax.random.key(seed), params)


def alike(env, price):
    return jnp.full((env.num_agents, 1), price)


def test_nash_and_monopoly_prices_and_profits(known):
    (env, params), (team, _) = make(), make(concept="cooperative")
    found = []
    for each in (env, team):
        state, reference = start(each, params), each.reference(params)
        action = reference.policy(state)
        np.testing.assert_allclose(each.reward(state, action, params), reference.value(state), rtol=1e-14)
        found.append((float(action[0, 0]), float(reference.value(state)[1])))
    assert [found[0][0], found[1][0], found[0][1], found[1][1]] == known("calvano.pN,pM,piN,piM")


def test_conditions_are_the_derivatives_of_profit():
    prices = jnp.array([1.3, 1.8, 2.1])
    env, params = make(num_firms=3)
    slopes = jax.jit(jax.jacobian(profit))(prices, params)
    own, joint = jnp.diagonal(slopes), slopes.sum(0)
    found = env.conditions(start(env, params), Decision(prices[:, None]), {}, params)["price"]
    np.testing.assert_allclose(found, -own / shares(prices, params), rtol=1e-12)
    team, _ = make(num_firms=3, concept="cooperative")
    found = team.conditions(start(team, params), Decision(prices[:, None]), {}, params)["price"]
    np.testing.assert_allclose(found, -joint / shares(prices, params), rtol=1e-12)


@pytest.mark.parametrize("concept", ["nash", "cooperative"])
def test_conditions_vanish_at_their_own_concepts_price_only(concept):
    env, params = make(concept=concept, memory=1)
    nash, monopoly = env.nash_price(params), env.monopoly_price(params)
    own, other = (nash, monopoly) if concept == "nash" else (monopoly, nash)
    size = lambda price: float(jnp.abs(env.conditions(None, Decision(alike(env, price)), {}, params)["price"]).max())  # noqa: E731
    assert size(own) < 1e-12
    assert size(1.01 * own) > 0.01
    assert size(other) > 0.1


@pytest.mark.parametrize(
    "overrides", [{"mu": 0.05}, {"mu": 2.0, "highest": 9.0}, {"outside": -5.0, "highest": 8.0}, {"num_firms": 6}]
)
def test_prices_solve_their_equations_at_other_parameters(overrides):
    env, params = make(**overrides)
    for price, owned in ((env.nash_price(params), 1), (env.monopoly_price(params), env.num_agents)):
        q = shares(alike(env, price)[:, 0], params)[0]
        assert float(price - params.cost - params.mu / (1 - owned * q)) == pytest.approx(0, abs=1e-11)


def test_the_best_deviation_from_monopoly():
    env, params = make()
    monopoly = float(env.monopoly_price(params))
    away = float(best_response(jnp.full(2, monopoly), params)[0])
    deviating = float(profit(jnp.array([away, monopoly]), params)[0])
    assert (away, deviating) == pytest.approx((1.66169, 0.41169), abs=5e-6)
    nash, collusive = (float(profit(jnp.full(2, p), params)[0]) for p in (env.nash_price(params), monopoly))
    assert (deviating - collusive) / (deviating - nash) == pytest.approx(0.393098, abs=5e-7)
    gains = env.exploitability(lambda _: alike(env, monopoly), params)
    np.testing.assert_allclose(gains, deviating - collusive, atol=1e-12)


def test_nobody_gains_at_nash_and_everybody_gains_elsewhere():
    env, params = make(num_firms=3)
    reference = env.reference(params)
    assert np.abs(env.exploitability(reference.policy, params)).max() < 1e-14
    off = env.exploitability(lambda state: 1.01 * reference.policy(state), params)
    assert np.all(off > 1e-6)
    # A grid of prices in place of Newton's method.
    prices = jnp.array([1.2, 1.6, 2.3])
    tried = jnp.linspace(1.0, 2.5, 30_001)
    best = jax.jit(deviation_profits)(prices, tried, params).max(axis=1)
    gains = env.exploitability(lambda _: prices[:, None], params)
    np.testing.assert_allclose(gains, best - profit(prices, params), atol=1e-8)


def test_the_grid_and_its_pure_equilibria():
    env, params = make(grid=15)
    grid = np.asarray(env.grid_prices(params))
    assert len(grid) == 15
    assert (grid[0], grid[-1]) == pytest.approx((1.4277, 1.9702), abs=5e-5)
    pairs = np.array(list(itertools.product(range(15), repeat=2)))
    payoff = np.asarray(profit(jnp.asarray(grid[pairs]), params)).reshape(15, 15, 2)
    nash = (payoff[..., 0] == payoff[..., 0].max(0)) & (payoff[..., 1] == payoff[..., 1].max(1)[:, None])
    symmetric = [i for i in range(15) if nash[i, i]]
    np.testing.assert_allclose(grid[symmetric], [1.4665, 1.5052], atol=5e-5)
    assert np.flatnonzero(env.pure_equilibria(params)).tolist() == symmetric
    gains_at = jax.jit(lambda i: env.exploitability(lambda _: jnp.full(2, i, jnp.int32), params))
    for index in range(15):
        gains = gains_at(index)
        np.testing.assert_allclose(gains, payoff[:, index, 0].max() - payoff[index, index, 0], atol=1e-15)
        assert bool(np.all(gains < 1e-15)) == (index in symmetric)
    team, _ = make(grid=15, concept="cooperative")
    best = team.reference(params).policy(None)
    joint = payoff.sum(-1)
    assert joint[tuple(best)] == joint.max()


def test_the_condition_on_a_grid_is_what_a_firm_could_gain():
    env, params = make(grid=15)
    team, _ = make(grid=15, concept="cooperative")
    for each, answers in ((env, [1, 2]), (team, [13])):
        one = lambda i, each=each: each.conditions(None, Decision(jnp.full(2, i)), {}, params)["price"].max()  # noqa: E731
        size = np.asarray(jax.jit(jax.vmap(one))(jnp.arange(15)))
        assert np.flatnonzero(size < 1e-12).tolist() == answers


def test_profit_gain_is_zero_at_nash_and_one_at_monopoly():
    env, params = make(memory=1)
    for price, gain in ((env.nash_price(params), 0), (env.monopoly_price(params), 1)):
        found = env.definitions(None, alike(env, price), params)
        assert float(found["profit_gain"]) == pytest.approx(gain, abs=1e-12)
    assert 0.5 < float(env.definitions(None, alike(env, 1.7), params)["profit_gain"]) < 1


def trigger(env, params, high, low):
    """Charge `high` as long as both did, else `low`: indices on the grid."""
    grid = env.grid_prices(params)
    return lambda state: jnp.where(jnp.all(jnp.isclose(state.price, grid[high])), high, low) * jnp.ones(2, jnp.int32)


@pytest.mark.parametrize(("beta", "sustained"), [(0.95, True), (0.2, False)])
def test_a_trigger_strategy_sustains_collusion_where_firms_are_patient(beta, sustained):
    env, params = make(calibration="calvano", beta=beta)
    grid = env.grid_prices(params)
    policy = trigger(env, params, 13, 1)
    gains = np.asarray(env.exploitability(policy, params))
    one = lambda a, b: float(profit(jnp.array([grid[a], grid[b]]), params)[0])  # noqa: E731
    away = max(one(i, 13) for i in range(15))
    # After (high, high) cheating earns the best deviation now and, with the punishment a Nash price, that for ever.
    gain = away + beta / (1 - beta) * one(1, 1) - one(13, 13) / (1 - beta)
    # From other prices nobody gains where he cannot bring (high, high) about alone.
    np.testing.assert_allclose(gains, max(gain, 0) / 225, atol=1e-12)
    assert (gain < 0) == sustained
    assert (gains.max() < 1e-12) == sustained


def test_undercutting_a_fixed_price_for_ever():
    env, params = make(calibration="calvano")
    grid = env.grid_prices(params)
    gains = env.exploitability(lambda _: jnp.array([14, 14]), params)
    best = max(float(profit(jnp.array([p, grid[14]]), params)[0]) for p in grid)
    kept = float(profit(jnp.full(2, grid[14]), params)[0])
    np.testing.assert_allclose(gains, (best - kept) / (1 - 0.95), rtol=1e-10)


def test_memory_and_grid_decide_what_is_known():
    for overrides, known in (({}, True), ({"grid": 15}, False), ({"memory": 1}, False)):
        env, params = make(**overrides)
        assert (env.reference(params) is not None) == known
    env, params = make(memory=1, concept="cooperative")
    state = start(env, params)
    assert float(env.reference(params).value(state)[0]) == pytest.approx(0.3374904595 / 0.05, abs=1e-7)
    assert env.exploitability(env.reference(params).policy, params) is None
    assert float(env.discount_factor(params)) == pytest.approx(0.95)
    assert make()[0].discount_factor(params) == 1
    large, params = make(calibration="calvano", num_firms=4)
    assert large.exploitability(lambda _: jnp.zeros(4, jnp.int32), params) is None


def test_firms_see_their_own_price_first():
    env, params = make(num_firms=3, memory=1)
    state = start(env, params).replace(price=jnp.array([1.0, 1.75, 2.5]))
    np.testing.assert_allclose(env.observation(state, params), [[-1, 0, 1], [0, 1, -1], [1, -1, 0]], atol=1e-15)
    _, after, reward, terminated, info = env.step_env(
        jax.random.key(0), state, jnp.array([[1.2], [1.4], [3.0]]), params
    )
    np.testing.assert_allclose(after.price, [1.2, 1.4, 2.5])
    assert info["action_clipped"]
    assert not terminated
    np.testing.assert_allclose(reward, profit(after.price, params))
    once, params = make()
    assert once.step_env(jax.random.key(0), start(once, params), alike(once, 1.5), params)[3]
    assert not np.any(once.observation(start(once, params), params))


def test_a_team_earns_the_mean():
    env, params = make(concept="cooperative")
    step = jax.jit(env.step_env)
    _, _, reward, _, info = step(jax.random.key(0), start(env, params), jnp.array([[1.2], [2.0]]), params)
    np.testing.assert_allclose(reward, info["utility"].mean())
    assert np.ptp(info["utility"]) > 0.1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_firms": 1}, "num_firms = 1 must be at least 2"),
        ({"grid": 1}, "grid = 1 must be at least 2"),
        ({"memory": 2}, "memory = 2 must be 0"),
        ({"highest": 1.9}, r"the monopoly price 1.92498 must lie within \(lowest, highest\) = \(1, 1.9\)"),
        ({"mu": 1e-6}, "mu = 1e-06 is too small"),
        ({"grid": 15, "lowest": 1.2}, "lowest = 1.2 does not apply with a grid"),
        ({"grid": 15, "highest": 3.0}, "highest = 3 does not apply with a grid"),
        ({"overshoot": 0.5}, "overshoot = 0.5 does not apply without a grid"),
        ({"beta": 0.5}, "beta = 0.5 does not apply with memory=0"),
        ({"memory": 1, "grid": 2.5}, "option grid must be a whole number or None, got 2.5"),
        ({"concept": "planner"}, "unknown concept of LogitPricing-v0 'planner'"),
    ],
)
def test_mistakes_are_named(overrides, message):
    with pytest.raises(UserError, match=message):
        make(**overrides)
