"""Scores against closed forms: what an exact policy gets, what a wrong one loses, and what is refused."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.agent import Policy
from equimorph.envs.economies import stochastic_ak
from equimorph.envs.economies.brock_mirman import BrockMirman
from equimorph.envs.environment import Reference
from equimorph.errors import UserError
from equimorph.training.evaluation.economies import evaluate_economy
from equimorph.training.evaluation.episodes import evaluate_episodes
from equimorph.training.evaluation.errors import quantiles
from equimorph.training.evaluation.scoring import check_concept, evaluate
from equimorph.training.report import evaluation_notes


class Share(Policy):
    """The same saved share in every state."""

    share: jax.Array

    def __call__(self, view, key=None):
        return jnp.broadcast_to(self.share, (1, 1))


def score(env_id, *shares, num_episodes=64, horizon=None, env=None, **overrides):
    """Reports of constant shares, in float64."""
    with jax.enable_x64(True):
        made, params = equimorph.make(env_id, **overrides)
        policies = [Share(jnp.asarray(share, jnp.float64)) for share in shares]
        return evaluate_economy(env or made, params, policies, num_episodes, horizon, 0)


@pytest.fixture(scope="module")
def brock_mirman():
    """The known answer, 5 % more than that, and one half."""
    return score("BrockMirman-v0", 0.3456, 1.05 * 0.3456, 0.5)


def test_exact_policy_scores_as_exact(brock_mirman):
    exact = brock_mirman[0]
    assert exact["policy_error"] < 1e-15
    assert exact["euler"]["max"] < 1e-9
    assert abs(exact["regret"]) < 1e-9
    assert abs(exact["welfare_loss"]) < 1e-10
    assert exact["score"] == pytest.approx(1, abs=1e-9)


def test_wrong_share_loses_what_the_closed_form_says(brock_mirman):
    wrong = brock_mirman[1]
    assert wrong["regret"] == pytest.approx(0.02485, abs=1e-5)
    assert wrong["welfare_loss"] == pytest.approx(-math.expm1(-0.04 * 0.0248462), rel=2e-4)
    # Consumption misses the one that the Euler equation asks for by s / (alpha beta) - 1, in every state.
    assert wrong["euler"]["max"] == pytest.approx(0.05, abs=1e-9)
    assert wrong["euler"]["median"] == pytest.approx(0.05, abs=1e-9)
    assert wrong["policy_error"] == pytest.approx(0.05 * 0.3456, abs=1e-12)


def test_saving_half_costs_seven_percent(brock_mirman):
    assert brock_mirman[2]["welfare_loss"] == pytest.approx(0.0709, abs=5e-4)


def test_score_is_zero_for_uniformly_random_shares(brock_mirman):
    """Uniform shares are worth -39.1162 at the steady state, where the best is worth -25.5419."""
    half = brock_mirman[2]
    assert half["score"] == pytest.approx(1 - half["regret"] / (39.1162 - 25.5419), abs=0.01)


def test_regret_has_no_noise_where_the_value_is_exact(brock_mirman):
    assert brock_mirman[1]["regret_se"] < 1e-6


def test_paired_simulation_agrees_with_the_exact_value():
    """Where the reference's value is not exact, paths are paired by their shocks instead."""

    @dataclasses.dataclass(frozen=True)
    class Approximate(BrockMirman):
        def reference(self, params):
            return super().reference(params)._replace(tolerance=1e-6)

    paired = score("BrockMirman-v0", 1.05 * 0.3456, num_episodes=400, env=Approximate())[0]
    assert paired["regret_se"] > 0
    assert paired["regret"] == pytest.approx(0.02485, abs=max(4 * paired["regret_se"], 2e-5))


def test_stochastic_ak_regret_is_the_closed_forms():
    best, wrong = score("StochasticAK-v0", 0.9625717721, 0.97, num_episodes=4000)
    assert abs(best["welfare_loss"]) < 1e-8
    assert best["euler"]["max"] < 1e-9
    with jax.enable_x64(True):
        env, params = equimorph.make("StochasticAK-v0")
        states = jax.vmap(env.initial_state, (0, None))(jax.random.split(jax.random.key(5), 200_000), params)
        mean = jax.vmap(stochastic_ak.utility, (0, None))(states.k, params).mean()
        at_one = dataclasses.replace(states, k=jnp.ones(()))
        values = [stochastic_ak.constant_value(at_one, jnp.asarray(s), params) for s in (0.9625717721, 0.97)]
        regret = float((values[0] - values[1]) / stochastic_ak.utility(jnp.ones(()), params) * mean)
    assert wrong["regret"] == pytest.approx(regret, rel=0.1)
    assert wrong["policy_error"] == pytest.approx(0.97 - 0.9625717721, abs=1e-9)


def test_policy_of_infinite_loss_loses_everything():
    report = score("StochasticAK-v0", 0.9)[0]
    assert report["welfare_loss"] == 1.0
    assert report["effective_discount"] > 1
    assert "regret" not in report
    assert "return" not in report
    assert "not finite" in evaluation_notes({"deqn": report})[0]


def test_floored_paths_are_counted_and_not_scored():
    report = score("BrockMirman-v0", 1.0)[0]
    assert report["floored"] == 1.0
    assert "regret" not in report


def test_externality_scores_each_concept_against_its_own_answer():
    competitive = score("BrockMirman-v0", 0.3456, eta=0.2, concept="competitive")[0]
    planner, at_competitive = score("BrockMirman-v0", 0.5376, 0.3456, eta=0.2)
    assert competitive["euler"]["max"] < 1e-9
    assert planner["euler"]["max"] < 1e-9
    assert at_competitive["welfare_loss"] == pytest.approx(0.1533, abs=1e-4)


def test_score_against_another_concept_is_refused(tmp_path):
    run = equimorph.train(
        "BrockMirman-v0", "mappo", iterations=2, out=str(tmp_path / "run"), env={"params": {"eta": 0.2}}
    )
    assert equimorph.load(tmp_path / "run").concept == "planner"
    other = run.changed(["env.concept=competitive"])
    with pytest.raises(UserError, match=r"'planner'.*'competitive'"):
        evaluate(other)
    env, params = equimorph.make("BrockMirman-v0", concept="competitive")
    check_concept(env, params, "competitive")


def test_economy_without_a_reference_reports_what_is_defined():
    @dataclasses.dataclass(frozen=True)
    class Unknown(BrockMirman):
        def reference(self, params):
            return None

    report = score("BrockMirman-v0", 0.3456, env=Unknown())[0]
    assert set(report) == {"effective_discount", "floored", "return", "euler", "euler_conditions", "residuals"}
    # Nothing is added for what comes after the horizon: (1 - beta^T) of the known value, up to where paths start.
    assert report["return"] == pytest.approx(-25.54, abs=0.3)


def test_reference_policy_may_come_without_a_value():
    @dataclasses.dataclass(frozen=True)
    class PolicyOnly(BrockMirman):
        def reference(self, params):
            return Reference(super().reference(params).policy, None, self.concept)

    report = score("BrockMirman-v0", 0.4, env=PolicyOnly())[0]
    assert report["policy_error"] == pytest.approx(0.0544, abs=1e-12)
    assert "welfare_loss" not in report


def test_episodes_are_scored_whole_and_once():
    """Pushing right only: CartPole falls after 8 to 10 steps, and rewards after that do not count."""

    class Right(Policy):
        action: jax.Array

        def __call__(self, view, key=None):
            return self.action[None]

    env, params = equimorph.make("CartPole-v1")
    report = evaluate_episodes(env, params, [Right(jnp.int32(1))], 32, None, 0)[0]
    assert 8 <= report["return"] <= 10.5
    assert report["finished"] == 1.0
    assert report["score"] == report["return"]


def test_quantiles_of_known_numbers():
    found = quantiles(np.arange(1001) / 1000)
    assert found["median"] == pytest.approx(0.5)
    assert found["p99"] == pytest.approx(0.99)
    assert found["max"] == 1.0


@pytest.mark.parametrize("changes", [{"num_episodes": 0}, {"num_episodes": 1.5}, {"horizon": -1}])
def test_counts_below_one_are_refused(changes):
    run = equimorph.train("BrockMirman-v0", "mappo", iterations=1, rollout={"num_envs": 4, "num_steps": 8})
    with pytest.raises(UserError, match=next(iter(changes))):
        evaluate(run, **changes)
