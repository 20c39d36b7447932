"""The whole report against closed forms: errors off the path, stability, moments, responses, limits, games."""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import equimorph
from equimorph.agents import classical
from equimorph.agents.agent import Policy
from equimorph.envs import environment, shocks, spaces
from equimorph.envs.economies.brock_mirman import BrockMirman, spread_k, spread_z
from equimorph.envs.economy import Decision, Economy
from equimorph.envs.environment import Reference
from equimorph.errors import UserError
from equimorph.training.evaluation.dynamics import dynamic_error
from equimorph.training.evaluation.economies import Case, evaluate_economy
from equimorph.training.evaluation.errors import error_report, finite_part, measure, quantiles
from equimorph.training.evaluation.full import verdict
from equimorph.training.evaluation.longrun import long_run
from equimorph.training.evaluation.responses import responses
from equimorph.training.evaluation.rules import PolicyRule, known_answer
from equimorph.training.evaluation.stability import contraction, fixed_point
from equimorph.training.evaluation.states import box, coordinates_of, packed, sphere

STAR = 0.3456


@pytest.fixture
def full(constant):
    """A function to the whole report of a constant action, in float64."""

    def report(env, params, share):
        with jax.enable_x64(True):
            return evaluate_economy(env, params, [constant(share)], 64, None, 0, full=True)[0]

    return report


# -- one percent off the known answer ------------------------------------------------------------------------------


def test_one_percent_off_scores_as_the_closed_form_says_everywhere(brock_mirman):
    _, _, found = brock_mirman
    assert found["regret"] == pytest.approx(1.006e-3, abs=1e-6)
    assert found["welfare_loss"] == pytest.approx(4.0e-5, abs=1e-6)
    assert found["policy_error"] == pytest.approx(0.01 * STAR, abs=1e-12)
    # e = s / (alpha beta) - 1 in consumption units, and the residual 1 - alpha beta / s, in every state.
    for place in ("euler", "euler_box", "euler_sphere_0.01", "euler_sphere_0.1", "euler_sphere_1", "euler_sphere_sd"):
        assert found[place]["median"] == pytest.approx(0.01, abs=1e-9), place
        assert found[place]["max"] == pytest.approx(0.01, abs=1e-9), place
    assert found["residuals"]["euler"]["p99"] == pytest.approx(1 - 1 / 1.01, abs=1e-9)
    assert found["reference"]["euler"]["max"] < 1e-9
    assert found["reference"]["source"] == "closed form"


def test_fixed_point_and_speed_of_a_constant_share_are_the_closed_forms(brock_mirman):
    """k' = s z k^alpha rests at s^(1/(1-alpha)); roots alpha and rho: differences die out by rho = .9 a period."""
    _, params, found = brock_mirman
    stability = found["stability"]
    assert stability["fixed_point"]["k"] == pytest.approx((1.01 * STAR) ** (1 / (1 - 0.36)), rel=1e-12)
    assert stability["spectral_radius"] == pytest.approx(float(params.rho), abs=1e-10)
    assert stability["from_steady_state"] == pytest.approx(np.log(1.01) / (1 - 0.36), abs=1e-10)
    assert stability["contraction"] == pytest.approx(0.9, abs=max(4 * stability["contraction_se"], 1e-3))
    assert stability["bounded"]
    assert stability["left"] == stability["not_finite"] == stability["floored"] == 0


def test_solved_needs_small_residuals_too(brock_mirman):
    _, _, found = brock_mirman
    assert found["verdict"] == {"residuals": False, "stability": True, "bounded": True}
    assert found["solved"] is False
    better = found | {"euler": quantiles(np.full(10, 1e-4))}
    assert verdict(better) == {"residuals": True, "stability": True, "bounded": True}
    explosive = better | {"stability": found["stability"] | {"spectral_radius": 1.02}}
    assert verdict(explosive)["stability"] is False
    elsewhere = better | {"stability": found["stability"] | {"from_steady_state": 2.08}}
    assert verdict(elsewhere)["stability"] is False
    assert verdict(better, lost=True)["stability"] is False
    assert verdict(better | {"euler": quantiles(np.array([1e-4, np.nan]))})["residuals"] is False
    assert verdict(better | {"complementarity": {"limit": quantiles(np.full(3, 0.1))}})["residuals"] is False


def test_moments_of_a_lognormal_economy_lie_within_their_standard_errors(brock_mirman):
    """Under a constant share log z and log consumption are normal; autocorrelations follow from the AR(1)s."""
    _, params, found = brock_mirman
    with jax.enable_x64(True):
        s_z, s_k = float(spread_z(params)), float(spread_k(params))
    a, rho, s = 0.36, 0.9, 1.01 * STAR
    # log c = log (1 - s) + log z + a log k; log k is an AR(1) driven by log z.
    covariance = s_z**2 * rho / (1 - a * rho)
    variance = s_z**2 + a**2 * s_k**2 + 2 * a * covariance
    next_k_z = (s_z**2 + a * covariance, a * covariance + a**2 * s_k**2)
    lagged = rho * (s_z**2 + a * covariance) + a * (next_k_z[0] + next_k_z[1])
    mean_log = np.log(1 - s) + a * np.log(s) / (1 - a)
    mean = np.exp(mean_log + variance / 2)
    ours = found["moments"]["consumption"]
    w = np.exp(variance)
    wanted = {
        "mean": mean,
        "sd": mean * np.sqrt(w - 1),
        "autocorrelation": (np.exp(lagged) - 1) / (w - 1),
        "skewness": (w + 2) * np.sqrt(w - 1),
    }
    for name, value in wanted.items():
        assert ours[name] == pytest.approx(value, abs=4 * ours[f"{name}_se"]), name
        assert 0 < ours[f"{name}_se"] < 0.06 * abs(value) + 0.01, name


def test_responses_are_the_closed_forms(brock_mirman):
    """log z moves by sigma rho^h, log y by the AR(2) that alpha and rho make."""
    _, _, found = brock_mirman
    response = found["responses"]["shock"]
    a, rho, sigma = 0.36, 0.9, 0.04
    horizon = np.arange(40)
    log_y = sigma * np.array([sum(a**j * rho ** (h - j) for j in range(h + 1)) for h in horizon])
    single = response["deterministic"]
    np.testing.assert_allclose(single["z"], 100 * np.expm1(sigma * rho**horizon), rtol=1e-9)
    np.testing.assert_allclose(single["output"], 100 * np.expm1(log_y), rtol=1e-9)
    # Given eps = 1, relative to the mean over eps: E exp(x eps) = exp(x^2 / 2) is taken out.
    many = 100 * np.expm1(log_y - log_y**2 / 2)
    gap = np.abs(np.array(response["generalised"]["output"]) - many)
    assert np.all(gap < 4 * np.array(response["generalised_se"]["output"]) + 2e-3)
    assert response["units"]["output"] == "%"


def test_curves_hold_the_policy_the_reference_and_the_errors(brock_mirman):
    _, _, found = brock_mirman
    curves = found["curves"]
    assert [cut["along"] for cut in curves["slices"]] == ["k", "z"]
    for cut in curves["slices"]:
        (line,) = cut["lines"]
        np.testing.assert_allclose(line["action"]["action"], 1.01 * STAR)
        np.testing.assert_allclose(line["reference"]["action"], STAR)
        assert np.all(np.diff(cut["x"]) > 0)
    np.testing.assert_allclose(curves["error_map"]["errors"], -2, atol=1e-6)
    path = curves["path"]["consumption"]
    assert path["policy"][0] / path["reference"][0] == pytest.approx((1 - 1.01 * STAR) / (1 - STAR))


def test_exact_policy_is_solved(full):
    with jax.enable_x64(True):
        env, params = equimorph.make("BrockMirman-v0")
    found = full(env, params, STAR)
    assert found["solved"] is True
    assert found["euler_box"]["max"] < 1e-9
    assert found["euler_sphere_1"]["max"] < 1e-9
    assert abs(found["regret"]) < 1e-9


# -- states --------------------------------------------------------------------------------------------------------


@pytest.fixture
def visited():
    """Brock and Mirman's first states, in float64."""
    with jax.enable_x64(True):
        env, params = equimorph.make("BrockMirman-v0")
        yield env, params, jax.vmap(env.initial_state, (0, None))(jax.random.split(jax.random.key(0), 4000), params)


def test_spheres_have_their_radius_and_boxes_their_width(visited):
    env, params, states = visited
    coordinates = coordinates_of(states)
    assert coordinates.names == ("k", "z")
    assert coordinates.logs == (True, True)
    x = packed(coordinates, states)
    centre = np.asarray(coordinates(env.steady_state(params)[0]))
    for radius in (0.01, 1.0):
        points = packed(coordinates, sphere(coordinates, states, centre, radius, 500, 0, sd=False))
        np.testing.assert_allclose(np.linalg.norm(points - centre, axis=1), radius, rtol=1e-9)
        assert np.abs((points - centre).mean(axis=0)).max() < 0.2 * radius
    inside = packed(coordinates, box(coordinates, states, 2000, 0))
    half = 3 * x.std(axis=0)
    assert np.all(np.abs(inside - x.mean(axis=0)) <= half)
    assert np.all(np.abs(inside - x.mean(axis=0)).max(axis=0) > 0.99 * half)


def test_errors_that_are_not_finite_are_counted(visited, constant):
    env, params, states = visited
    broken = dataclasses.replace(states, k=states.k.at[:400].set(jnp.nan))
    kept, lost = finite_part(broken)
    assert lost == 400
    assert kept.k.shape == (3600,)
    rule = PolicyRule(constant(1.01 * STAR))
    found = error_report(measure(rule, broken, env, params), env)
    assert found["euler"]["not_finite"] == pytest.approx(0.1)
    assert found["euler"]["max"] == pytest.approx(0.01, abs=1e-9)
    assert np.isnan(quantiles(np.full(3, np.nan))["mean"])


def test_chunks_do_not_change_what_is_measured(visited, constant):
    """4,000 states are measured in chunks that do not divide them; a state alone gives the same."""
    env, params, states = visited
    rule = PolicyRule(constant(0.3))
    whole = measure(rule, states, env, params)
    last = measure(rule, jax.tree.map(lambda leaf: leaf[-1:], states), env, params)
    assert whole["residuals"]["euler"].shape == (4000,)
    np.testing.assert_allclose(whole["residuals"]["euler"][-1:], last["residuals"]["euler"], rtol=1e-12)
    np.testing.assert_allclose(whole["residuals"]["euler"], STAR / 0.3 - 1, rtol=1e-9)


# -- tiny economies ------------------------------------------------------------------------------------------------


@struct.dataclass
class TinyState(environment.EnvState):
    x: jax.Array


@struct.dataclass
class TinyParams(environment.EnvParams):
    beta: float = environment.parameter(0.9, environment.SHARE, "discount factor")
    slope: float = environment.parameter(0.5, environment.REAL, "how much of x is left next period")
    max_steps_in_episode: int = 50


@dataclasses.dataclass(frozen=True)
class Tiny(Economy):
    """x' = slope x + shock, whatever is done; the action a wants to be max(x, 0): it cannot be below 0.

    The multiplier of a >= 0 is an auxiliary output where `priced`.
    """

    params_type: ClassVar = TinyParams
    observation_size: ClassVar[int] = 1
    complementarity: ClassVar[tuple[str, ...]] = ("limit",)
    priced: bool = False

    def agent_action_space(self, params):
        return spaces.Box(0.0, 10.0, (1,), jnp.result_type(float))

    def initial_state(self, key, params):
        return TinyState(jnp.int32(0), jax.random.normal(key, (), jnp.result_type(float)) / jnp.sqrt(0.75))

    def observation(self, state, params):
        return state.x[None]

    def shocks(self, params):
        return shocks.Normal(1)

    def transition(self, state, action, shock, params):
        return state.replace(x=params.slope * state.x + shock[0])

    def reward(self, state, action, params):
        return -((state.x - action[0]) ** 2)

    def auxiliary(self, params):
        return spaces.Box(0.0, jnp.inf, (1,), jnp.result_type(float)) if self.priced else None

    def expectation_terms(self, state, decision, next_state, next_decision, params, *, next_policy):
        return {"next": next_state.x}

    def conditions(self, state, decision, expected, params):
        a, wanted = decision.action[0], state.x
        return {"limit": a + (a - wanted) - jnp.sqrt(a**2 + (a - wanted) ** 2 + 1e-12)}

    def euler_error(self, state, decision, expected, params):
        return {"limit": decision.action[0] - jnp.maximum(state.x, 0)}

    def slacks(self, state, decision, params):
        return {"limit": decision.action[0]}

    def steady_state(self, params):
        zero = jnp.zeros((), jnp.result_type(float))
        return TinyState(jnp.int32(0), zero), Decision(zero[None])


class Rectified(Policy):
    """The best action, a tenth too high where the limit does not bind."""

    over: jax.Array

    def __call__(self, view, key=None):
        return jnp.maximum(view.observation[:, :1], 0) * (1 + self.over)

    def decision(self, view):
        return Decision(self(view))


@pytest.fixture
def tiny():
    with jax.enable_x64(True):
        env = Tiny()
        params = env.default_params
        states = jax.vmap(env.initial_state, (0, None))(jax.random.split(jax.random.key(1), 3000), params)
        yield env, params, states


def test_states_where_a_limit_binds_are_reported_apart(tiny):
    env, params, states = tiny
    found = error_report(measure(PolicyRule(Rectified(jnp.asarray(0.1))), states, env, params), env)
    limit = found["binding"]["limit"]
    x = np.asarray(states.x)
    assert limit["share"] == pytest.approx(np.mean(x < 1e-4 / 1.1))
    assert limit["euler_binding"]["max"] < 1e-4
    assert limit["euler_slack"]["max"] == pytest.approx(0.1 * x.max(), rel=1e-9)
    assert found["complementarity"] == {"limit": found["residuals"]["limit"]}
    exact = error_report(measure(PolicyRule(Rectified(jnp.asarray(0.0))), states, env, params), env)
    assert exact["complementarity"]["limit"]["max"] < 1e-5
    assert exact["euler"]["max"] == 0


def test_without_the_multipliers_that_conditions_need_there_are_no_errors(tiny):
    _, params, states = tiny
    rule = PolicyRule(Rectified(jnp.asarray(0.0)))
    assert measure(rule, states, Tiny(priced=True), params) is None


@pytest.mark.parametrize("slope", [0.5, -0.8, 1.05])
def test_contraction_is_the_modulus_of_the_only_root(tiny, slope):
    env, params, states = tiny
    params = params.replace(slope=jnp.asarray(slope))
    rule, coordinates = PolicyRule(Rectified(jnp.asarray(0.0))), coordinates_of(states)
    factor, error = contraction(rule, states, env, params, coordinates, 0)
    assert factor == pytest.approx(abs(slope), abs=1e-12)
    assert error < 1e-12
    point, _ = fixed_point(rule, env, params, coordinates)
    assert point.spectral_radius == pytest.approx(abs(slope), abs=1e-12)


@pytest.mark.parametrize(("slope", "left"), [(0.5, 0.0), (1.05, 1.0)])
def test_an_explosive_economy_leaves_its_bounds(tiny, slope, left):
    env, params, states = tiny
    coordinates = coordinates_of(states)
    rule, params = PolicyRule(Rectified(jnp.asarray(0.0))), params.replace(slope=jnp.asarray(slope))
    found, moments = long_run(rule, env, params, coordinates, packed(coordinates, states), 0)
    assert found["left"] == left
    assert found["bounded"] is (left == 0)
    if not left:  # the best action earns nothing where it is not bound, and -x^2 where it is
        assert moments["utility"]["mean"] == pytest.approx(-2 / 3, abs=4 * moments["utility"]["mean_se"])


@dataclasses.dataclass(frozen=True)
class Switching(Tiny):
    """x' is the index of a chain of two states, which lasts with probability 0.9."""

    def initial_state(self, key, params):
        return TinyState(jnp.int32(0), jnp.asarray(jax.random.bernoulli(key), jnp.result_type(float)))

    def shocks(self, params):
        rows = jnp.array([[0.9, 0.1], [0.1, 0.9]], jnp.result_type(float))
        return shocks.Chain(rows, index=lambda state: jnp.int32(state.x))

    def transition(self, state, action, shock, params):
        return state.replace(x=jnp.asarray(shock, jnp.result_type(float)))

    def definitions(self, state, action, params):
        return {"level": 1 + state.x}


def test_a_chains_response_is_that_of_a_switch():
    """Given a switch to 1, E x_h = (1 + .8^h) / 2; without, it is 1/2: the levels' difference is .8^h / 2."""
    with jax.enable_x64(True):
        env, rule = Switching(), PolicyRule(Rectified(jnp.asarray(0.0)))
        params = env.default_params
        states = jax.vmap(env.initial_state, (0, None))(jax.random.split(jax.random.key(1), 4096), params)
        found, _ = responses(rule, env, params, None, states, 0)
        _, why = fixed_point(rule, env, params, coordinates_of(states))
    up, down = found["switch to state 1"], found["switch to state 0"]
    wanted = 100 * 0.8 ** np.arange(40) / 2 / 1.5
    assert np.abs(np.array(up["generalised"]["level"]) - wanted).max() < 100 * 4 * 0.5 / np.sqrt(4096) / 1.5
    assert np.abs(np.array(down["generalised"]["level"]) + wanted).max() < 100 * 4 * 0.5 / np.sqrt(4096) / 1.5
    assert "deterministic" not in up
    assert "Chain have no mean" in why


@struct.dataclass
class LawState(environment.EnvState):
    capital: jax.Array
    z: jax.Array


@dataclasses.dataclass(frozen=True)
class Lawful(Switching):
    """log K' = .1 (1 + z) + .9 log K + bend (log K)^2, z a chain: a log-linear law holds exactly where bend is 0."""

    solver: ClassVar[str] = "krusell_smith"
    bend: float = 0.0

    def initial_state(self, key, params):
        return LawState(jnp.int32(0), jnp.ones((), jnp.result_type(float)), jnp.int32(0))

    def observation(self, state, params):
        return jnp.log(state.capital)[None]

    def shocks(self, params):
        rows = jnp.array([[0.9, 0.1], [0.1, 0.9]], jnp.result_type(float))
        return shocks.Chain(rows, index=lambda state: state.z)

    def transition(self, state, action, shock, params):
        log_k = jnp.log(state.capital)
        log_k = 0.1 * (1 + state.z) + 0.9 * log_k + self.bend * log_k**2
        return state.replace(capital=jnp.exp(log_k), z=shock)


@pytest.mark.parametrize(("bend", "low", "high"), [(0.0, 0, 1e-9), (-0.01, 1e-5, 0.1)])
def test_dynamic_error_is_zero_for_a_law_that_holds(bend, low, high):
    with jax.enable_x64(True):
        env = Lawful(bend=bend)
        case = Case(env, env.default_params, PolicyRule(Rectified(jnp.asarray(0.0))), None, None, 0)
        found = dynamic_error(case)
        assert dynamic_error(case._replace(env=Switching())) is None
    assert low <= found["mean"] <= found["max"] <= high
    assert all(r > 0.99 for r in found["r_squared"])


@dataclasses.dataclass(frozen=True)
class Solved(BrockMirman):
    """Brock and Mirman's economy, whose answer only a solver knows."""

    solver: ClassVar[str] = "closed_form"

    def reference(self, params):
        return None


def test_a_solvers_answer_scores_like_the_closed_form(monkeypatch, constant):
    """The answer is a pytree that passes through jit; paths are paired by their shocks."""

    class Constant(eqx.Module):
        share: np.ndarray

        def __call__(self, state):
            return jnp.asarray(self.share)[None]

    class Worth(eqx.Module):
        a: np.ndarray

        def __call__(self, state):
            b, d = 0.5501222494, 11.2361570545
            return self.a + b * jnp.log(state.k) + d * jnp.log(state.z)

    answer = Reference(Constant(np.float64(STAR)), Worth(np.float64(-24.6286764183)), "planner", 1e-9)
    monkeypatch.setattr(classical, "solve", lambda env, params: answer)
    with jax.enable_x64(True):
        params = equimorph.make("BrockMirman-v0")[1]
        env = Solved()
        known = known_answer(env, params)
        policy = constant(1.05 * STAR)
        found = evaluate_economy(env, params, [policy], 400, None, 0)[0]
    assert known.source == "closed_form"
    assert found["reference"] == {"concept": "planner", "source": "closed_form", "tolerance": 1e-9}
    assert found["policy_error"] == pytest.approx(0.05 * STAR, abs=1e-12)
    assert found["regret"] == pytest.approx(0.02485, abs=max(4 * found["regret_se"], 2e-5))
    assert 0 < found["regret_se"] < 1e-3


# -- games ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Guess(Economy):
    """Played once by two: each earns 1 - (a_i - (1 + a_j) / 3)^2, so that 1/2 is the equilibrium."""

    params_type: ClassVar = TinyParams
    observation_size: ClassVar[int] = 1
    concepts: ClassVar[tuple[str, ...]] = ("nash", "cooperative")
    num_agents: int = 2
    concept: str = "nash"
    known: bool = True

    @property
    def one_shot(self):
        return True

    def agent_action_space(self, params):
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))

    def initial_state(self, key, params):
        return TinyState(jnp.int32(0), jax.random.normal(key, (), jnp.result_type(float)))

    def observation(self, state, params):
        return jnp.broadcast_to(state.x, (2, 1))

    def shocks(self, params):
        return shocks.Normal(1)

    def transition(self, state, action, shock, params):
        return state

    def reward(self, state, action, params):
        return 1 - (action[:, 0] - (1 + action[::-1, 0]) / 3) ** 2

    def reference(self, params):
        return Reference(lambda s: jnp.full((2, 1), 0.5), lambda s: jnp.ones(2), self.concept)

    def exploitability(self, policy, params):
        if not self.known:
            return None
        action = policy(self.initial_state(jax.random.key(0), params))[:, 0]
        return (action - (1 + action[::-1]) / 3) ** 2


def test_gains_of_deviating_are_the_games_own(constant):
    with jax.enable_x64(True):
        env = Guess()
        policies = [constant(0.8), constant(0.5)]
        found, best = evaluate_economy(env, env.default_params, policies, 64, None, 0)
    gain = (0.8 - 0.6) ** 2
    assert found["exploitability"] == pytest.approx(gain, rel=1e-12)
    assert found["gains"] == pytest.approx([gain, gain], rel=1e-12)
    # It is played once: nothing is discounted, and the value is what is earned.
    assert found["return"] == pytest.approx(1 - gain, rel=1e-12)
    assert found["regret"] == pytest.approx(gain, rel=1e-9)
    assert best["exploitability"] < 1e-20


@pytest.mark.slow
def test_a_trained_best_response_gains_what_the_formula_says(monkeypatch, constant):
    from equimorph.training.evaluation import best_response

    monkeypatch.setattr(best_response, "ITERATIONS", 40)
    env = Guess(known=False)
    with jax.enable_x64(True):
        policy = constant(0.9)
        found = evaluate_economy(env, env.default_params, [policy], 64, None, 0, exploitability="trained")[0]
    gain = (0.9 - 1.9 / 3) ** 2
    assert found["best_response"] == "trained"
    for each, error in zip(found["gains"], found["gains_se"], strict=True):
        assert 0.9 * gain < each < gain + 1e-9 + 4 * error


def test_a_best_response_is_refused_where_nobody_plays():
    from equimorph.training.evaluation.scoring import check_exploitability

    env, _ = equimorph.make("BrockMirman-v0")
    with pytest.raises(UserError, match="no game"):
        check_exploitability("trained", env)
    with pytest.raises(UserError, match="Did you mean 'trained'"):
        check_exploitability("trianed", env)
