"""Sweeps: combinations side by side or one after another, refused, interrupted, broken, and gone on with."""

import csv
import io
import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import equimorph
from equimorph.errors import UserError
from equimorph.training import lanes, session
from equimorph.training.checkpoint import Checkpoints
from equimorph.training.cli import main
from equimorph.training.config import resolve
from equimorph.training.run import Run
from equimorph.training.sweep import RECORD, resume_sweep, sweep
from equimorph.training.sweep_plan import plan
from equimorph.training.trainer import train_from_config

SETTINGS = {
    "agent": {"widths": [8], "unscored_tail": 2},
    "rollout": {"num_envs": 4, "num_steps": 8},
    "training": {"iterations": 4, "num_seeds": 2},
    "evaluation": {"every": 2, "num_episodes": 8, "horizon": 10},
    "logging": {"tensorboard": False},
}
OVER = {"agent.learning_rate": [1e-3, 1e-2], "env.params.beta": [0.9, 0.95]}


def swept(out, over=OVER, **more):
    return sweep("BrockMirman-v0", "reinforce", SETTINGS, over=over, out=out, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two rates times two discount factors, trained side by side."""
    return swept(tmp_path_factory.mktemp("sweeps") / "whole")


def states(found):
    """What was learnt, of every run and seed."""
    return {one.name: [equimorph.load(one.path, seed=seed).state for seed in (0, 1)] for one in found.runs}


def same(a, b, rtol=0.0):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol), a, b)


def test_side_by_side_each_is_what_it_is_alone(whole):
    """To rounding: a batched program adds up in another order. Another rate or beta is far from that."""
    assert [len(one.together) for one in whole.runs] == [4, 4, 4, 4]
    one = whole.runs[3]
    assert one.values == {"agent.learning_rate": 1e-2, "env.params.beta": 0.95}
    config = equimorph.load(one.path).config
    assert config.env.params == {"beta": 0.95}
    alone, history = train_from_config(config.model_copy(update={"out": None}))
    for seed in (0, 1):
        mine = jax.tree.map(lambda leaf, seed=seed: leaf[seed], alone.agent)
        same(equimorph.load(one.path, seed=seed).state, mine, rtol=2e-4)
    for other in whole.runs[:3]:
        leaf, there = (jax.tree.leaves(equimorph.load(path).state)[0] for path in (one.path, other.path))
        assert np.abs(leaf - there).max() > 1e-3
    lines = [json.loads(line) for line in (one.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["time"]["iteration"] == 4
    assert np.shape(lines[-1]["evaluation"]["return"]) == (2,)
    np.testing.assert_allclose(lines[-1]["policy"]["learning_rate"], history["policy/learning_rate"][-1], rtol=1e-6)


def test_the_table_has_means_over_seeds_beside_the_untrained_policy(whole):
    one = whole.runs[1]
    scores = [equimorph.evaluate(equimorph.load(one.path, seed=seed)) for seed in (0, 1)]
    (row,) = [row for row in csv.DictReader(io.StringIO(whole.csv())) if row["run"] == one.name]
    assert (whole.path / "table.csv").read_text() == whole.csv()
    returns = [score["return"] for score in scores]
    assert float(row["return"]) == pytest.approx(np.mean(returns), rel=1e-6)
    assert float(row["return_sd"]) == pytest.approx(abs(returns[0] - returns[1]) / np.sqrt(2), rel=1e-4)
    untrained = np.mean([score["untrained"]["return"] for score in scores])
    assert float(row["return_untrained"]) == pytest.approx(untrained, rel=1e-6)
    assert float(row["reference_return"]) == pytest.approx(returns[0] + scores[0]["regret"], rel=1e-6)
    assert (row["agent.learning_rate"], row["env.params.beta"], row["together"]) == ("0.001", "0.95", "1")
    assert len(whole.table().splitlines()) == 5


def test_what_differs_in_more_than_numbers_goes_apart(tmp_path):
    over = {"agent.baseline": ["none", "leave_one_out"], "training.seed": [0, 7]}
    definition = {"base": base(), "over": over, "zip": False}
    kinds = [one.kind for one in plan(definition, tmp_path, {})]
    assert kinds[0] == kinds[1] != kinds[2] == kinds[3]
    patient = base() | {"stopping": {"patience": 1}}
    definition = {"base": patient, "over": {"training.seed": [0, 7]}, "zip": False}
    assert [one.kind for one in plan(definition, tmp_path, {})] == [None, None]
    assert not list(tmp_path.iterdir())


def base():
    return {**SETTINGS, "env": {"id": "BrockMirman-v0"}, "agent": {"name": "reinforce", **SETTINGS["agent"]}}


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({}, "needs a setting to go over"),
        ({"agent.learning_rate": []}, "agent.learning_rate has no values"),
        ({"agent.learning_rate": [1e-3, 0.001]}, "agent.learning_rate is swept over 0.001 twice"),
        ({"agent.lerning_rate": [1e-3]}, r"cannot sweep to .*Did you mean 'agent.learning_rate'\?"),
        ({"agent.widths": [[4], [8]]}, "agent.widths is both swept and set"),
        ({"agent.widths.size": [4]}, "agent.widths.size is both swept and set"),
        ({"out": ["a", "b"]}, "out cannot be swept"),
        ({"env.params.beta": [0.9, 1.5]}, r"cannot sweep to env.params.beta=1.5: .*beta"),
        ({"training.seed": [1, 1.0]}, "0-seed=1 and 1-seed=1.0 are the same run"),
        ({"env.params": [{"beta": 0.9}], "env.params.beta": [0.9]}, "env.params.beta is a part of env.params"),
    ],
)
def test_what_cannot_be_swept_is_told_before_anything_is_trained(over, message, tmp_path):
    with pytest.raises(UserError, match=message):
        swept(tmp_path / "sweep", over)
    assert not list(tmp_path.iterdir())


def test_another_sweep_or_anything_else_in_the_folder_is_refused(whole, tmp_path):
    before = sorted(path.name for path in whole.path.iterdir())
    with pytest.raises(UserError, match=r"holds a sweep over agent.learning_rate, env.params.beta, not over env"):
        swept(whole.path, {"env.params.beta": [0.9]})
    with pytest.raises(UserError, match=r"another env.params.beta; choose .*equimorph sweep --resume"):
        swept(whole.path, OVER | {"env.params.beta": [0.9, 0.96]})
    changed = SETTINGS | {"evaluation": SETTINGS["evaluation"] | {"every": 1}}
    with pytest.raises(UserError, match=r"another evaluation.every"):
        sweep("BrockMirman-v0", "reinforce", changed, over=OVER, out=whole.path)
    with pytest.raises(UserError, match=r"equally many: agent.learning_rate has 2, env.params.beta has 1"):
        swept(tmp_path / "zip", OVER | {"env.params.beta": [0.9]}, zipped=True)
    (tmp_path / "note").write_text("mine")
    with pytest.raises(UserError, match="holds something else"):
        swept(tmp_path)
    with pytest.raises(UserError, match="holds no sweep"):
        resume_sweep(tmp_path)
    assert sorted(path.name for path in whole.path.iterdir()) == before


def test_one_after_another_a_killed_sweep_keeps_what_is_done_and_goes_on(whole, tmp_path, monkeypatch):
    """The second run dies in its third iteration; its checkpoint of the second leads to the same end."""
    out, values = tmp_path / "sweep", {"agent.learning_rate": [1e-3, 1e-2], "env.params.beta": [0.9, 0.95]}
    settle = session.Session.settle

    def die(self, *rest):
        settle(self, *rest)
        if Path(self.config.out).name.startswith("1-") and self.position.iteration == 3:
            raise RuntimeError("killed")

    monkeypatch.setattr(session.Session, "settle", die)
    with pytest.raises(RuntimeError, match="killed"):
        swept(out, values, zipped=True, at_once=1)
    monkeypatch.undo()
    first, second = sorted(path for path in out.iterdir() if path.is_dir())
    done = (first / RECORD).read_bytes()
    assert not (second / RECORD).exists()
    assert 2 in Checkpoints(second).iterations()
    told = []
    found = swept(out, values, zipped=True, at_once=1, report=told.append)
    assert told == ["1 of 2 combinations are done already", f"training {second.name}"]
    assert (first / RECORD).read_bytes() == done
    assert [list(one.together) for one in found.runs] == [[], []]
    both = states(whole)
    for one, like in zip(states(found).values(), (both[whole.runs[0].name], both[whole.runs[3].name]), strict=True):
        same(one, like, rtol=2e-4)


def test_a_signal_saves_all_that_run_side_by_side_and_they_go_on(whole, tmp_path, monkeypatch, capsys):
    """In the third of four iterations."""
    out, run_chunk, limits = tmp_path / "sweep", lanes.run_chunk, []

    def interrupted(state, dynamic, params, limit, *, settings):
        limits.append(int(limit))
        if len(limits) == 3:
            signal.raise_signal(signal.SIGINT)
        return run_chunk(state, dynamic, params, limit, settings=settings)

    monkeypatch.setattr(lanes, "run_chunk", interrupted)
    over = [f"--over={key}={','.join(map(str, values))}" for key, values in OVER.items()]
    (tmp_path / "settings.yaml").write_text(json.dumps(SETTINGS))
    command = ["sweep", "BrockMirman-v0", "--agent=reinforce", f"--config={tmp_path / 'settings.yaml'}", *over]
    assert main([*command, f"--out={out}"]) == 130
    assert f"to go on, equimorph sweep --resume {out}" in capsys.readouterr().err
    folders = [out / one.name for one in whole.runs]
    assert [Checkpoints(folder).iterations()[-1] for folder in folders] == [3, 3, 3, 3]
    assert main(["sweep", f"--resume={out}", "--iterations=5"]) == 2
    assert "--iterations does not apply with --resume" in capsys.readouterr().err
    assert main(["sweep", f"--resume={out}"]) == 0
    assert "untrained" in capsys.readouterr().out
    assert limits == [1, 1, 1, 1]
    for name, like in states(whole).items():
        same([equimorph.load(out / name, seed=seed).state for seed in (0, 1)], like)


def test_one_that_breaks_ends_alone(whole, tmp_path):
    over = {"agent.learning_rate": [1e-3, 1e30, 1e-2], "env.params.beta": [0.95]}
    found = swept(tmp_path / "sweep", over)
    assert [bool(one.failed) for one in found.runs] == [False, True, False]
    assert "not finite at iteration" in found.notes()[0]
    assert found.runs[1].over_seeds("return").size == 0
    for one, like in ((found.runs[0], whole.runs[1]), (found.runs[2], whole.runs[3])):
        same(equimorph.load(one.path).state, equimorph.load(like.path).state, rtol=2e-4)
        np.testing.assert_allclose(one.over_seeds("return"), like.over_seeds("return"), rtol=1e-4)
    told = []
    assert swept(tmp_path / "sweep", over, report=told.append).notes() == found.notes()
    assert told == ["3 of 3 combinations are done already"]


def test_every_seed_has_the_policy_of_its_own_best_evaluation(tmp_path, monkeypatch):
    """The first seed is best at the first evaluation, the second one at the second."""
    seen, returns = [], [[3.0, 1.0], [2.0, 5.0], [1.0, 4.0]]

    def scripted(*_):
        def measure(state):
            seen.append(jax.tree.map(np.array, state))
            return {"evaluation/return": np.array(returns[len(seen) - 1])}

        return measure

    monkeypatch.setattr(session, "make_monitor", scripted)
    flags = SETTINGS | {"training": {"iterations": 6, "num_seeds": 2}, "out": str(tmp_path / "run")}
    train_from_config(resolve("BrockMirman-v0", "reinforce", flags))
    for seed, best in ((0, 0), (1, 1)):
        found: Run = equimorph.load(tmp_path / "run", seed=seed, best=True)
        same(found.state, jax.tree.map(lambda leaf, seed=seed: leaf[seed], seen[best]))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["evaluation"]["return"] for line in lines if "evaluation" in line] == returns


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (RECORD, "{", f"delete {RECORD} there"),
        (RECORD, '{"failed": null, "together": 5, "cpu_seconds": 1}', f"delete {RECORD} there"),
        ("evaluation.json", '{"seeds": [{"return": "x"}, {"return": 1}]}', f"delete {RECORD} there"),
        ("evaluation.json", None, f"delete {RECORD} there"),
        ("run.json", None, "is in the way of a run of the sweep"),
    ],
)
def test_a_damaged_run_of_a_sweep_is_named_and_kept(whole, tmp_path, name, content, message):
    file = copied(whole, tmp_path) / whole.runs[0].name / name
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=message):
        resume_sweep(tmp_path / "copy")
    assert (file.parent / "policy.eqx").is_file()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("iterations: 4", "iterations: 5", "has another training.iterations than the sweep"),
        ("zip: false", "zip: 5", "is damaged"),
        ("over:", "other:", "is damaged"),
        ("- 0.9\n", "- 2020-01-01\n", "settings that YAML can hold"),
    ],
)
def test_a_definition_that_was_edited_is_refused(whole, tmp_path, old, new, message):
    """What is done was done by the old one."""
    file = copied(whole, tmp_path) / "sweep.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        resume_sweep(tmp_path / "copy")


def copied(whole, tmp_path):
    return Path(shutil.copytree(whole.path, tmp_path / "copy"))


def test_arguments_of_other_kinds_are_named(tmp_path, monkeypatch):
    for out in (None, "", "\0", "x" * 300):
        with pytest.raises(UserError, match=r"sweep's folder|needs a folder"):
            swept(out)
    with pytest.raises(UserError, match="zipped must be True or False"):
        swept(tmp_path, zipped="no")
    with pytest.raises(UserError, match="settings are nested"):
        sweep("BrockMirman-v0", "reinforce", [1], over=OVER, out=tmp_path / "sweep")  # pyright: ignore
    monkeypatch.setattr("equimorph.training.sweep.process_group", lambda: SimpleNamespace(size=2))
    with pytest.raises(UserError, match="trained by one process"):
        swept(tmp_path / "sweep")
    assert not list(tmp_path.iterdir())
