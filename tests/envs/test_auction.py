"""Auctions against their closed forms: bids, revenue, surplus, and what deviations gain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.envs.economies.auction import State
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("Auction-v0", **overrides)


def states(env, params, count):
    return jax.vmap(env.initial_state, (0, None))(jax.random.split(jax.random.key(0), count), params)


def residual(env, params, policy, state):
    nodes, weights = env.shocks(params).nodes("exact", 1, state)
    return residuals(lambda s: Decision(policy(s)), state, nodes, weights, env, params)["bid"]


@pytest.mark.parametrize("bidders", [2, 5])
def test_first_price_payoff_and_revenue(bidders):
    env, params = make(num_bidders=bidders)
    reference, drawn = env.reference(params), states(env, params, 200_000)
    values = jax.vmap(reference.value)(drawn)
    # The standard error of each is below 6e-4.
    np.testing.assert_allclose(values.mean(0), 1 / (bidders * (bidders + 1)), atol=2e-3)
    found = jax.vmap(lambda s: env.definitions(s, reference.policy(s), params))(drawn)
    assert float(found["revenue"].mean()) == pytest.approx((bidders - 1) / (bidders + 1), abs=2e-3)
    assert float(found["efficiency"].min()) == 1.0
    np.testing.assert_allclose(found["surplus"], found["revenue"] + values.sum(1), atol=1e-12)


@pytest.mark.parametrize("bidders", [2, 5])
def test_the_condition_vanishes_at_the_equilibrium_strategy_only(bidders):
    env, params = make(num_bidders=bidders)
    state, reference = states(env, params, 3), env.reference(params)
    state = jax.tree.map(lambda leaf: leaf[0], state)
    assert np.abs(residual(env, params, reference.policy, state)).max() < 1e-14
    # Shading by s instead: ((N - 1) (1 - s) - s) v, which is (N - 1 - N s) v.
    for share in (0.4, 0.99 * (bidders - 1) / bidders):
        found = residual(env, params, lambda s, share=share: share * s.value[:, None], state)
        np.testing.assert_allclose(found, (bidders - 1 - bidders * share) * state.value, atol=1e-14)


def test_the_condition_is_the_derivative_of_the_interim_payoff():
    """Against rivals who bid b(x) = x - x^2 / 3, bidding b(x) at value v earns (v - b(x)) x^(N-1)."""
    env, params = make(num_bidders=3)
    strategy = lambda x: x - x**2 / 3  # noqa: E731
    state = jax.tree.map(lambda leaf: leaf[0], states(env, params, 1))
    found = residual(env, params, lambda s: strategy(s.value)[:, None], state)
    interim = jax.vmap(lambda v: jax.grad(lambda x: (v - strategy(x)) * x**2)(v))(state.value)
    np.testing.assert_allclose(found * state.value, interim, rtol=1e-12)


def test_nobody_gains_from_another_bid_in_equilibrium():
    for bidders in (2, 4):
        env, params = make(num_bidders=bidders)
        gains = env.exploitability(env.reference(params).policy, params)
        assert gains.shape == (bidders,)
        assert float(np.max(gains)) < 1e-12
    env, params = make(format="double")
    gains = env.exploitability(env.reference(params).policy, params)
    assert float(np.max(gains)) < 2e-6


def test_the_gain_from_shading_too_little_or_too_much():
    env, params = make()
    # Truthful bids earn nothing; v / 2 against a uniform bid earns v^2 / 4, 1/12 on average.
    np.testing.assert_allclose(env.exploitability(lambda s: s.value[:, None], params), 1 / 12, atol=2e-6)
    # Rivals at .4 v: the best bid is v / 2 up to .4, worth v^2 / 1.6, then .4, worth v - .4; kept is .6 v^2.
    low, cut = 0.4, 0.8
    gain = (1 / 1.6 - 0.6) * cut**3 / 3 + (1 - cut**2) / 2 - low * (1 - cut) - 0.6 * (1 - cut**3) / 3
    np.testing.assert_allclose(env.exploitability(lambda s: low * s.value[:, None], params), gain, atol=2e-6)


def test_each_bidder_is_measured_against_the_others():
    """One bids v / 2, the other its value: only the truthful one gains."""
    env, params = make()
    gains = env.exploitability(lambda s: jnp.stack([s.value[0] / 2, s.value[1]])[:, None], params)
    # Against bids on (0, 1/2) with density 2: at v the bid v / 2 wins with v and earns v^2 / 2, truth earns 0.
    assert float(gains[1]) == pytest.approx(1 / 6, abs=2e-6)
    assert float(gains[0]) == pytest.approx(0, abs=2e-6)


def test_the_linear_double_auction_realises_its_share_of_the_surplus(known):
    env, params = make(format="double")
    # They trade where v - c >= 1/4: on a grid of midpoints the edge of that region costs its spacing.
    points = (jnp.arange(1600) + 0.5) / 1600
    value = jnp.stack(jnp.meshgrid(points, points, indexing="ij"), -1).reshape(-1, 2)
    found = jax.jit(jax.vmap(lambda v: outcome(env, params, v)))(value)
    surplus, possible, earned = (np.asarray(x).mean(0) for x in found)
    assert surplus == pytest.approx(0.140625, abs=1e-4)
    assert possible == pytest.approx(1 / 6, abs=1e-6)
    np.testing.assert_allclose(earned, 9 / 128, atol=1e-4)
    assert known("double_auction_CS.surplus") == 9 / 64


def outcome(env, params, value):
    state = State(jnp.int32(0), value, jnp.zeros(2))
    action = env.reference(params).policy(state)
    found = env.definitions(state, action, params)
    return found["surplus"], found["possible_surplus"], env.reward(state, action, params)


def test_trade_at_the_middle_when_the_bid_covers_the_ask():
    env, params = make(format="double")
    state = State(jnp.int32(0), jnp.array([0.9, 0.2]), jnp.zeros(2))
    for bids, gains in (([0.6, 0.4], [0.4, 0.3]), ([0.5, 0.5], [0.4, 0.3]), ([0.4, 0.6], [0.0, 0.0])):
        _, after, reward, terminated, _ = env.step_env(jax.random.key(0), state, jnp.array(bids)[:, None], params)
        np.testing.assert_allclose(reward, gains, atol=1e-15)
        np.testing.assert_allclose(after.bid, bids)
        assert terminated


def test_a_bargainer_who_tells_the_truth_gains_by_shading():
    env, params = make(format="double")
    gains = env.exploitability(lambda s: s.value[:, None], params)
    # Against asks uniform on (0, 1): b = 2 v / 3 earns v^2 / 3, the truth v^2 / 4: 1/36 on average, either side.
    np.testing.assert_allclose(gains, 1 / 36, atol=2e-6)


def test_equal_bids_share_by_lot():
    env, params = make(num_bidders=3)
    state = State(jnp.int32(0), jnp.array([0.9, 0.8, 0.7]), jnp.zeros(3))
    reward = env.reward(state, jnp.array([[0.5], [0.5], [0.1]]), params)
    np.testing.assert_allclose(reward, [0.2, 0.15, 0.0], atol=1e-15)


def test_what_each_format_offers():
    (first, params), (double, _) = make(), make(format="double")
    assert first.name == double.name == "Auction-v0"
    assert "conditions" in first.capabilities
    assert not {"conditions", "differentiable"} & double.capabilities
    assert float(first.discount_factor(params)) == 1
    np.testing.assert_allclose(
        double.observation(State(0, jnp.array([0.5, 0.5]), jnp.zeros(2)), params), [[0, 1], [0, -1]]
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"format": "dutch"}, "unknown format of Auction-v0 'dutch'"),
        ({"num_bidders": 1}, "num_bidders = 1 must be at least 2"),
        ({"format": "double", "num_bidders": 3}, "format='double' has 2"),
    ],
)
def test_mistakes_are_named(overrides, message):
    with pytest.raises(UserError, match=message):
        make(**overrides)
