"""Everything at once: a residual learner's options in one file, each shown to act; and another stepper mid-run."""

from pathlib import Path

import jax
import numpy as np
import pytest

import equimorph
from equimorph.agents.agent import check_pair
from equimorph.errors import UserError
from equimorph.training.config import build, resolve
from equimorph.training.switch import stages
from equimorph.training.trainer import train_from_config

EXAMPLES = Path(__file__).parents[2] / "examples"


def settings(**changes):
    return {
        "env": {"id": "BrockMirman-v0"},
        "agent": {"name": "deqn", "widths": [8], "batch_size": 32, "learning_rate": 0.01},
        "rollout": {"num_envs": 16, "num_steps": 4},
        "training": {"iterations": 8, **changes},
        "logging": {"progress": False, "tensorboard": False},
    }


def test_the_policy_goes_on_under_another_stepper(tmp_path):
    switch = [{"at": 6, "stepper": {"stepper": "lm", "damping": 0.1}}]
    _, plain = train_from_config(settings(iterations=6))
    _, history = train_from_config({**settings(switch=switch), "out": str(tmp_path / "run")})
    # The schedule ends where the next stepper begins, so that the first part is a run of that length.
    np.testing.assert_array_equal(history["policy/residual"][:6], plain["policy/residual"])
    assert np.isnan(history["policy/learning_rate"][6:]).all()
    assert np.isnan(history["policy/damping"][:6]).all()
    assert history["policy/step_accepted"][6:].max() == 1
    assert history["policy/residual"][7] < 0.5 * history["policy/residual"][5]
    run = equimorph.load(tmp_path / "run")
    assert run.agent.stepper.name == "lm"
    state, _ = train_from_config(settings(switch=switch))
    jax.tree.map(np.testing.assert_array_equal, run.state.nets, state.agent.nets)


def test_a_run_on_the_host_switches_too():
    rollout = {"num_envs": 2, "num_steps": 8}
    still = [{"at": 2, "stepper": "sgd", "learning_rate": 0.0}]
    run = equimorph.train("gymnasium:CartPole-v1", "mappo", iterations=4, rollout=rollout, switch=still, progress=False)
    rates = run.history["policy/learning_rate"]
    assert (rates[:2] > 0).all()
    assert (rates[2:] == 0).all()


@pytest.mark.parametrize(
    ("switch", "message"),
    [
        ([{"at": 8, "stepper": "lm"}], r"switch\[0\].at = 8 must lie above 0 and below training.iterations = 8"),
        ([{"at": 4, "stepper": "lm"}, {"at": 4, "stepper": "gn"}], r"switch\[1\].at = 4 must lie above 4"),
        ([{"at": 4, "stepper": "lmm"}], "Did you mean 'lm'"),
        ([{"at": 4, "stepper": "lm", "learning_rate": 0.1}], "learning_rate = 0.1 does not apply"),
        (
            [{"at": 4, "stepper": "lm", "shedule": "cosine"}],
            "switch.0.shedule.*Did you mean 'training.switch.0.schedule'",
        ),
    ],
)
def test_switches_that_cannot_be(switch, message):
    with pytest.raises(UserError, match=message):
        train_from_config(settings(switch=switch))


def test_a_solver_has_no_stepper_to_switch():
    training = {"iterations": 2, "switch": [{"at": 1, "stepper": "adam"}]}
    solved = resolve("BrockMirman-v0", "closed_form", {"training": training})
    with pytest.raises(UserError, match="agent 'closed_form' has no stepper"):
        stages(solved, *build(solved))


@pytest.mark.parametrize("name", ["deqn_everything", "deqn_pcgrad"])
def test_the_files_fit_their_environment(name):
    config = resolve(file=EXAMPLES / f"{name}.yaml")
    env, params, agent = build(config)
    for part in stages(config, env, params, agent):
        check_pair(part.agent, env, params, config.rollout.num_steps, config.rollout.num_envs)
        assert part.agent.term_names(env, params) == ("euler", "bound/consumption")


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("name", ["deqn_everything", "deqn_pcgrad"])
def test_all_options_in_one_file_act(name):
    config = resolve(file=EXAMPLES / f"{name}.yaml", sets=["training.iterations=12", "logging.progress=false"])
    config = config.model_dump()
    for switch in config["training"]["switch"]:
        switch["at"] = 10
    state, found = train_from_config(config)
    env, params = equimorph.make("IRBC-v0", window=4)
    assert state.observation.shape[1:] == env.observation_space(params).shape  # a history of four rows
    assert state.agent.nets.network.__class__.__name__ == "GRU"
    # Two minibatches in each of two passes, under a rate that warms up over twenty steps.
    rates = found["policy/learning_rate"]
    assert (np.diff(rates[:4]) > 0).all()
    assert rates[9] < 0.25 * rates[4]
    assert found["replay/stored"].tolist()[:3] == [512, 896, 1280]
    assert found["policy/target_gap"][-1] > 0
    weights = np.stack([found["weight/euler"], found["weight/bound/consumption"]])
    np.testing.assert_allclose(weights.sum(0), 2, rtol=1e-4)
    assert np.ptp(weights[0]) > 1e-5
    assert found["loss/bound/consumption"][0] > 0
    assert found["loss/grad_norm"][:10].max() > 0.1
    if name == "deqn_everything":
        assert np.isnan(found["policy/damping"][:10]).all()
        assert found["policy/step_accepted"][10:].max() > 0
    else:
        assert found["policy/conflicts"].max() > 0


def test_a_presets_rate_is_not_another_steppers():
    assert resolve("Growth-v0", "deqn").agent.hyperparameters["learning_rate"] == 3e-3
    found = resolve("Growth-v0", "deqn", {"agent": {"stepper": "lm"}})
    assert "learning_rate" not in found.agent.hyperparameters
