"""Krusell and Smith's economy: its chains and accounts, its law of capital against an independent solver's."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.classical import krusell_smith as solver
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.errors import UserError

# Den Haan, Judd and Juillard (2010), over (bad, unemployed), (bad, employed), (good, unemployed), (good, employed).
CHANCES = [
    [0.525, 0.35, 0.03125, 0.09375],
    [0.0388888889, 0.8361111111, 0.0020833333, 0.1229166667],
    [0.09375, 0.03125, 0.2916666667, 0.5833333333],
    [0.0091145833, 0.1158854167, 0.0243055556, 0.8506944444],
]
LAW = json.loads((Path(__file__).parents[1] / "reference_values.json").read_text())["krusell_smith.B_bad,B_good"]
CONSUMPTION = {  # at K = 40.88, of the same four
    0.5: (0.7362, 1.9849, 0.8098, 2.0423),
    5.0: (1.8760, 2.3148, 2.0398, 2.3473),
    38.0: (2.8393, 2.8903, 2.8677, 2.9078),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("KrusellSmith-v0", **overrides)


def start(env, params):
    return jax.jit(env.initial_state)(jax.random.key(0), params)


def test_chances_are_the_published_ones():
    env, params = make()
    aggregate, own = (np.asarray(p) for p in env.chances(params))
    joint = (aggregate[:, :, None, None] * own).transpose(0, 2, 1, 3).reshape(4, 4)
    np.testing.assert_allclose(joint, CHANCES, atol=1e-10)


def test_every_household_meets_its_own_chances():
    """Nodes for z' and a common number: each household's next employment has its published chances, with z'."""
    env, params = make(num_households=4)
    law = env.shocks(params)
    state = start(env, params).replace(own=jnp.array([0, 1, 1, 0]))
    for z in range(2):
        here = state.replace(z=jnp.int32(z))
        nodes, weights = law.nodes("exact", 0, here)
        assert nodes.shape == (6, 5)
        after = np.asarray(jax.vmap(lambda shock, here=here: law.next_aggregate(here, shock))(nodes))
        own = np.asarray(jax.vmap(lambda shock, z2, here=here: law.next_own(here, z2, shock))(nodes, after))
        for agent, employed in enumerate([0, 1, 1, 0]):
            found = [weights[(after == z2) & (own[:, agent] == e)].sum() for z2 in range(2) for e in range(2)]
            np.testing.assert_allclose(found, CHANCES[2 * z + employed], atol=1e-10)


def test_income_is_output():
    """Taxes pay the benefits, and wages, rents and what is left of capital add up to output and that."""
    env, params = make()
    for z, share in ((0, 0.1), (1, 0.04)):
        hours = env.hours(params)[z]
        gross_return, wage = env.prices(40.0, env.productivity(params)[z], hours, params)
        unemployed, employed = env.incomes(wage, z, params)
        income = share * unemployed + (1 - share) * employed
        assert float(income) == pytest.approx(float(wage * hours))
        output = (0.99, 1.01)[z] * 40**0.36 * ((1 - share) / 0.9) ** 0.64
        assert float(gross_return * 40 + income) == pytest.approx(output + 0.975 * 40)
        assert float(unemployed) == pytest.approx(0.15 * float(wage))


def test_agents_and_histogram_are_one_economy():
    """The same cross-section has the same conditions, by common numbers or by the chances of own states."""
    sample, params = make(num_households=20)
    histogram, _ = make(calibration="histogram", grid_size=10)
    state = start(sample, params)

    def rule(env):
        def decide(state):
            seen = env.observation(state, params)
            return Decision(jax.nn.sigmoid(3 + 0.3 * seen @ jnp.arange(1.0, 5.0))[:, None])

        return decide

    @jax.jit
    def conditions(state):
        found = []
        for env in (sample, histogram):
            nodes, weights = env.shocks(params).nodes("exact", 0, state)
            found.append(residuals(rule(env), state, nodes, weights, env, params)["borrowing"])
        return found

    for z in range(2):
        by_numbers, by_chances = conditions(state.replace(z=jnp.int32(z)))
        assert np.std(by_numbers) > 1e-3
        np.testing.assert_allclose(by_numbers, by_chances, atol=1e-12)


def test_unemployment_is_as_given_along_a_path():
    env, params = make(calibration="histogram", grid_size=10)

    @jax.jit
    def path(state):
        def step(state, key):
            after = env.step_env(key, state, jnp.full((20, 1), 0.94), params)[1]
            return after, (after.z, after.mass[:10].sum(), after.mass.sum())

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(0), 60))[1]

    z, unemployed, everyone = path(start(env, params))
    assert 0 < np.mean(z) < 1
    np.testing.assert_allclose(unemployed, np.where(z == 1, 0.04, 0.1), atol=1e-12)
    np.testing.assert_allclose(everyone, 1, atol=1e-12)


def test_a_law_is_found_and_its_error_is_that_of_its_own_forecasts():
    law = np.array([[0.12, 0.966], [0.135, 0.964]])
    states = (np.random.default_rng(0).random(400) < 0.5).astype(int)
    log_k = np.empty(400)
    log_k[0] = 3.6
    for t in range(399):
        log_k[t + 1] = law[states[t], 0] + law[states[t], 1] * log_k[t]
    capital = np.exp(log_k)
    fit = solver.perceived_law(capital, states)
    np.testing.assert_allclose(fit.law, law, atol=1e-10)
    np.testing.assert_allclose(fit.r_squared, 1, atol=1e-10)
    assert solver.den_haan_error(capital, states, law).largest < 1e-12
    # An intercept that is off by x in every period is off by x (1 - s^t) / (1 - s) after t, with one slope s.
    single = np.array([[0.12, 0.95], [0.13, 0.95]])
    for t in range(399):
        log_k[t + 1] = single[states[t], 0] + 0.95 * log_k[t]
    found = solver.den_haan_error(np.exp(log_k), states, single + np.array([1e-3, 0]))
    strayed = 1e-3 * (1 - 0.95 ** np.arange(400)) / 0.05
    assert (found.mean, found.largest) == pytest.approx((strayed.mean(), strayed.max()))


@pytest.mark.slow
def test_the_equilibrium(known):
    env, params = make()
    found = solver.solve_law(env, params)
    np.testing.assert_allclose(found.fit.law, LAW["value"], atol=LAW["tol"])
    assert found.capital.mean() == known("krusell_smith.meanK")
    assert found.capital.std() == pytest.approx(1.05, abs=0.05)
    assert found.fit.r_squared.min() > 0.999998
    error = solver.den_haan_error(found.capital, found.states, found.fit.law)
    assert error.mean == pytest.approx(5.1e-4, abs=1e-4)
    assert error.largest == pytest.approx(2.0e-3, abs=5e-4)

    answer = solver.answer(env, params, found)
    state = start(env, params)

    @jax.jit
    def consumption(k, z, own):
        here = state.replace(a=jnp.full(20, k), own=jnp.full(20, own), capital=jnp.array(40.88), z=z)
        return env.consumption(here, answer.policy(here), params)[0]

    for k, values in CONSUMPTION.items():
        for index, c in enumerate(values):
            assert float(consumption(k, index // 2, index % 2)) == pytest.approx(c, abs=2e-3)

    # Along a histogram's path from elsewhere the households' errors are small, whatever they perceive.
    histogram, _ = make(calibration="histogram", grid_size=60)
    policy = solver.SavingPolicy(answer.policy.consumption, answer.policy.params, histogram)

    def errors(state):
        nodes, weights = histogram.shocks(params).nodes("exact", 0, state)
        report = histogram.euler_error
        return residuals(lambda s: Decision(policy(s)), state, nodes, weights, histogram, params, report)["euler"]

    @jax.jit
    def path(state):
        def step(state, key):
            return histogram.step_env(key, state, policy(state), params)[1], (errors(state), state.mass)

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(0), 50))[1]

    euler, mass = path(start(histogram, params))
    assert np.sum(np.abs(euler) * mass) / np.sum(mass) < 5e-4
    assert np.abs(euler).max() < 1e-2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"unemployment_bad": 0.5, "unemployment_good": 0.01}, "narrow the gap between unemployment_bad"),
        ({"spell_bad": 10.0}, "or change the spells"),
        ({"num_households": 1}, "num_households = 1 must be at least 2"),
        ({"grid_size": 20}, "grid_size = 20 applies to households='histogram'"),
        ({"concept": "planner"}, "concept of KrusellSmith-v0 'planner'"),
        ({"amin": -1.0, "benefit": 0.0}, "amin = -1 leaves nothing to consume; raise amin towards 0, or raise benefit"),
        ({"amin": -50.0}, "the interest on the debt amin = -50 leaves nothing to consume"),
        ({"amax": 30.0}, "amax = 30 must exceed the mean assets under full insurance, 3"),
    ],
)
def test_what_does_not_go_together(overrides, message):
    with pytest.raises(UserError, match=message):
        make(**overrides)


def test_a_path_too_short_for_a_law_is_refused():
    with pytest.raises(UserError, match="periods = 500 must exceed discard = 1000"):
        solver.solve_law(*make(), periods=500)
    with pytest.raises(UserError, match="solver 'krusell_smith' is for KrusellSmith-v0"):
        solver.solve_law(*equimorph.make("Aiyagari-v0"))
