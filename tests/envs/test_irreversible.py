"""Growth with a floor under investment: independent numbers, and the answer's own equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import equimorph
from equimorph.agents.classical import solve, solve_with
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.errors import UserError
from equimorph.training.evaluation.errors import error_report
from equimorph.training.evaluation.simulate import simulate


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def make(**overrides):
    return equimorph.make("Irreversible-v0", **overrides)


def at(env, params, k=1.0, z=0.0):
    """The state with `k` times steady-state capital and log productivity `z`, numbers or arrays of them."""
    state = env.steady_state(params)[0]
    k, z = np.broadcast_arrays(k, z)
    time = jnp.zeros(k.shape, jnp.int32)
    return state.replace(time=time, k=state.k * jnp.asarray(k), z=jnp.exp(jnp.asarray(z, float)))


def decide(env, params):
    answer = solve(env, params)
    return lambda state: Decision(answer.policy(state), answer.auxiliary(state))


def normal_nodes(size=4001):
    """A fine rule: the trapezoid's error at a kink is the square of its step, a Gauss rule's is far larger."""
    x = np.linspace(-8, 8, size)
    density = np.exp(-(x**2) / 2)
    return jnp.asarray(x[:, None]), jnp.asarray(density / density.sum())


@pytest.fixture(scope="module")
def path():
    """A long simulation of the answer: steps, paths."""
    with jax.enable_x64(True):
        env, params = make()
        policy = solve(env, params).policy

        def step(state, shock):
            action = jax.vmap(policy)(state)
            after = jax.vmap(lambda s, a, e: env.transition(s, a, e[None], params))(state, action, shock)
            return after, (action[:, 0], jax.vmap(lambda s, a: env.definitions(s, a, params))(state, action), state)

        shocks = jax.random.normal(jax.random.key(3), (600, 4000))
        start = at(env, params, np.ones(4000))
        shares, quantities, states = jax.jit(lambda: jax.lax.scan(step, start, shocks))()[1]
        return jax.tree.map(lambda leaf: np.asarray(leaf[100:]), (shares, quantities, states))


def test_steady_state(known):
    env, params = make()
    state, decision = env.steady_state(params)
    found = env.definitions(state, decision.action, params)
    assert [float(x) for x in (state.k, found["investment"], found["consumption"])] == known("irreversible.ss(k,i,c)")
    np.testing.assert_allclose(env.centre(params), decision.action)


def test_points_of_the_policy(known):
    """An independent solution on a discrete grid of z, which errs by up to 10^-5.57 of consumption."""
    env, params = make()
    states = at(env, params, [1.0, 1.0, 1.0, 0.95], [0.0, -0.03, 0.03, -0.06])
    found = jax.jit(jax.vmap(decide(env, params)))(states)
    quantities = jax.vmap(lambda s, a: env.definitions(s, a, params))(states, found.action)
    assert float(quantities["consumption"][1]) == known("irreversible.c(kss,z=-.03)")
    table = [1.16298583, 1.12736076, 1.18245394, 1.05988865]
    np.testing.assert_allclose(quantities["consumption"], table, rtol=3e-6)
    ratio = quantities["investment"] / (params.delta * states.k[0])
    np.testing.assert_allclose(ratio, [1.00103660, 0.975, 1.07667026, 0.975], atol=1e-5)
    np.testing.assert_allclose(found.auxiliary[:, 0], [0, 0.03285771, 0, 0.08258850], atol=2e-5)


def test_how_often_the_floor_binds_on_a_chain(known):
    """The known share is that of a chain of productivities within 3 standard deviations, without the tails."""
    env, params = make()
    spread = float(params.sigma / np.sqrt(1 - params.rho**2))
    log_z = np.linspace(-3, 3, 121) * spread
    upper = norm.cdf((log_z + (log_z[1] - log_z[0]) / 2 - float(params.rho) * log_z[:, None]) / float(params.sigma))
    rows = np.diff(upper, axis=1, prepend=0)
    rows[:, -1] += 1 - upper[:, -1]
    k = np.linspace(0.7, 1.35, 400)
    grid = at(env, params, k[:, None], log_z)
    flat, policy = jax.tree.map(lambda leaf: leaf.reshape(-1), grid), solve(env, params).policy

    def move(state):
        action = policy(state)
        return action[0] == 0, env.transition(state, action, jnp.zeros(1), params).k

    binding, following = (np.asarray(x).reshape(grid.k.shape) for x in jax.jit(jax.vmap(move))(flat))
    k = np.asarray(grid.k[:, 0])
    lower = np.clip(np.searchsorted(k, following) - 1, 0, len(k) - 2)
    weight = (following - k[lower]) / (k[lower + 1] - k[lower])
    index = lower * len(log_z) + np.arange(len(log_z))
    mass = np.full(grid.k.shape, 1 / grid.k.size)
    for _ in range(600):
        moved = np.zeros(mass.size)
        np.add.at(moved, index, mass * (1 - weight))
        np.add.at(moved, index + len(log_z), mass * weight)
        mass = moved.reshape(mass.shape) @ rows
    assert float((mass * binding).sum()) == known("irreversible.binding_share")


def test_how_often_the_floor_binds(path):
    """Continuous productivity has tails, in which it binds a little more often than on the chain."""
    shares, quantities, _ = path
    assert np.mean(shares == 0) == pytest.approx(0.363, abs=0.004)
    log_i = np.log(quantities["investment"])
    centred = log_i - log_i.mean()
    assert log_i.std() == pytest.approx(0.0519, abs=0.0006)
    assert np.mean(centred**3) / log_i.std() ** 3 == pytest.approx(1.14, abs=0.05)


def test_the_report_counts_late_periods_apart():
    """Episodes start with capital far from where it settles; half-way it has, and the exact policy's share is known."""
    env, params = make()
    policy = solve(env, params).policy

    @jax.jit
    def slacks(key):
        found = simulate(lambda state, _: policy(state), params, key, env, 4096, 100, 100)
        at = jax.vmap(lambda s, a: env.slacks(s, Decision(a), params))(found["states"], found["actions"])
        return at, found["states"].time

    found, time = jax.tree.map(np.asarray, slacks(jax.random.key(0)))
    measured = {"euler": {}, "residuals": {}, "slacks": found}
    limit = error_report(measured, env, time >= 50)["binding"]["irreversibility"]
    # Productivity stays away for long: 4,096 paths tell the share to a third of a percentage point.
    assert limit["late_share"] == pytest.approx(0.362, abs=0.01)
    binds = found["irreversibility"].reshape(100, -1) < 1e-4
    assert [limit["share"], limit["late_share"]] == pytest.approx([binds.mean(), binds[50:].mean()])
    assert "late_share" not in error_report(measured, env)["binding"]["irreversibility"]


def test_without_a_floor_it_is_the_growth_economy():
    """Two solvers that share nothing: splines on a mesh here, collocation of polynomials there."""
    env, params = make(calibration="unconstrained")
    same = {name: getattr(params, name) for name in ("alpha", "beta", "gamma", "delta", "rho", "sigma")}
    growth, its_params = equimorph.make("Growth-v0", normalised=False, scale=1.0, **same)
    states = at(env, params, [1.0, 1.05, 0.95, 1.0], [0.0, 0.0, 0.03, -0.05])
    its_states = growth.steady_state(its_params)[0].replace(time=states.time, k=states.k, z=states.z)

    def consumption(env, params, policy, states):
        one = jax.vmap(lambda s: env.definitions(s, policy(s), params)["consumption"])
        return np.asarray(jax.jit(one)(states))

    found = consumption(env, params, solve(env, params).policy, states)
    expected = consumption(growth, its_params, solve(growth, its_params).policy, its_states)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("phi", [0.975, 0.0])
def test_the_answer_scores_as_exact(phi):
    env, params = make(phi=phi)
    k, z = np.meshgrid(np.linspace(0.8, 1.25, 7), np.linspace(-0.09, 0.09, 9))
    nodes, weights = normal_nodes()
    policy = decide(env, params)

    @jax.jit
    def found(states):
        def one(state):
            report = residuals(policy, state, nodes, weights, env, params, report=env.euler_error)
            conditions = residuals(policy, state, nodes, weights, env, params)
            return report, conditions, env.slacks(state, policy(state), params)

        return jax.lax.map(one, states)

    report, conditions, slacks = found(at(env, params, k.ravel(), z.ravel()))
    assert np.max(np.abs(report["euler"])) < 1e-7
    assert np.max(np.abs(conditions["euler"])) < 2e-7
    assert np.max(np.abs(conditions["irreversibility"])) < 1e-7
    assert np.min(slacks["irreversibility"]) == (0 if phi else pytest.approx(0.77, abs=0.01))


def test_the_value_solves_its_recursion():
    env, params = make()
    policy, value = solve(env, params).policy, solve(env, params).value
    nodes, weights = normal_nodes(401)

    def recursion(state):
        action = policy(state)
        after = jax.vmap(lambda shock: value(env.transition(state, action, shock, params)))(nodes)
        return env.reward(state, action, params) + params.beta * weights @ after

    states = at(env, params, [0.8, 1.0, 1.0, 1.0, 1.2], [0.05, -0.04, 0.0, 0.03, -0.02])
    expected = np.asarray(jax.jit(jax.vmap(value))(states))
    np.testing.assert_allclose(jax.jit(jax.vmap(recursion))(states), expected, rtol=1e-8)


def test_one_percent_off():
    env, params = make()
    policy = jax.jit(decide(env, params))
    nodes, weights = normal_nodes(401)

    @jax.jit
    def reported(state, off):
        def report(s, d, expected, p):
            return env.euler_error(s, off, expected, p)

        return residuals(policy, state, nodes, weights, env, params, report=report)["euler"]

    for z, factor in ((0.03, 1.01), (0.03, 0.99), (-0.03, 0.99)):
        state = at(env, params, 1.0, z)
        best = policy(state)
        off = best._replace(action=1 - factor * (1 - best.action))

        found = reported(state, off)
        # beta E is (1 - m) u'(c); the multiplier m is in units of marginal utility, which moves with consumption.
        m, g = float(best.auxiliary[0]), float(params.gamma)
        assert float(found) == pytest.approx((1 - m + m * factor**-g) ** (-1 / g) / factor - 1, abs=1e-7)
    value = solve(env, params).value(at(env, params))
    loss = env.consumption_equivalent(value * 0.99 ** (1 - params.gamma), value, params)
    assert float(loss) == pytest.approx(0.01, rel=1e-9)


def test_complementarity_is_measured_by_its_own_units():
    """FB(mu c^gamma, (i - phi i_ss) / i_ss): zero at (m, 0) and (0, y), not between."""
    env, params = make()
    state = at(env, params)
    expected = {"saving": jnp.ones(())}
    steady = env.steady_state(params)[1].action
    for share, multiplier, found in ((0.0, 0.3, 0.0), (steady, 0.0, 0.0), (steady, 0.3, 0.325 - np.hypot(0.3, 0.025))):
        decision = Decision(jnp.broadcast_to(share, (1,)), jnp.array([multiplier]))
        conditions = env.conditions(state, decision, expected, params)
        assert float(conditions["irreversibility"]) == pytest.approx(found, abs=1e-7)


def test_output_that_does_not_pay_for_the_floor_is_flagged():
    env, params = make()
    poor = at(env, params, 1e-3)
    assert bool(env.floored(poor, jnp.array([0.5]), params))
    assert np.isfinite(env.reward(poor, jnp.array([0.5]), params))
    assert not bool(env.floored(at(env, params), jnp.array([0.5]), params))


def test_the_stated_tolerance():
    env, params = make()
    assert 0 < solve(env, params).tolerance < 1e-7


def test_the_answer_in_single_precision():
    env, params = make()
    wide = solve(env, params).policy(at(env, params, 0.97, 0.02))
    with jax.enable_x64(False):
        env, params = make()
        narrow = solve(env, params).policy(at(env, params, 0.97, 0.02))
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, wide, atol=1e-6)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="gamma = 1 is log utility"):
        make(gamma=1.0)
    with pytest.raises(UserError, match="parameter phi"):
        make(phi=1.0)
    with pytest.raises(UserError, match="'irreversible' solves Irreversible-v0 only; use 'closed_form'"):
        solve_with("irreversible", *equimorph.make("BrockMirman-v0"))
