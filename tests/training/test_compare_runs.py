"""Runs side by side: scored on the same shocks, refused where they are of different economies."""

import pytest

import equimorph
from equimorph.errors import UserError
from equimorph.training import compare_runs
from equimorph.training.cli import main
from equimorph.training.config import resolve
from equimorph.training.run import RunFolder


@pytest.fixture
def scored(monkeypatch):
    """What was evaluated, in order; evaluation itself is replaced by the weight of the learner."""
    seen = []

    def evaluate(run):
        seen.append(run)
        if run.config.rollout.num_envs == 3:
            raise UserError("it will not be scored")
        return {"score": float(run.state["weight"][0, 0]), "untrained": {"score": 0.0}}

    monkeypatch.setattr(compare_runs, "evaluate", evaluate)
    return seen


@pytest.fixture
def make_run(write_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(name, *sets, env="BrockMirman-v0"):
        write_run(resolve(env, "mappo", sets=sets), name)

    return make


def test_table_has_a_row_a_run_and_a_seed(make_run, scored, capsys):
    make_run("a", "evaluation.seed=5", "evaluation.num_episodes=7")
    make_run("b", "training.num_seeds=2", "training.seed=3", "evaluation.seed=6")
    make_run("c", "rollout.num_envs=3")
    assert main(["compare", "a", "b", "c"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("  ")[0] for line in lines]
    assert names == [
        "",
        "a",
        "a, untrained",
        "b, seed 3",
        "b, seed 3, untrained",
        "b, seed 4",
        "b, seed 4, untrained",
        "c",
        lines[-1],
    ]
    for row, name, seed in ((1, "a", 0), (3, "b", 0), (5, "b", 1)):
        weight = float(equimorph.load(name, seed=seed).state["weight"][0, 0])
        assert lines[row].split()[-1] == f"{weight:.4g}"
    assert lines[-2].split() == ["c", "-"]
    assert lines[-1] == "c cannot be scored: it will not be scored"
    # All on the first one's shocks.
    assert {(run.config.evaluation.seed, run.config.evaluation.num_episodes) for run in scored} == {(5, 7)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["env.params.beta=0.9"], "a and b cannot be compared: env.params.beta is 0.96 and 0.9"),
        (["env.reward_scale=utility"], "env.reward_scale is 'consumption' and 'utility'"),
        (["env.concept=competitive"], "concept is 'planner' and 'competitive'"),
    ],
)
def test_runs_of_different_economies_are_refused(make_run, scored, capsys, changes, message):
    make_run("a")
    make_run("b", *changes)
    assert main(["compare", "a", "b"]) == 2
    assert message in capsys.readouterr().err
    assert not scored


def test_runs_of_different_environments_are_refused(make_run, scored, capsys):
    make_run("a")
    make_run("b", env="StochasticAK-v0")
    assert main(["compare", "a", "b"]) == 2
    assert "one is of BrockMirman-v0, the other of StochasticAK-v0" in capsys.readouterr().err


def test_a_comparison_takes_two_finished_runs(make_run, scored, capsys):
    make_run("a")
    for argv, message in (
        (["a"], "two run folders or more"),
        (["a", "a"], "given twice"),
        (["a", "nowhere"], "no run folder 'nowhere'"),
    ):
        assert main(["compare", *argv]) == 2
        assert message in capsys.readouterr().err
    RunFolder.create("empty")
    assert main(["compare", "a", "empty"]) == 2
    assert "is not a run folder" in capsys.readouterr().err
