"""Overlapping generations against the known saved shares and an independent solver's averages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.deqn import residuals
from equimorph.agents.estimators import generalised_advantage
from equimorph.envs import Decision
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("OLG-v0", **overrides)


def scaled(env, params, factor):
    """The policy that saves `factor` times the known shares."""
    return lambda state: factor * env.reference(params).policy(state)


def errors_in_wide_states(policy, env, params, number=3):
    """Conditions and Euler errors, `[2, number, ...]`, where capital is a twentieth to twenty times the steady state's.

    These states lie far off those that an economy comes to.
    """

    def one(key):
        key_state, key_spread = jax.random.split(key)
        state = env.reset_env(key_state, params)[1]
        state = state.replace(k=state.k * jnp.exp(jax.random.uniform(key_spread, state.k.shape, float, -3.0, 3.0)))
        nodes, weights = env.shocks(params).nodes("exact", 1, state)

        def decide(s):
            return Decision(policy(s))

        reports = (None, env.euler_error)
        return jnp.stack([residuals(decide, state, nodes, weights, env, params, r)["euler"] for r in reports])

    return jax.jit(jax.vmap(one, out_axes=1))(jax.random.split(jax.random.key(0), number))


def test_saved_shares_by_age(known):
    env, params = make()
    action = env.reference(params).policy(env.steady_state(params)[0])
    assert list(np.asarray(action[:-1, 0])) == known("olg6.beta_h")
    assert float(action[-1, 0]) == 0
    # Two ages: b / (1 + b), Diamond's model with log utility.
    pair, params = make(ages=2)
    assert float(pair.reference(params).policy(None)[0, 0]) == pytest.approx(0.7 / 1.7, abs=1e-15)


@pytest.mark.parametrize(
    "overrides",
    [{}, {"households": 3}, {"ages": 9, "beta": 0.9, "delta_low": 0.1}, {"outputs": "levels", "households": 2}],
)
def test_known_shares_have_no_euler_error_in_any_state(overrides):
    env, params = make(**overrides)
    errors = errors_in_wide_states(scaled(env, params, 1.0), env, params)
    assert errors.shape == (2, 3, env.num_agents - env.households)
    assert float(jnp.abs(errors).max()) < 1e-12


def test_euler_error_of_other_shares():
    """E[R'/c'] = 1 / ((1 - s') k'), whatever the returns: the error is (1 - s') s / (b (1 - s)) - 1."""
    env, params = make()
    shares = jnp.array([0.3, 0.8, 0.5, 0.61, 0.2, 0.9])
    after = jnp.append(shares[1:-1], 0.0)
    expected = (1 - after) * shares[:-1] / (0.7 * (1 - shares[:-1])) - 1
    conditions, errors = errors_in_wide_states(lambda _: shares[:, None], env, params)
    np.testing.assert_allclose(errors, jnp.broadcast_to(expected, errors.shape), atol=1e-12)
    np.testing.assert_allclose(conditions, 1 / (1 + errors) - 1, atol=1e-12)


def test_averages_of_a_long_simulation(known):
    env, params = make()
    action = env.reference(params).policy(None)

    def step(state, key):
        after = env.step_env(key, state, action, params)[1]
        return after, (state.k, env.reward(state, action, params))

    def path(key):
        start = env.reset_env(key, params)[1]
        return jax.lax.scan(step, start, jax.random.split(key, 800))[1]

    k, utility = (np.asarray(x)[:, 50:] for x in jax.jit(jax.vmap(path))(jax.random.split(jax.random.key(0), 1024)))
    capital = k.sum(axis=-1)
    assert capital.mean() == known("olg6.meanK")
    assert capital.std() == pytest.approx(0.0989, abs=0.0005)
    assert capital.min() == pytest.approx(0.546, abs=0.002)
    assert capital.max() == pytest.approx(0.930, abs=0.004)
    np.testing.assert_allclose(k.mean((0, 1)), [0, 0.41556, 0.18220, 0.07467, 0.02733, 0.00757], atol=6e-4)
    lives = sum(0.7**h * utility[:, h : utility.shape[1] - 5 + h, h] for h in range(6))
    assert lives.mean() == known("olg6.newborn_utility")


@pytest.mark.parametrize(
    ("factor", "regret", "outputs"),
    [(0.9, 0.0588, "levels"), (0.95, 0.0150, "rates"), (1.05, 0.0157, "rates"), (1.0, 0.0, "rates")],
)
def test_what_a_household_would_gain_by_the_known_shares(factor, regret, outputs):
    env, params = make(outputs=outputs)
    gains = jax.jit(lambda: env.exploitability(scaled(env, params, factor), params))()
    assert float(gains[0]) == pytest.approx(regret, abs=5e-5)
    assert float(gains[-1]) == 0
    assert bool(jnp.all(gains[:-1] >= gains[1:]))


def test_the_gain_is_what_a_deviator_earns_more():
    """One household of 400 of its age changes to the known shares; the rest save .8 of them, more when rich."""
    env, params = make(ages=3, households=400, spread=1e-9, delta_high=0.5 + 1e-9)
    known_shares = env.reference(params).policy(None)

    def policy(state):
        return known_shares * (0.8 + 0.1 * jnp.tanh(state.k / state.k.mean() - 1))[:, None]

    @jax.jit
    def life(deviates):
        state, total = env.steady_state(params)[0], 0.0
        for age in range(3):
            action = policy(state)
            slot = age * 400
            action = jnp.where(deviates & (jnp.arange(1200) == slot)[:, None], known_shares, action)
            total += 0.7**age * env.reward(state, action, params)[slot]
            state = env.transition(state, action, jnp.array([1.0, 0.5]), params)
        return total

    gain = float(env.exploitability(policy, params)[0])
    assert gain > 0.01
    assert float(life(True) - life(False)) == pytest.approx(gain, rel=0.01)


def test_amounts_are_the_same_economy():
    """What a share or its amount leads to is one; an amount is in units of what its age saves in the steady state."""
    (rates, params), (levels, _) = make(households=2), make(households=2, outputs="levels")
    key = jax.random.key(1)
    state = rates.reset_env(key, params)[1]
    share = jax.random.uniform(key, (12, 1), minval=0.2, maxval=0.7)
    steady = np.asarray(rates.steady_state(params)[0].k)
    saved = np.asarray(share[:-2, 0] * rates.income(state, params)[:-2])
    amount = jnp.asarray(np.append(saved / steady[2:], [0.4, 2.0]))[:, None]  # the last age's have no effect
    by_rates, by_levels = (env.step_env(key, state, a, params) for env, a in ((rates, share), (levels, amount)))
    for left, right in zip(jax.tree.leaves(by_rates), jax.tree.leaves(by_levels), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)
    np.testing.assert_allclose(by_levels[1].k[2:], saved, rtol=1e-12)
    decision = levels.steady_state(params)[1]
    np.testing.assert_array_equal(decision.action[:, 0], [1] * 10 + [0] * 2)
    assert float(levels.centre(params)[0]) == 1


def test_amounts_beyond_income():
    """Consumption stays at its floor and no longer tells an Euler equation where to go: the budget's condition does."""
    env, params = make(outputs="levels")
    state, decision = env.steady_state(params)
    planned = jnp.array([1.25, 1.0, 0.5, 0.5, 0.5, 0.0])
    income = env.income(state, params)
    action = (planned * income / jnp.append(state.k[1:], 1.0))[:, None]
    expected = {"saving": jnp.ones(5)}

    def conditions(action):
        return env.conditions(state, Decision(action), expected, params)

    np.testing.assert_allclose(conditions(action)["budget"], [0.25, 0, 0, 0, 0], atol=1e-12)
    slopes = jax.jacobian(conditions)(action)
    assert float(jnp.abs(slopes["euler"][0]).max()) == 0
    assert float(slopes["budget"][0, 0, 0]) == pytest.approx(float(state.k[1] / income[0]), rel=1e-12)
    after, info = env.step_env(jax.random.key(0), state, action, params)[1::3]
    assert float(after.k[1]) == pytest.approx(float(income[0]), rel=1e-12)
    assert bool(info["floored"])
    assert not bool(env.floored(state, decision.action, params))


def test_credit_follows_the_person():
    """With no critic and lambda = 1 an advantage is the sum of what the same person goes on to earn."""
    env, params = make(households=2, ages=4)
    state, rewards, successors = env.reset_env(jax.random.key(0), params)[1], [], []
    step = jax.jit(lambda key, state: env.step_env(key, state, jnp.full((8, 1), 0.4), params))
    for t in range(6):
        _, after, reward, _, _ = step(jax.random.key(t), state)
        rewards.append(reward)
        successors.append(env.successor(state, after, params))
        state = after
    rewards = jnp.stack(rewards)
    zeros, open_end = jnp.zeros((6, 1, 8)), jnp.zeros((6, 1), bool)
    advantage = generalised_advantage(
        rewards[:, None], zeros, zeros, zeros + 0.7, open_end, open_end, jnp.stack(successors)[:, None], jnp.array(1.0)
    )[:, 0]
    for slot in range(8):
        own = sum(0.7**j * float(rewards[1 + j, slot + 2 * j]) for j in range(4) if slot + 2 * j < 8)
        assert float(advantage[1, slot]) == pytest.approx(own, abs=1e-12)
    np.testing.assert_array_equal(env.inherits(state, state, params), [-1, -1, 0, 1, 2, 3, 4, 5])


def test_the_last_age_consumes_all():
    env, params = make()
    state = env.reset_env(jax.random.key(0), params)[1]
    keep, spend = (jnp.full((6, 1), 0.5).at[-1].set(share) for share in (1.0, 0.0))
    step = jax.jit(lambda action: env.step_env(jax.random.key(1), state, action, params))
    one, other = step(keep), step(spend)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(left, right)
    c = env.consumption(state, keep, params)
    np.testing.assert_allclose(c[-1], env.gross_return(state, params) * state.k[-1])


def test_one_slot_moves_prices_by_its_weight():
    """What a learner of rewards would exploit: of 16 households one moves the capital stock by a sixteenth."""
    moved = []
    for households in (1, 16):
        env, params = make(households=households)
        state, decision = env.steady_state(params)
        more = decision.action.at[0].add(0.1)
        after = [env.transition(state, a, jnp.array([1.0, 0.7]), params) for a in (decision.action, more)]
        moved.append(float(env.capital(after[1]) - env.capital(after[0])))
    assert moved[0] == pytest.approx(16 * moved[1], rel=1e-9)


def test_households_of_one_age_share_its_size():
    one, params = make()
    many, _ = make(households=5)
    for env in (one, many):
        state, decision = env.steady_state(params)
        assert float(env.capital(state)) == pytest.approx(float(one.capital(one.steady_state(params)[0])), abs=1e-12)
        names = env.definitions(state, decision.action, params)
        assert float(names["consumption"]) == pytest.approx(float(names["output"] - 0.7 * names["capital"]), abs=1e-12)


def test_variants_keep_the_contract():
    equimorph.check_environment(*make(ages=3, households=2, outputs="levels"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"ages": 1}, "ages = 1 must be a whole number of at least 2"),
        ({"households": 0}, "households = 0 must be"),
        ({"outputs": "level"}, "Did you mean 'levels'"),
        ({"delta_low": 0.95}, "delta_low = 0.95 must not be above delta_high = 0.9; swap them"),
        ({"concept": "planner"}, "concept of OLG-v0 'planner'"),
    ],
)
def test_mistakes_are_named(overrides, message):
    with pytest.raises(UserError, match=message):
        make(**overrides)
