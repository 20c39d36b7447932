"""What the learners reach with their presets, each beside its untrained policy. Long: run with `-m slow`."""

import numpy as np
import pytest

import equimorph

pytestmark = pytest.mark.slow


def scored(env_id, agent, **settings):
    """A trained run and its report."""
    run = equimorph.train(env_id, agent, **settings)
    return run, equimorph.evaluate(run)


def test_deqn_solves_brock_mirman():
    _, report = scored("BrockMirman-v0", "deqn")
    assert report["policy_error"] <= 1e-3
    assert report["euler"]["mean"] <= 1e-3
    assert report["untrained"]["policy_error"] > 0.1


@pytest.mark.parametrize("agent", ["mappo", "reinforce"])
def test_reward_learners_solve_brock_mirman(agent):
    _, report = scored("BrockMirman-v0", agent)
    assert report["welfare_loss"] <= 1e-3
    assert report["untrained"]["welfare_loss"] > 0.06


@pytest.mark.extended
@pytest.mark.parametrize("expectation", ["quadrature", "all_in_one"])
def test_deqn_finds_a_share_that_depends_on_the_shock(expectation):
    _, report = scored("StochasticAK-v0", "deqn", expectation=expectation)
    assert report["policy_error"] <= 1e-3
    assert report["untrained"]["policy_error"] > 0.06


@pytest.mark.parametrize(("concept", "share"), [("competitive", 0.3456), ("planner", 0.5376)])
def test_conditions_decide_which_equilibrium_deqn_finds(concept, share):
    run, report = scored("BrockMirman-v0", "deqn", env={"calibration": "externality", "concept": concept})
    assert run.concept == concept
    assert report["policy_error"] <= 2e-3
    assert abs(float(run.policy(np.zeros(2))[0]) - share) <= 2e-3


def test_reward_learner_finds_the_planners_solution():
    run, report = scored("BrockMirman-v0", "mappo", env={"calibration": "externality"})
    assert run.concept == "planner"
    assert report["welfare_loss"] <= 1e-3
    # It starts at 0.5, and the competitive share would be 0.3456.
    assert abs(float(run.policy(np.zeros(2))[0]) - 0.5376) <= 0.02


@pytest.mark.parametrize(
    ("agent", "settings"),
    [
        ("mappo", {}),
        pytest.param("reinforce", {}, marks=pytest.mark.extended),
        pytest.param("reinforce", {"score": "events", "env": {"mode": "hazard"}}, marks=pytest.mark.extended),
    ],
)
def test_tissue_learns_its_size(agent, settings):
    _, report = scored("CellCount-v0", agent, evaluation={"num_episodes": 64}, **settings)
    assert report["score"] <= 12
    assert 60 <= report["untrained"]["score_sampled"] <= 160


def test_ppo_balances_the_pole():
    run, report = scored("CartPole-v1", "mappo", num_seeds=3)
    assert report["return"] >= 475
    assert report["untrained"]["return"] < 150
    for seed in run.seeds:
        assert np.nanmean(seed.history["episode/return"][-20:]) >= 450
