"""Cournot's oligopoly against its closed forms, and the game with adjustment costs against its Riccati solution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.classical.lq_nash import lq_nash
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("Cournot-v0", **overrides)


def adjusting(**overrides):
    return make(**{"calibration": "adjustment", **overrides})


def played(env, params, quantities):
    """Profits, price and the conditions at quantities that are chosen once."""
    state = env.initial_state(jax.random.key(0), params)
    action = jnp.asarray(quantities, float)[:, None]
    found = env.conditions(state, Decision(action), {}, params)["first_order"]
    return env.reward(state, action, params), env.definitions(state, action, params)["price"], found


# -- once --------------------------------------------------------------------------------------------------------------


def test_duopoly(known):
    env, params = make()
    reference = env.reference(params)
    quantity = float(reference.policy(None)[0, 0])
    profits, price, condition = played(env, params, reference.policy(None)[:, 0])
    assert [quantity, float(price), float(profits[0])] == known("cournot(a=10,b=1,c=1,N=2) q,P,pi")
    np.testing.assert_allclose(reference.value(None), profits)
    assert float(jnp.abs(condition).max()) < 1e-11
    assert float(env.exploitability(reference.policy, params).max()) == 0


@pytest.mark.parametrize("firms", [2, 3, 7])
def test_equal_firms(firms):
    env, params = make(num_firms=firms, a=12.0, b=0.5, c=3.0)
    np.testing.assert_allclose(env.reference(params).policy(None), 9 / (0.5 * (firms + 1)), rtol=1e-12)
    np.testing.assert_allclose(env.reference(params).value(None), 81 / (0.5 * (firms + 1) ** 2), rtol=1e-12)


def test_unequal_costs():
    env, params = make(calibration="asymmetric")
    np.testing.assert_allclose(env.reference(params).policy(None)[:, 0], [3, 2, 1], atol=1e-12)
    np.testing.assert_allclose(env.reference(params).value(None), [9, 4, 1], atol=1e-12)


@pytest.mark.parametrize(
    ("costs", "quantities"),
    [
        ([1.0, 2.0, 9.0], [10 / 3, 7 / 3, 0]),  # the third would sell at 13 / 3 only
        ([9.0, 1.0, 7.0], [0, 4.5, 0]),  # a monopolist sells at 5.5
        ([1.0, 5.5, 5.5], [4.5, 0, 0]),  # and just keeps the others out
    ],
)
def test_idle_firms(costs, quantities):
    env, params = make(num_firms=3, c=costs)
    found = env.reference(params).policy(None)[:, 0]
    np.testing.assert_allclose(found, quantities, atol=1e-12)
    np.testing.assert_allclose(env.exploitability(env.reference(params).policy, params), 0, atol=1e-12)
    # At a corner where the condition is just met, the smoothed function is -1e-6.
    assert float(jnp.abs(played(env, params, found)[2]).max()) < 1.1e-6
    # A firm that should be idle and sells, and one that should sell and is idle.
    assert float(jnp.abs(played(env, params, found + 0.1)[2]).min()) > 5e-3


def test_collusion():
    env, params = make(concept="cooperative")
    np.testing.assert_allclose(env.reference(params).policy(None), 2.25)
    np.testing.assert_allclose(env.reference(params).value(None), 10.125)
    assert float(jnp.abs(played(env, params, [2.25, 2.25])[2]).max()) < 1e-11
    assert float(jnp.abs(played(env, params, [3.0, 3.0])[2]).min()) > 0.1
    # Against 2.25 the best quantity is 3.375: (10 - 5.625 - 1) 3.375 - 10.125.
    np.testing.assert_allclose(env.exploitability(env.reference(params).policy, params), 1.265625)
    env, params = make(concept="cooperative", calibration="asymmetric", c=[2.0, 1.0, 1.0])
    np.testing.assert_allclose(env.reference(params).policy(None)[:, 0], [0, 2.25, 2.25])


@pytest.mark.parametrize("quantities", [[3.0, 2.0, 1.0], [0.0, 6.0, 0.5], [9.5, 9.0, 0.1]])
def test_gain_from_the_best_quantity(quantities):
    env, params = make(calibration="asymmetric")
    action = jnp.array(quantities)[:, None]
    gains = env.exploitability(lambda _: action, params)
    tried = jnp.linspace(0, 10, 20_001)
    for firm in range(3):
        profits = jax.vmap(lambda q, i=firm: env.reward(None, action.at[i].set(q), params)[i])(tried)
        assert float(gains[firm]) == pytest.approx(
            float(profits.max() - env.reward(None, action, params)[firm]), abs=1e-6
        )


def test_interior_condition_is_the_marginal_profit():
    """P - b q - c over a, where a firm sells a lot, is what the condition is near to."""
    env, params = make()
    _, price, condition = played(env, params, [3.03, 3.0])
    margin = (1 + 3.03 - float(price)) / 10
    sold = 0.303
    assert float(condition[0]) == pytest.approx(margin + sold - np.hypot(margin, sold), abs=1e-11)
    assert float(jax.grad(lambda q: env.reward(None, jnp.array([[q], [3.0]]), params)[0])(3.03)) == pytest.approx(
        -10 * margin, abs=1e-12
    )


def test_played_once():
    env, params = make(reward_scale="utility")
    state = env.reset_env(jax.random.key(0), params)[1]
    _, after, reward, terminated, _ = env.step_env(jax.random.key(0), state, jnp.array([[3.0], [2.0]]), params)
    assert bool(terminated)
    assert float(env.discount_factor(params)) == 1
    np.testing.assert_allclose(reward, [12, 8])
    np.testing.assert_allclose(after.q, [3, 2])
    # In consumption units it is a share of a monopolist's profit, (a - c)^2 / 4 b.
    np.testing.assert_allclose(
        make()[0].step_env(jax.random.key(0), state, jnp.array([[3.0], [2.0]]), params)[2], [48 / 81, 32 / 81]
    )


def test_firms_see_their_costs():
    """A firm's quantity against the mean is what its observation says."""
    env, params = make(calibration="asymmetric")
    seen = env.reset_env(jax.random.key(0), params)[0][:, 0]
    np.testing.assert_allclose(seen, np.array([3, 2, 1]) / 2 - 1, atol=1e-12)


# -- with costs of adjustment ------------------------------------------------------------------------------------------


def residuals_at(env, params, reference, key):
    def decide(state):
        prices = None if reference.auxiliary is None else reference.auxiliary(state)
        return Decision(reference.policy(state), prices)

    @jax.jit
    def found():
        state = env.initial_state(key, params)
        return residuals(decide, state, *env.shocks(params).nodes("exact", 1, state), env, params)

    return found()


def test_quantecons_duopoly(known):
    env, params = adjusting()
    reference = lq_nash(env, params)
    feedback = reference.policy.feedback
    assert list(feedback[0]) == known("duopoly_lq.F1")
    np.testing.assert_allclose(feedback[1], feedback[0][[0, 2, 1]], atol=1e-12)
    rest = np.linalg.solve(feedback[:, 1:], -feedback[:, 0])
    np.testing.assert_allclose(rest, 1.80193402, atol=1e-8)
    assert 10 - 2 * rest.sum() == pytest.approx(2.79226, abs=5e-6)
    state = env.initial_state(jax.random.key(0), params)
    assert float(reference.value(state.replace(q=jnp.ones(2)))[0]) == pytest.approx(128.86504, abs=5e-6)
    # At rest a firm earns P q for ever.
    for_ever = (10 - 2 * rest.sum()) * rest[0] / (1 - 0.96)
    assert float(reference.value(state.replace(q=jnp.asarray(rest)))[0]) == pytest.approx(for_ever, abs=1e-8)
    assert for_ever == pytest.approx(125.789, abs=0.003)
    assert (reference.concept, reference.tolerance) == ("mpe", 1e-9)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"num_firms": 3, "c": [0.0, 0.5, 1.0]},
        {"concept": "cooperative"},
        {"num_firms": 4, "concept": "cooperative"},
    ],
)
def test_conditions_are_zero_at_the_riccati_solution(overrides):
    env, params = adjusting(**overrides)
    reference = lq_nash(env, params)
    keys = jax.random.split(jax.random.key(0), 5)
    found = jax.jit(jax.vmap(lambda key: residuals_at(env, params, reference, key)))(keys)
    assert set(found) == ({"adjustment"} if env.concept == "cooperative" else {"adjustment", "shadow"})
    for condition in found.values():
        assert float(jnp.abs(condition).max()) < 1e-12


def test_conditions_tell_the_concepts_apart():
    """Joint optimum and equilibrium each miss the other's condition; so does ignoring the rivals' reactions."""
    (game, params), (team, _) = adjusting(), adjusting(concept="cooperative")
    key = jax.random.key(1)
    equilibrium, optimum = lq_nash(game, params), lq_nash(team, params)
    assert float(jnp.abs(residuals_at(team, params, equilibrium, key)["adjustment"]).max()) > 0.01
    alone = equilibrium._replace(auxiliary=lambda state: jnp.zeros((2, 1)))
    assert float(jnp.abs(residuals_at(game, params, alone, key)["adjustment"]).min()) > 0.01
    assert float(jnp.abs(residuals_at(game, params, alone, key)["shadow"]).min()) > 0.1
    mixed = equilibrium._replace(policy=optimum.policy)
    assert float(jnp.abs(residuals_at(game, params, mixed, key)["adjustment"]).max()) > 0.01


def test_the_matrices_are_the_economy():
    env, params = adjusting(num_firms=3, c=[0.0, 0.5, 1.0])
    game = env.linear_quadratic(params)
    state = env.initial_state(jax.random.key(2), params)
    action = jnp.array([[0.3], [-0.7], [1.1]])
    s, u = np.append(1.0, state.q), np.asarray(action)[:, 0]
    joint = np.append(s, u)
    payoffs = np.einsum("i,aij,j->a", joint, game.payoff, joint)
    np.testing.assert_allclose(payoffs, env.reward(state, action, params), atol=1e-12)
    after = env.transition(state, action, jnp.zeros(()), params)
    np.testing.assert_allclose(game.transition @ s + game.control @ u, np.append(1.0, after.q), atol=1e-12)


def test_adjustment_goes_on():
    env, params = adjusting(reward_scale="utility")
    state = env.reset_env(jax.random.key(0), params)[1].replace(q=jnp.array([1.0, 2.0]))
    _, after, reward, terminated, _ = env.step_env(jax.random.key(0), state, jnp.array([[0.5], [-1.0]]), params)
    assert not bool(terminated)
    np.testing.assert_allclose(after.q, [1.5, 1.0])
    np.testing.assert_allclose(reward, [4 * 1 - 12 * 0.25, 4 * 2 - 12 * 1.0])
    assert float(env.discount_factor(params)) == pytest.approx(0.96)


# -- both --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [{"calibration": "asymmetric"}, {"calibration": "adjustment"}])
def test_variants_keep_the_contract(overrides):
    equimorph.check_environment(*make(**overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"dynamics": "adjustmnt"}, "dynamics of Cournot-v0 'adjustmnt'. Did you mean 'adjustment'"),
        ({"num_firms": 1}, "num_firms = 1 must be"),
        ({"c": [1.0, 2.0, 3.0]}, r"c has shape \[3\]; give one number, or 2"),
        ({"c": 11.0}, "mean of c is 11 and must be below a = 10"),
        ({"beta": 0.9}, "beta does not apply with dynamics='static'"),
        ({"concept": "mpe"}, "concept of Cournot-v0 'mpe'"),
        ({"dynamics": "adjustment", "concept": "nash"}, "concept of Cournot-v0 'nash'"),
        ({"gama": 3.0}, "Did you mean 'gamma'"),
    ],
)
def test_mistakes_are_named(overrides, message):
    with pytest.raises(UserError, match=message) as error:
        make(**overrides)
    assert "\n" not in str(error.value)
