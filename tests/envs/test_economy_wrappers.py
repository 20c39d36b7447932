"""Wrapped economies: what agents see of the past and of parameters, and that nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.agent import Policy
from equimorph.agents.classical import solve
from equimorph.agents.deqn.residuals import residuals
from equimorph.envs.economy import Decision
from equimorph.envs.family import Family
from equimorph.envs.history import EconomyHistory, History, window_of, with_window
from equimorph.envs.wrappers import RescaleAction, innermost
from equimorph.errors import UserError
from equimorph.training.config import build, dump_config, parse, resolve
from equimorph.training.evaluation.scoring import evaluate_policies
from equimorph.training.sections import EnvConfig
from equimorph.training.settings import load_config


def close(found, expected, rtol=1e-5, atol=1e-6):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("id", "options"),
    [
        pytest.param("CellCount-v0", {"mode": "hazard", "capacity": 24, "window": 3}, marks=pytest.mark.extended),
        pytest.param("OLG-v0", {"window": 2}, marks=pytest.mark.extended),
        (
            "KrusellSmith-v0",
            {"num_households": 2, "window": 3, "inputs": {"beta": (0.95, 0.99), "delta": (0.02, 0.03)}},
        ),
    ],
)
@pytest.mark.extended
def test_wrapped_environments_keep_the_contract(id, options):
    equimorph.check_environment(*equimorph.make(id, **options))


# -- a window ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("OLG-v0", {}),
        pytest.param("CellCount-v0", {"mode": "hazard", "capacity": 24}, marks=pytest.mark.extended),
    ],
)
def test_a_window_is_what_its_agent_saw(id, options):
    env, params = equimorph.make(id, **options)
    wrapped = with_window(env, 3)
    key = jax.random.key(0)
    seen, state = jax.jit(wrapped.reset)(key, params)
    first, inner = jax.jit(env.reset)(key, params)
    agents = env.num_agents
    diaries = [[first[slot]] for slot in range(agents)]  # of whoever is in the slot
    heirs = jax.jit(env.inherits)
    moved = 0
    for time in range(6):
        for slot in range(agents):
            rows = np.asarray(diaries[slot][-3:])
            expected = np.zeros((3, rows.shape[1] + 1))
            expected[3 - len(rows) :] = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
            np.testing.assert_allclose(seen[slot], expected, rtol=1e-5, atol=1e-6)
        key_step = jax.random.fold_in(key, time)
        action = wrapped.action_space(params).sample(key_step)
        before = inner
        observation, inner, *_ = jax.jit(env.step_env)(key_step, inner, action, params)
        seen, state, *_ = jax.jit(wrapped.step_env)(key_step, state, action, params)
        source = np.asarray(heirs(before, inner, params))
        moved += int((source != np.arange(agents)).sum())
        diaries = [[*(diaries[source[slot]] if source[slot] >= 0 else []), observation[slot]] for slot in range(agents)]
        close(innermost(state).replace(time=0), inner.replace(time=0))
    assert moved > 0  # people aged, or cells were born


def along(env, params, steps=4):
    """A state some periods after a start, at the centre's actions."""
    state = env.initial_state(jax.random.key(3), params)
    action = central(env, params).action
    for time in range(steps):
        shock = env.shocks(params).sample(jax.random.key(time), state)
        state = env.transition(state, action, shock, params).replace(time=state.time + 1)
    return state


def central(env, params):
    centre = env.centre(params)
    return Decision(centre if env.num_agents == 1 else jnp.stack([centre] * env.num_agents))


@pytest.mark.parametrize("id", ["FishWar-v0", "BufferStock-v0"])
def test_conditions_are_the_economys_own(id):
    """For a rule that depends on the newest observation, with a slope: rivals' reactions are read as well."""
    env, params = equimorph.make(id)
    wrapped = with_window(env, 3)

    def rule(observation):
        seen = observation[..., :1] if observation.shape[-2:] != (3, env.observation_size + 1) else newest(observation)
        return Decision(central(env, params).action * (1 + 0.1 * jnp.tanh(seen)))

    def newest(observation):
        return observation[..., -1, :1]

    def at(env, state):
        law = env.shocks(params)
        nodes, weights = law.nodes(law.rules[0], 5, state)
        return residuals(lambda s: rule(env.observation(s, params)), state, nodes, weights, env, params)

    state = jax.jit(lambda: along(wrapped, params))()
    assert np.asarray(state.rows)[..., -1].all()
    close(jax.jit(lambda s: at(wrapped, s))(state), jax.jit(lambda s: at(env, s))(wrapped.core(state)), rtol=1e-4)


def test_the_next_window_moves_with_the_action():
    env, params = equimorph.make("BrockMirman-v0")
    wrapped = with_window(env, 2)
    state = wrapped.initial_state(jax.random.key(0), params)
    shock = jnp.zeros(1)

    def seen(one, state):
        return jax.jacfwd(lambda a: one.observation(one.transition(state, a, shock, params), params))(jnp.array([0.3]))

    slope = seen(wrapped, state)
    np.testing.assert_allclose(slope[1, :-1], seen(env, wrapped.core(state)), rtol=1e-6)
    assert np.abs(slope[1]).max() > 0.1
    assert (slope[0] == 0).all()


class NewestOnly(Policy):
    """A policy of single observations, on windows."""

    inner: Policy

    def _view(self, view):
        return view._replace(observation=view.observation[..., -1, :-1])

    def __call__(self, view, key=None):
        return self.inner(self._view(view), key)

    def decision(self, view):
        return self.inner.decision(self._view(view))


@pytest.mark.slow
@pytest.mark.extended
def test_reports_are_those_of_the_economy():
    run = equimorph.train("Growth-v0", "deqn", iterations=1, progress=False)
    policy = run.agent.policy(run.state)
    (plain,) = evaluate_policies(EnvConfig(id="Growth-v0"), [policy], 8, 20, 1)
    wrapped = EnvConfig.model_validate({"id": "Growth-v0", "window": 3})
    (found,) = evaluate_policies(wrapped, [NewestOnly(policy)], 8, 20, 1)
    assert found["reference"]["source"] == "chebyshev"
    leaves, structure = jax.tree.flatten(plain)
    assert jax.tree.structure(found) == structure
    for a, b in zip(jax.tree.leaves(found), leaves, strict=True):
        assert a == b if isinstance(b, str) else a == pytest.approx(b, rel=1e-6, abs=1e-9)


def test_solvers_solve_what_is_inside():
    env, params = equimorph.make("BufferStock-v0")
    inner, outer = solve(env, params), solve(with_window(env, 3), params)
    assert outer.policy.function is inner.policy
    with pytest.raises(UserError, match=r"a solver solves one calibration, and this is a family in beta"):
        equimorph.agents.classical_agent(
            "endogenous_grid", *equimorph.make("BufferStock-v0", inputs={"beta": (0.9, 0.95)})
        )
    run = equimorph.train("BrockMirman-v0", "closed_form", iterations=1, env={"window": 2}, progress=False)
    np.testing.assert_allclose(run.policy([[0.0, 0.0, 0.0], [0.3, -0.2, 1.0]]), [0.36 * 0.96], rtol=1e-6)


# -- a family ----------------------------------------------------------------------------------------------------


def test_a_family_is_each_of_its_members():
    """Every hook in a state is the economy's at that state's parameters, the shocks' law included."""
    inputs = {"beta": (0.9, 0.95), "growth": (1.0, 1.02), "sd_permanent": (0.05, 0.15)}
    economy, _ = equimorph.make("BufferStock-v0")
    env, params = equimorph.make("BufferStock-v0", inputs=inputs)
    decision = Decision(jnp.array([0.4]))

    def hooks(one, key, state, params):
        law = one.shocks(params)
        shock = law.sample(key, state)
        following = one.transition(state, decision.action, shock, params)
        terms = one.expectation_terms(state, decision, following, decision, params, next_policy=lambda _: decision)
        return [
            *(shock, law.nodes(law.rules[0], 3, state), innermost(following), terms),
            one.conditions(state, decision, terms, params),
            one.reward(state, decision.action, params),
            one.effective_discount(state, decision.action, params),
            one.step_discount(state, following, params),
        ]

    def both(key):
        state = env.initial_state(key, params)
        own, core = env.at(state, params), env.core(state)
        ours, theirs = hooks(env, key, state, params), hooks(economy, key, core, own)
        return ours, theirs, own, env.observation(state, params), economy.observation(core, own)

    ours, theirs, own, seen, plainly = jax.jit(jax.vmap(both))(jax.random.split(jax.random.key(0), 64))
    close(ours, theirs)
    for k, (name, low, high) in enumerate(env.inputs):
        drawn = np.asarray(getattr(own, name))
        assert low <= drawn.min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < drawn.max() <= high
        np.testing.assert_allclose(seen[:, plainly.shape[1] + k], 2 * (drawn - low) / (high - low) - 1, atol=1e-5)
    np.testing.assert_allclose(seen[:, : plainly.shape[1]], plainly, rtol=1e-6)


def test_the_known_answer_is_that_of_the_states_parameters():
    env, params = equimorph.make("StochasticAK-v0", inputs={"gamma": (1.5, 3.0), "beta": (0.9, 0.95)})
    states = jax.vmap(env.initial_state, (0, None))(jax.random.split(jax.random.key(1), 8), params)
    beta, gamma = np.asarray(states.drawn, float).T
    mu, sigma = 0.03, 0.1
    best = (beta * np.exp((1 - gamma) * mu + (1 - gamma) ** 2 * sigma**2 / 2)) ** (1 / gamma)
    reference = env.reference(params)
    np.testing.assert_allclose(jax.vmap(reference.policy)(states)[:, 0], best, rtol=1e-5)
    wealth = np.asarray(states.inner.k, float)
    value = (1 - best) ** -gamma * wealth ** (1 - gamma) / (1 - gamma)
    np.testing.assert_allclose(jax.vmap(reference.value)(states), value, rtol=1e-4)
    assert np.ptp(best) > 0.01
    assert env.solver is None


# -- how they are made -------------------------------------------------------------------------------------------


def test_both_combine_from_a_configuration(tmp_path):
    sets = ["env.window=4", "env.inputs.beta=[0.9, 0.97]"]
    config = resolve("Growth-v0", "deqn", sets=sets)
    env, params, _ = build(config)
    assert env.name == "History(Family(Growth-v0))"
    assert env.observation_space(params).shape == (4, 2 + 1 + 1)
    assert float(params.beta) == pytest.approx(0.935)
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert build(parse(load_config(path)))[0] == env
    assert env != equimorph.make("Growth-v0", window=3, inputs={"beta": (0.9, 0.97)})[0]
    assert (window_of(env), window_of(env.inner), window_of(RescaleAction(env))) == (4, None, 4)
    assert isinstance(env, EconomyHistory)
    assert isinstance(equimorph.make("CartPole-v1", window=2)[0], History)


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("Growth-v0", {"window": 0}, r"window must be a whole number of at least 1, got 0"),
        ("Growth-v0", {"window": True}, r"whole number of at least 1, got True"),
        ("KrusellSmith-v0", {"window": 2, "households": "histogram"}, r"nobody stays on.*households='agents'"),
        ("Growth-v0", {"inputs": {"bta": (0.9, 0.97)}}, r"parameter of Growth-v0 in inputs 'bta'. Did you mean 'beta'"),
        ("Growth-v0", {"inputs": {"beta": (0.97, 0.9)}}, r"inputs beta = \[0.97, 0.9\] is empty"),
        ("Growth-v0", {"inputs": {"beta": (0.9, 1.0)}}, r"inputs beta = \[0.9, 1\] must lie in \(0, 1\)"),
        ("Growth-v0", {"inputs": {"beta": 0.9}}, r"inputs beta must be two numbers, \[low, high\], got 0.9"),
        ("Growth-v0", {"inputs": {}}, r"inputs must give parameters their ranges"),
        ("Growth-v0", {"inputs": {"max_steps_in_episode": (3, 5)}}, r"is a whole number, and inputs are single reals"),
        ("LinearTax-v0", {"inputs": {"skills": (1.0, 2.0)}}, r"several numbers, and inputs are single reals"),
        ("Growth-v0", {"inputs": {"beta": (0.9, 0.97)}, "beta": 0.95}, r"beta is both set and one of inputs"),
        ("StochasticAK-v0", {"inputs": {"beta": (0.5, 0.95)}}, r"inputs at beta = 0.5: .*best saved share"),
        ("CellCount-v0", {"inputs": {"beta": (0.5, 0.95)}}, r"parameters of an economy, and CellCount-v0 is none"),
    ],
)
def test_mistakes_are_named(id, options, message):
    with pytest.raises(UserError, match=message) as error:
        equimorph.make(id, **options)
    assert "\n" not in str(error.value)


def test_a_family_goes_inside_a_window():
    with pytest.raises(UserError, match=r"History\(Family\(...\)\)"):
        Family(equimorph.make("Growth-v0", window=2)[0], {"beta": (0.9, 0.97)})
