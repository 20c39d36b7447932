"""The command line: what it passes on, what it prints, and how it ends."""

import json
import sys
import types

import jax
import pytest

import equimorph
from equimorph.training.cli import main
from equimorph.training.report import evaluation_table

pytestmark = pytest.mark.usefixtures("learner")


@pytest.fixture
def runs(monkeypatch, tmp_path, write_run):
    """The configurations that were trained; training and evaluation are replaced by what tells them apart."""
    trained = []

    def train_from_config(config):
        trained.append(config)
        write_run(config, config.out)

    def evaluate(run):
        state = {"score": float(run.state["weight"][0, 0]), "return": float(run.params.beta), "regret": float("nan")}
        return {**state, "untrained": {"score": float(run.untrained_state["weight"][0, 0])}}

    for name, function in [("trainer", train_from_config), ("evaluation.scoring", evaluate)]:
        module = types.ModuleType(name)
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, f"equimorph.training.{name}", module)
    monkeypatch.chdir(tmp_path)
    return trained


def call(line):
    return main(line.split())


def refused(capsys, line):
    assert call(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("equimorph: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("equimorph: error: ").rstrip("\n")


def test_train_passes_on_what_was_asked_for(runs, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("training: {iterations: 3, seed: 3}\nrollout: {num_envs: 3}\nagent: {width: 3}")
    argv = "train BrockMirman-v0 --agent mappo --config c.yaml --iterations 4 --seed 4 --out here"
    assert call(f"{argv} --set training.iterations=5 --set agent.width=2") == 0
    (config,) = runs
    assert (config.env.id, config.agent.name, config.out) == ("BrockMirman-v0", "mappo", "here")
    assert (config.training.iterations, config.training.seed, config.rollout.num_envs) == (5, 4, 3)
    assert config.agent.hyperparameters == {"width": 2}
    assert "run folder: here" in capsys.readouterr().out


def test_train_keeps_and_prints_the_evaluation(runs, tmp_path, capsys):
    assert call("train BrockMirman-v0 --agent mappo --out here") == 0
    run = equimorph.load("here")
    saved = json.loads((tmp_path / "here" / "evaluation.json").read_text())
    assert saved["score"] == pytest.approx(float(run.state["weight"][0, 0]))
    assert saved["untrained"]["score"] == pytest.approx(float(run.untrained_state["weight"][0, 0]))
    assert saved["regret"] is None
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[1:3]}
    assert rows["trained"][0] == f"{saved['score']:.4g}"
    assert rows["untrained"] == [f"{saved['untrained']['score']:.4g}", "-", "-"]


def test_train_prints_a_row_a_seed(runs, tmp_path, capsys):
    assert call("train BrockMirman-v0 --agent mappo --out here --num-seeds 2 --seed 5") == 0
    names = [line[:18].strip() for line in capsys.readouterr().out.splitlines()[1:5]]
    assert names == ["seed 5", "seed 5, untrained", "seed 6", "seed 6, untrained"]
    scores = [seed["score"] for seed in json.loads((tmp_path / "here" / "evaluation.json").read_text())["seeds"]]
    assert scores == pytest.approx([float(equimorph.load("here", seed=k).state["weight"][0, 0]) for k in range(2)])
    assert scores[0] != scores[1]


def test_train_makes_a_new_folder_each_time(runs, tmp_path):
    for _ in range(2):
        assert call("train BrockMirman-v0 --agent mappo") == 0
    folders = [path.name for path in (tmp_path / "runs").iterdir()]
    assert len(folders) == 2
    assert all(name.startswith("BrockMirman-v0-mappo-") for name in folders)


def test_evaluate_scores_again_and_changes_only_what_it_is_told(runs, tmp_path, capsys):
    assert call("train BrockMirman-v0 --agent mappo --out here") == 0
    path = tmp_path / "here" / "evaluation.json"
    saved = path.read_text()
    first = capsys.readouterr().out.splitlines()[:3]
    assert call("evaluate here --set env.params.beta=0.5") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[2] == "0.5"
    assert path.read_text() == saved
    path.unlink()
    assert call("evaluate here") == 0
    assert capsys.readouterr().out.splitlines() == first
    assert path.read_text() == saved


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("train BrockMirmn-v0 --agent mappo", "unknown environment 'BrockMirmn-v0'. Did you mean 'BrockMirman-v0'?"),
        ("train BrockMirman-v0 --agent mapo", "unknown agent 'mapo'. Did you mean 'mappo'?"),
        (
            "train BrockMirman-v0 --agent mappo --iterations 0",
            "training.iterations: it should be greater than or equal to 1, got 0",
        ),
        ("train BrockMirman-v0 --agent mappo --iterations x", "argument --iterations: invalid int value: 'x'"),
        (
            "train BrockMirman-v0 --agent mappo --set agent.widht=1",
            "unknown key agent.widht: mappo has no such hyperparameter. Did you mean 'agent.width'?",
        ),
        ("train BrockMirman-v0", "agent.name is missing: give --agent, or agent.name in a configuration file"),
        ("train BrockMirmn-v0", "unknown environment 'BrockMirmn-v0'. Did you mean 'BrockMirman-v0'?"),
        ("train --agent mappo", "env.id is missing: give an environment id, or env.id in a configuration file"),
        ("train BrockMirman-v0 --agent mappo --config no.yaml", "there is no configuration file 'no.yaml'"),
        ("train BrockMirman-v0 --agent mappo --itrations 3", "unrecognized arguments: --itrations 3"),
        ("evaluate nowhere", "there is no run folder 'nowhere'"),
        ("info BrockMirmn-v0", "unknown environment 'BrockMirmn-v0'. Did you mean 'BrockMirman-v0'?"),
        (
            "",
            "a command is missing: train, init-config, evaluate, export, render, lineage, compare, "
            "compare-libraries, sweep, plot, list or info (see equimorph --help)",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(runs, capsys, argv, message):
    assert refused(capsys, argv) == message


def test_a_misspelt_command_is_a_mistake(capsys):
    assert refused(capsys, "trian").startswith("argument COMMAND: invalid choice: 'trian'")


def test_a_run_folder_is_not_overwritten(runs, capsys):
    argv = "train BrockMirman-v0 --agent mappo --out here"
    assert call(argv) == 0
    capsys.readouterr()
    assert "already holds a run" in refused(capsys, argv)


def test_only_the_environment_of_a_finished_run_may_change(runs, capsys):
    assert call("train BrockMirman-v0 --agent mappo --out here") == 0
    capsys.readouterr()
    assert "only env and evaluation may change" in refused(capsys, "evaluate here --set agent.width=2")
    assert "beta" in refused(capsys, "evaluate here --set env.params.beta=1.5")


def test_what_is_ours_is_not_blamed_on_the_user(runs, monkeypatch):
    def broken(config):
        raise ValueError("a defect")

    monkeypatch.setattr(sys.modules["equimorph.training.trainer"], "train_from_config", broken)
    with pytest.raises(ValueError, match="a defect"):
        call("train BrockMirman-v0 --agent mappo")


def test_list_names_every_environment(capsys):
    assert call("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == equimorph.list_envs()
    assert all(len(line.split()) > 1 for line in lines)


def test_info_says_what_may_be_set(capsys):
    assert call("info BrockMirman-v0") == 0
    text = capsys.readouterr().out
    for expected in ("BrockMirman-v0: ", "calibrations  default, patient", "'planner'", "(0, 1)  discount factor"):
        assert expected in text


def test_info_knows_foreign_environments(capsys):
    assert call("info CartPole-v1") == 0
    text = capsys.readouterr().out
    assert "from gymnax" in text
    assert "masscart" in text


def test_version(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out == f"equimorph {equimorph.__version__}\n"


def test_table_shows_what_is_there_and_nothing_else():
    trained = {
        "score": 1.0,
        "welfare_loss": 0.0123456,
        "welfare_loss_se": 0.00021,
        "euler": {"mean": 1e-3, "max": 0.01},
    }
    lines = evaluation_table({"deqn": {**trained, "untrained": {"score": -2.0}}}).splitlines()
    assert lines[0].split() == ["score", "welfare", "loss", "log10", "Euler", "mean", "log10", "Euler", "max"]
    assert lines[1].split() == ["deqn", "1", "0.01235", "±", "0.0002", "-3.00", "-2.00"]
    assert lines[2].split() == ["deqn,", "untrained", "-2", "-", "-", "-"]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.slow
def test_a_real_run_from_end_to_end(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    sets = "--set agent.widths=[8] --set evaluation.num_episodes=8"
    assert call(f"train BrockMirman-v0 --agent deqn --iterations 2 --out here {sets}") == 0
    saved = json.loads((tmp_path / "here" / "evaluation.json").read_text())
    assert {"score", "return", "regret", "welfare_loss", "welfare_loss_se", "policy_error"} <= set(saved)
    assert set(saved["euler"]) == {"mean", "median", "p90", "p99", "p999", "max"}
    assert set(saved["untrained"]) == set(saved) - {"untrained"}
    table = capsys.readouterr().out.split("\n\n")[0].strip()
    assert call("evaluate here") == 0
    assert capsys.readouterr().out.strip() == table
    assert json.loads((tmp_path / "here" / "evaluation.json").read_text()) == saved
    run = equimorph.load("here")
    observation, _ = run.env.reset(jax.random.key(0), run.params)
    assert run.env.action_space(run.params).contains(run.policy(observation))
    assert "cannot be scored against" in refused(capsys, "evaluate here --set env.concept=competitive")
