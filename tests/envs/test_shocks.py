"""Laws of shocks: their draws and their expectations agree with each other and with the truth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs.shocks import Chain, Discrete, Lognormal, Mixture, Normal, no_shock
from equimorph.errors import UserError

MOMENTS = [1, 0, 1, 0, 3, 0, 15, 0, 105, 0, 945]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_gauss_hermite_is_exact_up_to_its_degree_and_no_further(order):
    nodes, weights = Normal(1).nodes("gauss_hermite", order, None)
    assert nodes.shape == (order, 1)
    moments = [float(weights @ nodes[:, 0] ** p) for p in range(2 * order + 1)]
    np.testing.assert_allclose(moments[: 2 * order], MOMENTS[: 2 * order], atol=1e-10)
    assert moments[2 * order] < MOMENTS[2 * order] - 0.5


def test_gauss_hermite_in_two_dimensions_is_the_product_rule():
    nodes, weights = Normal(2).nodes("gauss_hermite", 3, None)
    assert nodes.shape == (9, 2)
    x, y = nodes.T
    for p in range(6):
        for q in range(6):
            assert float(weights @ (x**p * y**q)) == pytest.approx(MOMENTS[p] * MOMENTS[q], abs=1e-10)


def test_normal_draws_are_standard():
    draws = jax.vmap(lambda key: Normal(2).sample(key, None))(jax.random.split(jax.random.key(0), 20_000))
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(np.cov(draws.T), np.eye(2), atol=0.04)


def test_too_many_nodes_and_too_few():
    with pytest.raises(UserError, match="15625 nodes, above the limit of 4096"):
        Normal(6).nodes("gauss_hermite", 5, None)
    with pytest.raises(UserError, match="order of at least 1"):
        Normal(1).nodes("gauss_hermite", 0, None)


@pytest.mark.parametrize("law", [Normal(1), Discrete(jnp.arange(2.0), jnp.ones(2) / 2)])
def test_an_unknown_rule_is_refused_by_name(law):
    with pytest.raises(UserError, match=f"integration rule for {type(law).__name__} shocks 'gaus_hermit'"):
        law.nodes("gaus_hermit", 3, None)


def test_a_misspelt_rule_is_guessed():
    with pytest.raises(UserError, match="Did you mean 'gauss_hermite'"):
        Normal(1).nodes("gaus_hermit", 3, None)


def test_discrete_draws_have_their_frequencies():
    law = Discrete(jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), jnp.array([0.2, 0.0, 0.8]))
    nodes, weights = law.nodes("exact", 1, None)
    draws = jax.vmap(lambda key: law.sample(key, None))(jax.random.split(jax.random.key(0), 20_000))
    assert draws.shape == (20_000, 2)
    assert not np.any(draws[:, 0] == 3.0)
    np.testing.assert_allclose(draws.mean(axis=0), weights @ nodes, atol=0.05)


def test_chain_draws_follow_the_row_of_the_state():
    matrix = jnp.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    law = Chain(matrix, lambda state: state["regime"])
    keys = jax.random.split(jax.random.key(1), 20_000)
    for row in range(3):
        state = {"regime": jnp.int32(row)}
        nodes, weights = law.nodes("exact", 1, state)
        np.testing.assert_array_equal(nodes, [0, 1, 2])
        np.testing.assert_array_equal(weights, matrix[row])
        draws = np.asarray(jax.vmap(lambda key, state=state: law.sample(key, state))(keys))
        np.testing.assert_allclose(np.bincount(draws, minlength=3) / draws.size, matrix[row], atol=0.015)


def test_a_rounded_row_never_draws_beyond_its_last_state():
    law = Chain(jnp.full((2, 2), 0.4), lambda state: state)  # sums to .8: a draw of .9 lies beyond
    draws = jax.vmap(lambda key: law.sample(key, jnp.int32(0)))(jax.random.split(jax.random.key(2), 500))
    assert int(draws.max()) == 1


def income(chance=0.05, benefit=0.3, sigma=0.1):
    """Unemployed with a fixed benefit, else a lognormal income of mean 1."""
    work = Lognormal(jnp.full(1, -(sigma**2) / 2), jnp.full(1, sigma))
    return Mixture((Discrete(jnp.full((1, 1), benefit), jnp.ones(1)), work), jnp.array([chance, 1 - chance]))


def test_mixture_has_the_mean_and_variance_of_its_closed_form():
    mean = 0.05 * 0.3 + 0.95
    second = 0.05 * 0.3**2 + 0.95 * np.exp(0.1**2)
    nodes, weights = income().nodes("components", 9, None)
    assert nodes.shape == (10, 1)
    assert float(weights @ nodes[:, 0]) == pytest.approx(mean, abs=1e-14)
    assert float(weights @ nodes[:, 0] ** 2) == pytest.approx(second, abs=1e-14)
    draws = np.asarray(income().draws(jax.random.key(5), 40_000, None))[:, 0]
    assert np.mean(draws == 0.3) == pytest.approx(0.05, abs=0.004)
    assert draws.mean() == pytest.approx(mean, abs=0.004)
    assert draws.var() == pytest.approx(second - mean**2, rel=0.03)


def test_mixture_takes_any_rule_of_a_component():
    law = income()
    assert [len(law.nodes(rule, 4, None)[1]) for rule in ("components", "monomial5", "qmc", "exact")] == [5, 4, 5, 5]
    assert [law.takes_order(rule) for rule in ("components", "monomial5", "qmc")] == [True, False, True]
    assert law.finest() == ("gauss_hermite", 11)
    assert len(law.nodes(*law.finest(), None)[1]) == 12
    with pytest.raises(
        UserError, match=r"integration rule for Mixture shocks 'gaus_hermite'\. Did you mean 'gauss_hermite'"
    ):
        law.nodes("gaus_hermite", 5, None)


def test_mixture_of_chains_follows_the_state():
    rows = jnp.array([[0.9, 0.1], [0.3, 0.7]])
    law = Mixture((Chain(rows, lambda state: state), Chain(rows[::-1], lambda state: state)), jnp.array([0.25, 0.75]))
    nodes, weights = law.nodes("exact", 1, jnp.int32(1))
    assert float(weights @ nodes) == pytest.approx(0.25 * 0.7 + 0.75 * 0.1)
    draws = law.draws(jax.random.key(6), 20_000, jnp.int32(1))
    assert float(draws.mean()) == pytest.approx(0.25, abs=0.01)


def test_components_must_fit_together():
    with pytest.raises(UserError, match="one probability each"):
        Mixture((Normal(1), Normal(1)), jnp.ones(1))
    law = Mixture((Normal(1), Normal(2)), jnp.ones(2) / 2)
    for call in (lambda: law.sample(jax.random.key(0), None), lambda: law.nodes("components", 3, None)):
        with pytest.raises(UserError, match=r"shocks of one shape, they draw \[\(1,\), \(2,\)\]"):
            call()


def test_lognormal_entries_are_independent_and_constant_where_sigma_is_zero():
    law = Lognormal(jnp.array([-0.02, jnp.log(0.3)]), jnp.array([0.2, 0.0]))
    nodes, weights = law.nodes("gauss_hermite", 9, None)
    np.testing.assert_allclose(weights @ nodes, [1.0, 0.3], rtol=1e-12)
    np.testing.assert_allclose(nodes[:, 1], 0.3)
    draws = law.draws(jax.random.key(7), 20_000, None)
    np.testing.assert_allclose(draws.mean(0), [1.0, 0.3], rtol=0.005)
    assert float(jnp.log(draws[:, 0]).std()) == pytest.approx(0.2, rel=0.02)


@pytest.mark.parametrize("wide", [False, True])
def test_laws_have_the_precision_that_was_asked_for(wide):
    with jax.enable_x64(wide):
        for law in (Normal(2), income(), no_shock()):
            nodes, weights = law.nodes(law.rules[0], 3, None)
            assert {nodes.dtype, weights.dtype, law.sample(jax.random.key(0), None).dtype} == {jnp.result_type(float)}


def test_chain_steps_compile_once_for_all_rows():
    law = Chain(jnp.eye(3), lambda state: state)
    sample = jax.jit(lambda key, state: law.sample(key, state))
    assert [int(sample(jax.random.key(0), jnp.int32(row))) for row in range(3)] == [0, 1, 2]
    assert sample._cache_size() == 1


def test_what_an_economy_draws_is_what_it_integrates():
    env, params = equimorph.make("StochasticAK-v0")
    state = env.reset_env(jax.random.key(0), params)[1]
    law, action = env.shocks(params), env.centre(params)

    def wealth(shock):
        return env.transition(state, action, shock, params).k

    nodes, weights = law.nodes("gauss_hermite", 5, state)
    draws = jax.vmap(lambda key: env.step_env(key, state, action, params)[1].k)(
        jax.random.split(jax.random.key(3), 20_000)
    )
    assert float(weights @ jax.vmap(wealth)(nodes)) == pytest.approx(float(draws.mean()), rel=3e-3)
