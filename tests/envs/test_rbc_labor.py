"""Business cycles with labour against an independent solver's numbers, and what a cap on labour changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.classical import solve, solve_with
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.envs.economies.rbc_labor import output, wanted_consumption
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("RBCLabor-v0", **overrides)


def at(env, params, k=1.0, log_z=0.0):
    """A state at a multiple of steady-state capital."""
    state = env.steady_state(params)[0]
    return state.replace(k=k * state.k, z=jnp.exp(jnp.asarray(log_z, float)))


def visited(env, params, policy, number):
    """States along one path of the policy."""

    def step(state, key):
        after = env.transition(state, policy(state), jax.random.normal(key, (1,)), params)
        return after, after

    keys = jax.random.split(jax.random.key(0), number + 200)
    states = jax.jit(lambda: jax.lax.scan(step, env.steady_state(params)[0], keys)[1])()
    return jax.tree.map(lambda leaf: leaf[200:], states)


def euler(env, params, policy, states):
    """Log10 of the mean absolute Euler error along `states`."""
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 9, None)

    def one(state):
        decide = lambda s: Decision(policy(s))  # noqa: E731
        return residuals(decide, state, nodes, weights, env, params, report=env.euler_error)["euler"]

    return float(jnp.log10(jnp.abs(jax.jit(jax.vmap(one))(states)).mean()))


def test_steady_state(known):
    env, params = make()
    k, c, labor, y = (float(x) for x in env.steady_quantities(params))
    assert [k, c, labor, y] == known("rbc_labour.ss(k,c,l,y)")
    state, decision = env.steady_state(params)
    named = env.definitions(state, decision.action, params)
    assert float(named["consumption"]) == pytest.approx(c, abs=1e-12)
    assert float(named["output"]) == pytest.approx(y, abs=1e-12)
    found = residuals(lambda s: decision, state, jnp.zeros((1, 1)), jnp.ones(1), env, params)
    assert {name: abs(float(g)) < 1e-12 for name, g in found.items()} == {"euler": True, "intratemporal": True}


@pytest.mark.slow
def test_collocation_finds_the_published_solution(known):
    env, params = make()
    answer = solve(env, params)
    state = at(env, params)
    named = env.definitions(state, answer.policy(state), params)
    assert float(named["labor"]) == known("rbc_labour.l(kss,0)")
    assert float(answer.value(state)) == known("rbc_labour.V(kss,0)")
    assert float(named["consumption"]) == pytest.approx(1.288309437, abs=1e-9)
    assert float(named["investment"] / state.k) == pytest.approx(0.0196 + 1.367e-6, abs=1e-9)
    poor, lucky = at(env, params, k=0.9), at(env, params, log_z=0.02)
    for where, labor, c in ((poor, 0.315591639, 1.218210287), (lucky, 0.314446486, 1.300375264)):
        named = env.definitions(where, answer.policy(where), params)
        assert float(named["labor"]) == pytest.approx(labor, abs=1e-9)
        assert float(named["consumption"]) == pytest.approx(c, abs=1e-9)
    assert float(answer.value(poor)) == pytest.approx(-112.34111437, abs=1e-7)
    states = visited(env, params, answer.policy, 2000)
    assert euler(env, params, answer.policy, states) < -11
    labor = jax.vmap(lambda s: answer.policy(s)[1])(states)
    assert float(jnp.std(jnp.log(labor))) == pytest.approx(0.0118, abs=0.0015)


def test_euler_error_of_degree_two():
    env, params = make()
    policy = solve_with("chebyshev", env, params, degree=2).policy
    # The published box is another one, which moves the level by a few tenths.
    assert euler(env, params, policy, visited(env, params, policy, 2000)) == pytest.approx(-6.29, abs=0.5)


@pytest.mark.slow
def test_volatile_calibration():
    env, params = make(calibration="volatile")
    answer, state = solve(env, params), at(env, params)
    assert float(answer.policy(state)[1]) == pytest.approx(0.310650612, abs=2e-9)
    assert float(answer.value(state)) == pytest.approx(-111.40264320, abs=1e-6)


@pytest.mark.slow
@pytest.mark.extended
def test_risk_averse_calibration():
    """Capital settles at twice its steady state, where a polynomial of high degree does not find it at once."""
    env, params = make(calibration="risk_averse")
    answer = solve_with("chebyshev", env, params, degree=6)
    assert answer.tolerance < 5e-5
    assert float(answer.policy(at(env, params))[1]) == pytest.approx(0.322140922, abs=answer.tolerance)

    def path(key):
        def step(state, key):
            after = env.transition(state, answer.policy(state), jax.random.normal(key, (1,)), params)
            return after, after.k

        return jax.lax.scan(step, at(env, params, k=2.0), jax.random.split(key, 8000))[1][1000:].mean()

    means = jax.jit(jax.vmap(path))(jax.random.split(jax.random.key(0), 200))
    # Capital moves so slowly that the mean of 7000 periods has a standard deviation of 3.2.
    error = float(means.std()) / 200**0.5
    assert error < 0.3
    assert float(means.mean()) == pytest.approx(45.94, abs=3 * error)


@pytest.mark.extended
def test_a_cap_that_never_binds_changes_nothing(known):
    env, params = make(labor_cap="mean", cap=0.6)
    answer, state = solve_with("capped_labor", env, params), at(env, params)
    assert float(answer.policy(state)[1]) == known("rbc_labour.l(kss,0)")
    assert float(answer.value(state)) == known("rbc_labour.V(kss,0)")
    assert float(answer.policy(at(env, params, log_z=0.02))[1]) == pytest.approx(0.314446486, abs=1e-8)


def test_one_percent_of_consumption():
    env, params = make()
    state, decision = env.steady_state(params)
    # At beta R = 1, consuming one percent less than the Euler equation asks for is an error of one percent.
    c, labor, _ = env.use(state, decision.action, params)
    marginal = env.marginal_utility(c, labor, params)
    cash = c / (1 - decision.action[0])
    less = Decision(jnp.array([1 - 0.99 * c / cash, labor]))
    errors = env.euler_error(state, less, {"saving": marginal / params.beta}, params)
    assert float(errors["euler"]) == pytest.approx(1 / 0.99 - 1, rel=1e-10)
    assert float(errors["intratemporal"]) == pytest.approx(1 / 0.99 - 1, rel=1e-10)
    # For ever, it costs one percent.
    value, lower = (env.utility(share * c, labor, params) / (1 - params.beta) for share in (1.0, 0.99))
    assert float(env.consumption_equivalent(lower, value, params)) == pytest.approx(0.01, rel=1e-10)
    base, unit = env.reward_units(params)
    slope = jax.grad(lambda share: env.utility(share * c, labor, params))(1.0)
    assert float(unit) == pytest.approx(float(slope), rel=1e-12)
    assert float(base) == pytest.approx(float(env.utility(c, labor, params)), rel=1e-12)


def test_marginal_utility_is_the_derivative():
    env, params = make(calibration="risk_averse")
    c, labor = jnp.array(1.1), jnp.array(0.35)
    slope = jax.grad(env.utility)(c, labor, params)
    assert float(env.marginal_utility(c, labor, params)) == pytest.approx(float(slope), rel=1e-12)
    cost = -jax.grad(env.utility, argnums=1)(c, labor, params)
    state = at(env, params, 1.2, 0.1)
    wage = jax.grad(output, argnums=2)(state.k, state.z, labor, params)
    wanted = wanted_consumption(state.k, state.z, labor, params)
    assert float(wanted / c) == pytest.approx(float(wage * slope / cost), rel=1e-12)


def test_more_labor_than_the_cap_is_the_cap():
    env, params = make(calibration="capped")
    state = at(env, params)
    share = float(env.centre(params)[0])
    beyond, cap = jnp.array([share, 0.5]), jnp.array([share, float(params.cap)])
    assert float(env.reward(state, beyond, params)) == float(env.reward(state, cap, params))
    assert bool(env.flags(state, beyond, params)["capped"])
    assert not bool(env.flags(state, cap, params)["capped"])
    assert float(env.slacks(state, Decision(beyond), params)["labor"]) == 0
    below = Decision(cap * jnp.array([1, 0.9]))
    assert float(env.slacks(state, below, params)["labor"]) == pytest.approx(0.1)


def test_complementarity_of_the_cap():
    """Zero at the cap where more labour is wanted, and slopes that lead back to it from beyond where less is."""
    env, params = make(calibration="capped")
    steady = env.steady_state(params)[1].action[0]

    def intratemporal(labor, log_z):
        state, decision = at(env, params, 1.0, log_z), Decision(jnp.stack([steady, labor]))
        return env.conditions(state, decision, {"saving": jnp.ones(())}, params)["intratemporal"]

    assert abs(float(intratemporal(0.4, 0.05))) < 1e-9
    # In bad times less than the cap is wanted: working at the cap is an error, and asking for less mends it.
    assert float(intratemporal(0.4, -0.05)) < -0.01
    assert float(jax.grad(lambda labor: intratemporal(labor, -0.05) ** 2)(0.4)) > 0.01
    state = at(env, params, 1.0, -0.05)
    free, _ = make()
    found = free.conditions(state, Decision(jnp.array([steady, 0.3])), {"saving": jnp.ones(())}, make()[1])
    slack = 1 - 0.3 / float(params.cap)
    wanted = float(found["intratemporal"])
    assert float(intratemporal(0.3, -0.05)) == pytest.approx(wanted + slack - np.hypot(wanted, slack), abs=1e-9)


def test_options_that_do_not_apply_are_refused():
    with pytest.raises(UserError, match="tau = 1"):
        make(tau=1.0)
    with pytest.raises(UserError, match=r"cap = 0\.3 is not read"):
        make(cap=0.3)
    with pytest.raises(UserError, match="Did you mean 'mean'"):
        make(labor_cap="men")
    assert (make()[0].solver, make(calibration="capped")[0].solver) == ("chebyshev", "capped_labor")
