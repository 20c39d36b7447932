"""The great fish war against its closed forms, and its best responses against an independent dynamic programme."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.deqn import policy_decision, residuals
from equimorph.envs import Decision
from equimorph.envs.economies._common_pool import CommonPool, best_response
from equimorph.envs.economies.fish_war import State, constant_value
from equimorph.errors import UserError

A, B = 0.36, 0.95


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(players=2, concept="mpe", **overrides):
    return equimorph.make("FishWar-v0", num_players=players, concept=concept, **overrides)


def errors(env, params, *profiles, stock=1.7, report=None):
    """A condition of the same fractions `[N]` for ever, in one state; of several profiles, `[P, N]`."""
    state = State(jnp.int32(0), jnp.array(stock))
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 5, state)

    def one(policy):
        return residuals(lambda _: Decision(policy), state, nodes, weights, env, params, report)["euler"]

    return jax.jit(jax.vmap(one))(jnp.stack([jnp.asarray(profile)[:, None] for profile in profiles]))


def at_one(env):
    return State(jnp.int32(0), jnp.ones(()))


def test_fractions_and_values(known):
    fractions, values = {}, {}
    for players in (2, 5):
        for concept in ("mpe", "cooperative"):
            env, params = make(players, concept)
            reference = env.reference(params)
            fractions[players, concept] = float(reference.policy(at_one(env))[0, 0])
            values[players, concept] = float(reference.value(at_one(env))[0])
            assert reference.concept == concept
    assert [fractions[2, "mpe"], fractions[5, "mpe"]] == known("fish_war.phi_mpe(al=.36,be=.95,N=2,5)")
    assert [fractions[2, "cooperative"], fractions[5, "cooperative"]] == pytest.approx([0.329, 0.1316], abs=1e-12)
    assert values[2, "mpe"] == known("fish_war.V_mpe(x=1,N=2)")
    assert values[2, "cooperative"] == known("fish_war.V_coop(x=1,N=2)")
    assert values[5, "mpe"] == pytest.approx(-58.72755693, abs=1e-8)
    assert values[5, "cooperative"] == pytest.approx(-51.71317047, abs=1e-8)
    saved = [1 - n * fractions[n, "mpe"] for n in (2, 5)]
    assert saved == pytest.approx([0.2062726176, 0.0941629956], abs=1e-10)
    gains = [np.expm1(0.05 * (values[n, "cooperative"] - values[n, "mpe"])) for n in (2, 5)]
    assert gains == pytest.approx([0.078, 0.420], abs=5e-4)


@pytest.mark.parametrize("players", range(2, 11))
def test_the_condition_picks_the_equilibrium(players):
    """Zero at the concept's fractions; of other fractions f the game's is a b (1 - (N - 1) f) - (1 - N f)."""
    for concept in ("mpe", "cooperative"):
        env, params = make(players, concept)
        fraction, n = float(env.fraction(params)), players
        other, rivals = 0.6 / n, n - 1 if concept == "mpe" else 0
        expected = A * B * (1 - rivals * other) - (1 - n * other)
        found = errors(env, params, np.full(n, fraction), np.full(n, other))
        np.testing.assert_allclose(found, np.outer([0, expected], np.ones(n)), atol=1e-12)


def test_unequal_fractions():
    """In the game each faces the sum of the others'; together, no split but the equal one is a solution."""
    fractions = np.array([0.1, 0.25, 0.3])
    left = 1 - fractions.sum()
    env, params = make(3)
    others = fractions.sum() - fractions
    np.testing.assert_allclose(errors(env, params, fractions)[0], A * B * (1 - others) - left, atol=1e-12)
    env, params = make(3, "cooperative")
    right_total = fractions / fractions.sum() * (1 - A * B)
    assert float(jnp.abs(errors(env, params, right_total)).min()) > 0.05


def test_a_rivals_reaction_is_its_slope():
    """Rivals who draw c = .4 x^1.2 take .48 x^.2 of an extra unit: 1 - that stands where 1 - f stood."""
    env, params = make(2, sigma=1e-12)
    state = State(jnp.int32(0), jnp.array(0.8))

    def policy(s):
        return Decision(jnp.full((2, 1), 0.4 * s.x**0.2))

    found = residuals(policy, state, *env.shocks(params).nodes("gauss_hermite", 1, state), env, params)["euler"]
    c = 0.4 * 0.8**1.2
    left = 0.8 - 2 * c
    after = left**A
    expected = B * A * left ** (A - 1) / (0.4 * after**1.2) * (1 - 0.48 * after**0.2) * c - 1
    np.testing.assert_allclose(found, expected * left / 0.8, rtol=1e-9)


def test_where_leaving_is_worth_less_than_nothing_to_draw_more_is_better():
    """Four rivals who take .18 (1 + k) of an extra unit, k = 1: no fraction is an equilibrium, and 0 is the worst.

    With W = a b (1 - 4 x .36) / .18 the condition of fractions f is W f - (1 - 5 f), and W + 5 is above 0.
    """
    env, params = make(5, sigma=1e-12)
    state = State(jnp.int32(0), jnp.array(0.8))
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 1, state)

    def condition(fraction):
        after = (0.8 * (1 - 5 * fraction)) ** A

        def tomorrow(s):
            return Decision(jnp.full((5, 1), 0.18 * s.x / after))

        today = Decision(jnp.full((5, 1), fraction))
        found = residuals(lambda _: today, state, nodes, weights, env, params, next_decide=tomorrow)["euler"]
        return A * B * (1 - 4 * 0.36) / 0.18 * fraction - (1 - 5 * fraction), found

    known, found = zip(*map(condition, (1e-6, 0.1, 0.15)), strict=True)
    np.testing.assert_allclose(found, np.outer(known, np.ones(5)), atol=1e-9)
    assert abs(known[0]) > abs(known[1]) > abs(known[2])


def test_one_percent_off():
    """The Euler error of f is (1 - N f) / (a b) - 1 of the concept "cooperative", and its loss is known."""
    env, params = make(2, "cooperative")
    fraction = 1.01 * 0.329
    error = errors(env, params, np.full(2, fraction), report=env.euler_error)
    np.testing.assert_allclose(error, (1 - 2 * fraction) / (A * B) - 1, atol=1e-12)
    slope = 1 / (1 - A * B)
    state = at_one(env)
    value = constant_value(state, jnp.full((2, 1), fraction), params)
    regret = env.reference(params).value(state) - value
    expected = (-np.log(1.01) - B * slope * A * np.log((1 - 2 * fraction) / (A * B))) / (1 - B)
    np.testing.assert_allclose(regret, expected, atol=1e-10)
    loss = env.consumption_equivalent(value.mean(), env.reference(params).value(state).mean(), params)
    assert float(loss) == pytest.approx(1 - np.exp(-0.05 * expected), rel=1e-9)


def test_value_of_constant_fractions_solves_its_recursion():
    env, params = make(3)
    action = jnp.array([[0.1], [0.2], [0.4]])
    state = State(jnp.int32(0), jnp.array(0.6))
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 7, state)
    after = jax.vmap(lambda e: constant_value(env.transition(state, action, e, params), action, params))(nodes)
    expected = env.reward(state, action, params) + B * weights @ after
    np.testing.assert_allclose(constant_value(state, action, params), expected, atol=1e-11)


def test_gain_from_the_best_deviation(known):
    """Against constant fractions F a best response is (1 - a b) (1 - F); nobody gains in the equilibrium."""
    env, params = make()
    gains = jax.jit(lambda action: env.exploitability(lambda _: action, params))
    assert float(gains(jnp.full((2, 1), 0.329))[0]) == known("fish_war.gain_dev_from_coop(N=2)")
    assert float(gains(env.reference(params).policy(None)).max()) < 1e-9
    state = at_one(env)
    for pair in ([0.2, 0.45], [0.6, 0.1]):
        action = jnp.array(pair)[:, None]
        for player, gain in enumerate(gains(action)):
            best = (1 - A * B) * (1 - action[1 - player])
            values = [constant_value(state, a, params)[player] for a in (action.at[player].set(best), action)]
            assert float(gain) == pytest.approx(float(values[0] - values[1]), abs=1e-8)


def test_one_response(known):
    """(1 - a b) (1 - F) of a stock of which the others ask for F; of the cooperative .329, .441518."""
    _, params = equimorph.make("FishWar-v0")
    pool = CommonPool(params, 0.999, 1e-8)
    respond = jax.jit(lambda others: best_response(pool, jnp.full(pool.grid.shape, others)).asked)
    for others in (0.05, 0.6):
        np.testing.assert_allclose(respond(others), (1 - 0.342) * (1 - others), atol=1e-6)
    asked = respond(0.329)
    assert float(asked[60]) == known("fish_war.BR_to_coop(N=2)")
    # A best response to a best response at the equilibrium is the equilibrium.
    np.testing.assert_allclose(respond(0.3968636912), 0.3968636912, atol=1e-6)


def test_five_players_gain_by_cheating():
    env, params = make(5)
    gains = jax.jit(lambda: env.exploitability(lambda _: jnp.full((5, 1), 0.1316), params))()
    np.testing.assert_allclose(gains, 9.471670, atol=1e-6)


def test_a_player_grabs_where_little_would_be_left():
    """Against a rival who asks for .9 of the stock, asking for all and being rationed beats a tenth of the rest."""
    env, params = make()
    gains = jax.jit(lambda: env.exploitability(lambda _: jnp.array([[0.3], [0.9]]), params))()

    def value(asked):
        return float(constant_value(at_one(env), jnp.array([[asked], [0.9]]), params)[0])

    assert float(gains[0]) == pytest.approx(value(1.0) - value(0.3), abs=1e-8)
    assert value(1.0) > value((1 - A * B) * 0.1)


def test_gain_against_a_policy_that_depends_on_the_stock():
    """The recursion on a fine grid of stocks, with all fractions of a fine grid tried, in NumPy."""
    env, params = make(sigma=0.2)

    def asked(log_x):
        return 0.3 + 0.1 * np.tanh(log_x + 1)

    def policy(state):
        return jnp.full((2, 1), 0.3 + 0.1 * jnp.tanh(jnp.log(state.x) + 1))

    grid, tried = np.linspace(-5, 1.5, 301), np.linspace(0.01, 0.59, 300)
    x, w = np.polynomial.hermite_e.hermegauss(9)
    w = w / w.sum()

    def expected(value, fractions):
        """B log x' + value, expected, for fractions `[k, n]`."""
        mean = A * (grid + np.log(1 - fractions - asked(grid)))
        after = mean[..., None] + 0.2 * x
        return (after / (1 - A * B) + np.interp(after, grid, value)) @ w

    best, kept = np.zeros(301), np.zeros(301)
    base = grid / (1 - A * B)
    for _ in range(14):
        worth = np.log(tried)[:, None] + grid + B * expected(best, tried[:, None] * np.ones(301))
        chosen = tried[worth.argmax(axis=0)]
        for _ in range(25):  # modified policy iteration
            best = np.log(chosen) + grid + B * expected(best, chosen) - base
    for _ in range(350):
        kept = np.log(asked(grid)) + grid + B * expected(kept, asked(grid)) - base
    at = np.log(float(env.steady_stock(params)))
    gain = np.interp(at, grid, best) - np.interp(at, grid, kept)
    assert gain > 1.0
    found = jax.jit(lambda: env.exploitability(policy, params))()
    np.testing.assert_allclose(found, gain, rtol=2e-3)


def test_rationing():
    env, params = make(3)
    state = at_one(env)
    step = jax.jit(lambda action: env.step_env(jax.random.key(0), state, action, params))
    for asked, rationed in (([0.5, 0.4, 0.3], True), ([0.3, 0.3, 0.3], False)):
        action = jnp.array(asked)[:, None]
        _, after, _, _, info = step(action)
        got = np.array(asked) * (0.999 / 1.2 if rationed else 1)
        assert bool(info["rationed"]) == rationed
        np.testing.assert_allclose(info["utility"], np.log(got), atol=1e-12)
        shock = env.shocks(params).sample(jax.random.key(0), state)[0]
        assert float(after.x) == pytest.approx(float(np.exp(0.1 * shock) * (1 - got.sum()) ** A), rel=1e-12)
    # The residual is that of what they get.
    asked = np.array([0.5, 0.4, 0.3])
    found = errors(env, params, asked, 0.999 / 1.2 * asked)
    np.testing.assert_allclose(found[0], found[1])


def test_own_or_team_reward():
    action = jnp.array([[0.2], [0.4]])
    rewards = []
    for concept in ("mpe", "cooperative"):
        env, params = make(2, concept, reward_scale="utility")
        rewards.append(env.step_env(jax.random.key(0), at_one(env), action, params)[2])
    np.testing.assert_allclose(rewards[0], np.log([0.2, 0.4]))
    np.testing.assert_allclose(rewards[1], np.log([0.2, 0.4]).mean() * np.ones(2))


def test_variants_keep_the_contract():
    equimorph.check_environment(*make(4, "cooperative"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"players": 1}, "num_players = 1 must be .* BrockMirman-v0"),
        ({"players": 13}, "with num_players = 13 .* would rather ask for everything"),
        ({"concept": "nash"}, "concept of FishWar-v0 'nash'"),
    ],
)
def test_mistakes_are_named(overrides, message):
    with pytest.raises(UserError, match=message):
        make(**overrides)


@pytest.mark.extended
@pytest.mark.parametrize("players", [2, 5])
def test_the_preset_finds_the_markov_perfect_share(players):
    with jax.enable_x64(False):
        run = equimorph.train("FishWar-v0", "deqn", env={"num_players": players}, progress=False)
        decide = policy_decision(run.agent.policy(run.state), run.env, run.params)
        stocks = jax.random.split(jax.random.key(0), 256)
        states = jax.vmap(run.env.initial_state, (0, None))(stocks, run.params)
        shares = np.asarray(jax.jit(jax.vmap(decide))(states).action)
    known = (1 - A * B) / (players - (players - 1) * A * B)
    assert shares.mean() == pytest.approx(known, rel=1e-3)
    assert np.abs(shares - known).max() < 0.01 * known
