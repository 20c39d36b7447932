"""Classical solvers against closed forms and each other, and as agents."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import classical_agent
from equimorph.agents.agent import View
from equimorph.agents.classical import SOLVERS, solve, solve_with, solver
from equimorph.agents.classical.inverse import NEWTON_ROUNDS, StateOf, state_of
from equimorph.agents.classical.log_linear import linearize
from equimorph.envs.economies.growth import Growth, steady_ratios
from equimorph.envs.economies.stochastic_ak import StochasticAK
from equimorph.envs.environment import add_agent_axis
from equimorph.errors import UserError


def x64(function):
    """Run a test in float64."""

    def test(*args, **kwargs):
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    test.__signature__ = inspect.signature(function)
    return test


def some_states(env, params, number=200):
    return jax.vmap(env.initial_state, (0, None))(jax.random.split(jax.random.key(5), number), params)


def largest_gap(one, other, states):
    return float(jnp.max(jnp.abs(jax.vmap(one)(states) - jax.vmap(other)(states))))


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_solver_is_there():
    for name in SOLVERS:
        assert callable(solver(name))


@x64
def test_what_solve_returns(monkeypatch):
    env, params = equimorph.make("BrockMirman-v0")
    assert float(solve(env, params).policy(None)[0]) == pytest.approx(0.3456)
    monkeypatch.setattr(StochasticAK, "reference", lambda self, params: None)
    assert solve(*equimorph.make("StochasticAK-v0")) is None
    monkeypatch.setattr(StochasticAK, "solver", "log_linaer")
    with pytest.raises(UserError, match="unknown solver 'log_linaer'"):
        solve(*equimorph.make("StochasticAK-v0"))


def test_an_answer_is_kept_and_both_precisions_share_it():
    env, params = equimorph.make("Growth-v0", sigma=0.013)
    first = solve_with("log_linear", env, params)
    assert solve_with("log_linear", env, params) is first
    with jax.enable_x64(True):
        wide, wide_params = equimorph.make("Growth-v0", sigma=0.013)
        assert solve_with("log_linear", wide, wide_params) is first
    assert solve_with("log_linear", env, params.replace(sigma=2 * params.sigma)) is not first


def test_traced_parameters_are_refused():
    env, params = equimorph.make("Growth-v0")
    with pytest.raises(UserError, match="needs the parameters' numbers; call it outside of jit"):
        jax.jit(lambda p: solve(env, p).policy(env.steady_state(p)[0]))(params)


# -- log-linear --------------------------------------------------------------------------------------------------------


@x64
def test_the_rule_of_brock_and_mirman_is_exact():
    env, params = equimorph.make("BrockMirman-v0")
    rule = linearize(env, params)
    np.testing.assert_allclose(rule.slopes, 0, atol=1e-12)
    np.testing.assert_allclose(rule.roots, [0.36, 0.9, 1 / (0.36 * 0.96)], rtol=1e-9)
    assert (
        largest_gap(
            solve_with("log_linear", env, params).policy, env.reference(params).policy, some_states(env, params)
        )
        < 1e-12
    )


@x64
def test_roots_of_the_growth_model():
    """The stable root of capital and its unstable twin multiply to 1 / beta (Campbell 1994)."""
    env, params = equimorph.make("Growth-v0")
    rule = linearize(env, params)
    ratios = steady_ratios(params)
    pull = (1 - params.beta * (1 - params.delta)) * (1 - params.alpha) / params.gamma
    roots = np.roots([1.0, -float(1 + 1 / params.beta + pull * ratios.consumption), float(1 / params.beta)])
    np.testing.assert_allclose(rule.roots, np.sort([*roots, 0.95]), rtol=1e-8)
    assert rule.state_names == ("log k", "log z")
    assert np.abs(np.linalg.eigvals(rule.transition)).max() == pytest.approx(min(roots), rel=1e-8)


@pytest.mark.slow
@x64
def test_the_tolerance_of_the_linear_rule_covers_what_it_leaves_out():
    env, params = equimorph.make("Growth-v0")
    rule, exact = solve_with("log_linear", env, params), solve(env, params)
    gap = largest_gap(rule.policy, exact.policy, some_states(env, params))
    assert gap < rule.tolerance < 20 * gap


class _Loose(Growth):
    """Tomorrow's saving offsets today's: any of many paths does."""

    weight = 2.0

    def expectation_terms(self, state, decision, next_state, next_decision, params, *, next_policy):
        return {"saving": next_decision.action[0]}

    def conditions(self, state, decision, expected, params):
        share = self.centre(params)[0]
        return {"saving": decision.action[0] - share + self.weight * (expected["saving"] - share)}


class _Explosive(_Loose):
    """The richer, the more is saved, beyond what brings capital back."""

    def conditions(self, state, decision, expected, params):
        steady = self.steady_state(params)[0].k
        return {"saving": decision.action[0] - self.centre(params)[0] - 5 * jnp.log(state.k / steady)}


class _Reactive(Growth):
    """Its condition looks at next period's policy."""

    def expectation_terms(self, state, decision, next_state, next_decision, params, *, next_policy):
        return {"saving": next_policy(next_state).action[0]}


class _Twice(Growth):
    """More conditions than decisions."""

    def conditions(self, state, decision, expected, params):
        found = super().conditions(state, decision, expected, params)
        return {**found, "again": found["euler"]}


class _Lost(Growth):
    """A steady state that is none."""

    def steady_state(self, params):
        state, decision = super().steady_state(params)
        return state.replace(k=1.1 * state.k), decision


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_Loose, r"3 stable roots for 2 states \(log k, log z\), so there is many stable rules"),
        (_Explosive, "1 stable roots for 2 states .*no stable rule"),
        (_Reactive, "differentiate next period's policy"),
        (_Twice, "2 conditions for 1 decisions"),
        (_Lost, "misses its own conditions by"),
        (StochasticAK, "has no steady state to linearise at"),
    ],
)
@x64
def test_what_cannot_be_linearised(kind, message):
    env = kind()
    with pytest.raises(UserError, match=message) as error:
        linearize(env, env.default_params)
    assert "\n" not in str(error.value)


# -- collocation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [(5, 3)])
@x64
def test_the_tolerance_of_collocation_covers_its_error(degree):
    env, params = equimorph.make("Growth-v0")
    coarse, exact = solve_with("chebyshev", env, params, degree=degree), solve(env, params)
    gap = largest_gap(coarse.policy, exact.policy, some_states(env, params))
    assert gap < coarse.tolerance < 20 * gap
    assert exact.tolerance < 1e-11


@x64
def test_a_box_that_follows_the_solution():
    """Strong precaution: capital lies far above the steady state, where the first box is."""
    env, params = equimorph.make("Growth-v0", gamma=5.0, sigma=0.05)
    rule, answer = linearize(env, params), solve(env, params)
    assert answer.policy.function.centre[0] > rule.centre[0] + rule.spreads[0] / 2
    assert answer.tolerance < 1e-7


@x64
def test_a_complete_basis_minimises_squares():
    env, params = equimorph.make("Growth-v0")
    answer = solve_with("chebyshev", env, params, degree=4, complete=True)
    assert answer.policy.function.coefficients.shape == (15, 1)
    assert largest_gap(answer.policy, solve(env, params).policy, some_states(env, params)) < answer.tolerance < 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"degree": 0}, "degree = 0 must be"),
        ({"degree": (3, 3, 3)}, "or 2 of them, one a state"),
        ({"width": 0.0}, "width = 0 must be above 0"),
    ],
)
def test_options_of_collocation(options, message):
    with pytest.raises(UserError, match=message):
        solve_with("chebyshev", *equimorph.make("Growth-v0"), **options)


# -- value iteration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["BrockMirman-v0", "Growth-v0"])
@x64
def test_value_iteration(id):
    env, params = equimorph.make(id)
    found, exact, states = (
        solve_with("value_iteration", env, params, points=(21, 11)),
        solve(env, params),
        some_states(env, params),
    )
    assert largest_gap(found.policy, exact.policy, states) < found.tolerance < 1e-5
    worst = largest_gap(found.value, exact.value, states)
    assert worst < 1e-3 * (1 - float(params.beta)) * float(jnp.abs(exact.value(env.steady_state(params)[0])))


def test_options_of_value_iteration():
    with pytest.raises(UserError, match="points = 5 must be at least 9"):
        solve_with("value_iteration", *equimorph.make("Growth-v0"), points=5)


# -- from observations to states ---------------------------------------------------------------------------------------


@x64
def test_a_state_is_found_behind_its_observation():
    env, params = equimorph.make("Growth-v0")

    def both(state):
        return jnp.stack([jnp.log(state.k), jnp.log(state.z)])

    inverse = state_of(env, params, both)
    states = some_states(env, params)
    seen = jax.vmap(env.observation, (0, None))(states, params)[:, None]
    found = jax.vmap(inverse)(seen)
    np.testing.assert_allclose(found.k, states.k, rtol=1e-8)
    np.testing.assert_allclose(found.z, states.z, rtol=1e-8)


class _Cash(Growth):
    """Agents see the log of cash, most of which has nothing to do with capital."""

    def observation(self, state, params):
        return jnp.stack([jnp.log(1 + 1e-3 * state.k**3), jnp.log(state.z)])


@pytest.mark.slow
@x64
@pytest.mark.extended
def test_newtons_steps_find_what_the_chord_does_not():
    """And their derivatives are those of the inverse, forward and backward."""
    env, params = _Cash(), equimorph.make("Growth-v0")[1]
    inverse = state_of(env, params, lambda state: jnp.stack([state.k, state.z]))
    assert isinstance(inverse, StateOf)
    newton = StateOf(env, inverse.params, inverse.states, None, None, 0, NEWTON_ROUNDS)
    states = some_states(env, params, 20)
    far = states.replace(k=states.k * jnp.linspace(0.2, 5, 20))
    seen = jax.vmap(env.observation, (0, None))(far, params)

    def capital(observation):
        return newton(observation[None]).k

    np.testing.assert_allclose(jax.vmap(capital)(seen), far.k, rtol=1e-9)
    exact = (1 + 1e-3 * far.k**3) / (3e-3 * far.k**2)
    for derivative in (jax.jacfwd(capital), jax.jacrev(capital)):
        np.testing.assert_allclose(jax.vmap(derivative)(seen)[:, 0], exact, rtol=1e-6)


class _Blind(Growth):
    """Agents do not see capital."""

    def observation(self, state, params):
        return jnp.stack([jnp.log(state.z), jnp.zeros_like(state.z)])


def test_a_state_that_is_not_observed_is_refused():
    env = _Blind()
    with pytest.raises(UserError, match="observations do not tell the state"):
        classical_agent("log_linear", env, env.default_params)


# -- as agents ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_solver_is_trained_saved_loaded_and_scored(tmp_path):
    short = {"num_episodes": 16, "horizon": 40}
    run = equimorph.train("Growth-v0", "chebyshev", out=tmp_path / "run", evaluation=short, progress=False)
    report = equimorph.evaluate(run)
    assert report["euler"]["max"] < 1e-10  # the run is in float32, its policy keeps the digits of float64
    assert report["policy_error"] < 1e-9
    assert abs(report["welfare_loss"]) < 1e-9
    assert report["untrained"]["policy_error"] > 1e-3
    loaded = equimorph.load(tmp_path / "run")
    env, params = run.env, run.params
    observation = env.reset_env(jax.random.key(3), params)[0]
    np.testing.assert_array_equal(loaded.policy(observation), run.policy(observation))
    untrained = run.agent.policy(run.untrained_state)
    centre = untrained(View(observation[None], jnp.ones(1, bool)))
    np.testing.assert_allclose(centre[0], env.centre(params), rtol=1e-6)


@pytest.mark.parametrize(
    ("id", "agent", "options"),
    [
        ("Cournot-v0", "lq_nash", {"calibration": "adjustment"}),
        ("Auction-v0", "closed_form", {}),
        pytest.param("Aiyagari-v0", "aiyagari", {"labor_states": 2}, marks=pytest.mark.extended),
    ],
)
def test_an_agent_does_what_the_solution_says(id, agent, options):
    env, params = equimorph.make(id, **options)
    solved = classical_agent(agent, env, params)
    state, _ = jax.jit(lambda key: solved.update(solved.init(key, env, params), None, None, key))(jax.random.key(0))
    with jax.enable_x64(True):
        env, params = equimorph.make(id, **options)
        answer, policy = solve_with(agent, env, params), solved.policy(state)

        def gap(state):
            view = View(add_agent_axis(env, env.observation(state, params)), jnp.ones(env.num_agents, bool))
            return jnp.max(jnp.abs(policy(view) - add_agent_axis(env, answer.policy(state))))

        assert float(jnp.max(jax.vmap(gap)(some_states(env, params)))) < 1e-6


@pytest.mark.slow
@x64
def test_households_are_found_behind_what_they_see():
    """Each one's cash and own state, and the aggregates."""
    env, params = equimorph.make("KrusellSmith-v0", num_households=4)

    def all_that_policies_need(state):
        return jnp.concatenate([state.a, state.own, jnp.stack([state.capital, state.z])])

    inverse, states = state_of(env, params, all_that_policies_need), some_states(env, params)
    found = jax.vmap(inverse)(jax.vmap(env.observation, (0, None))(states, params))
    np.testing.assert_allclose(
        jax.vmap(all_that_policies_need)(found), jax.vmap(all_that_policies_need)(states), rtol=1e-9, atol=1e-9
    )


@pytest.mark.extended
def test_several_seeds_and_options():
    run = equimorph.train("BrockMirman-v0", "closed_form", num_seeds=2, progress=False)
    assert len(run.seeds) == 2
    np.testing.assert_allclose([seed.policy([0.3, 1.0]) for seed in run.seeds], 0.3456, rtol=1e-6)
    run = equimorph.train("Growth-v0", "chebyshev", degree=2, env={"params": {"beta": 0.98}}, progress=False)
    assert run.agent.solver == "chebyshev"


@pytest.mark.parametrize(
    ("id", "agent", "options", "message"),
    [
        (
            "CellCount-v0",
            "chebyshev",
            {},
            "'chebyshev' solves economies, and CellCount-v0 is none; train it with 'mappo'",
        ),
        ("Growth-v0", "closed_form", {}, "no closed form for these settings; use its solver, 'chebyshev'"),
        ("StochasticAK-v0", "value_iteration", {}, "no steady state to linearise at"),
        ("Growth-v0", "lq_nash", {}, "'lq_nash' solves linear-quadratic games only, .*; use its solver, 'chebyshev'"),
        ("FishWar-v0", "chebyshev", {}, "differentiate next period's policy, .*; use 'closed_form'"),
        ("Cournot-v0", "chebyshev", {}, "no steady state to linearise at; use 'closed_form'"),
        ("KrusellSmith-v0", "aiyagari", {}, "is for Aiyagari-v0; use its solver, 'krusell_smith'"),
        (
            "Irreversible-v0",
            "log_linear",
            {},
            "limit irreversibility binds within 3 .*; use its solver, 'irreversible'",
        ),
        ("Growth-v0", "chebishev", {}, "unknown agent 'chebishev'. Did you mean 'chebyshev'"),
        ("Growth-v0", "chebyshev", {"degre": 3}, "Did you mean 'agent.degree'"),
    ],
)
def test_pairs_that_do_not_fit(id, agent, options, message):
    with pytest.raises(UserError, match=message):
        equimorph.train(id, agent, progress=False, **options)


def test_an_agent_of_another_calibration_is_refused():
    env, params = equimorph.make("Growth-v0")
    agent = classical_agent("log_linear", env, params)
    agent.check(env, params, 1, 1)
    with pytest.raises(UserError, match="another variant or calibration"):
        agent.check(env, params.replace(beta=0.98 * jnp.ones(())), 1, 1)
