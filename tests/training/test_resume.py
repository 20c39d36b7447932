"""Runs that are killed, interrupted, damaged or broken off, and go on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import equimorph
from equimorph.errors import UserError
from equimorph.training import session
from equimorph.training.checkpoint import FOLDER, Checkpoints
from equimorph.training.config import resolve
from equimorph.training.guard import FolderLock
from equimorph.training.monitor import make_monitor
from equimorph.training.trainer import resume, train_from_config

SETTINGS = {
    "rollout": {"num_envs": 8, "num_steps": 8},
    "training": {"iterations": 10},
    "checkpoint": {"every": 2},
    "evaluation": {"every": 4, "num_episodes": 8, "horizon": 20},
}

# Everything that could get lost: replay, target network, a switch, a schedule, rates that shrink.
EVERYTHING = {
    "agent": {"batch_size": 16, "replay_size": 256, "next_policy": "target", "schedule": "cosine"},
    "training": {"iterations": 10, "switch": [{"at": 7, "stepper": "sgd", "learning_rate": 1e-3}]},
    "plateau": {"patience": 1},
}


def settings(learner="mappo", out=None, **more):
    more = {"checkpoint": SETTINGS["checkpoint"] if out is not None else {}} | more
    more = {"deqn": EVERYTHING, "reinforce": {"agent": {"unscored_tail": 2}}}.get(learner, {}) | more
    return resolve("BrockMirman-v0", learner, {**SETTINGS, **more, "out": None if out is None else str(out)})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and its history."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    _, history = train_from_config(settings(out=folder))
    return folder, history


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it."""
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


KILLED = """
import sys
from equimorph.training import session
from equimorph.training.trainer import train_from_config
sys.path.insert(0, {tests!r})
from test_resume import settings
save = session.Session.save
def save_and_wait(self, *rest):
    save(self, *rest)
    self.checkpoints.wait()
    print(self.position.iteration, flush=True)
session.Session.save = save_and_wait
train_from_config(settings({agent!r}, {out!r}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "moment"), [("deqn", 8), ("mappo", 4), ("reinforce", 2)])
def test_a_killed_run_ends_as_if_nothing_had_happened(agent, moment, tmp_path):
    """SIGKILL soon after a checkpoint: the policy, the best policy and the history are the uninterrupted run's."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    program = KILLED.format(tests=os.path.dirname(__file__), agent=agent, out=str(killed))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if int(line) >= moment:
            process.kill()
            break
    process.wait()
    process.stdout.close()
    _, history = train_from_config(settings(agent, whole))
    with pytest.raises(UserError, match=r"did not finish.*equimorph train --resume"):
        equimorph.load(killed)
    found = resume(killed)
    assert same(found.state, equimorph.load(whole).state)
    assert same(equimorph.load(killed, best=True).state, equimorph.load(whole, best=True).state)
    for name, values in history.items():
        np.testing.assert_array_equal(found.history[name], values)
    assert [one["step"] for one in lines(killed)] == [one["step"] for one in lines(whole)]


def test_an_earlier_checkpoint_leads_to_the_same_end(run, finished):
    before = equimorph.load(run)
    assert Checkpoints(run).iterations() == [6, 8, 10]
    found = resume(run, checkpoint=6)
    assert same(found.state, before.state)
    np.testing.assert_array_equal(found.history["loss/value"], finished[1]["loss/value"])
    assert len(lines(run)) == len(lines(finished[0]))


def test_a_finished_run_is_handed_out_again(run, finished):
    found = resume(run)
    assert same(found.state, equimorph.load(finished[0]).state)
    np.testing.assert_array_equal(found.history["loss/value"], finished[1]["loss/value"])


def test_a_run_can_go_on_for_longer_and_with_another_stepper(run):
    before = equimorph.load(run)
    found = resume(run, changes={"training": {"iterations": 14}, "agent": {"stepper": "sgd", "learning_rate": 1e-4}})
    assert len(found.history["loss/value"]) == 14
    assert found.history["policy/learning_rate"][-1] == pytest.approx(1e-4)
    assert [switch.at for switch in found.config.training.switch] == [10]
    assert not same(found.state.nets, before.state.nets)
    again = equimorph.load(run)
    assert same(again.state, found.state)
    assert same(again.untrained_state.nets, before.untrained_state.nets)
    assert equimorph.load(run, best=True).state is not None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"sets": ["env.params.beta=0.9"]}, "cannot go on with env.params.beta = 0.9: the run has its default"),
        ({"sets": ["rollout.num_envs=4"]}, "cannot go on with rollout.num_envs = 4: the run has 8"),
        ({"changes": {"agent": {"name": "reinforce"}}}, "reinforce"),
        ({"checkpoint": 7}, "there is no checkpoint 7 in .*; there are 6, 8, 10"),
        ({"sets": ["training.iterations=9"]}, "less than the 10 iterations that are done"),
    ],
)
def test_what_cannot_go_on_is_named(run, how, message):
    content = (run / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=message):
        resume(run, **how)
    assert (run / "config.yaml").read_bytes() == content
    assert Checkpoints(run).iterations() == [6, 8, 10]


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_offered(run):
    for file in (run / FOLDER / "10" / "state").rglob("*"):
        if file.is_file() and file.stat().st_size > 300:
            file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"checkpoint 10 in .* is damaged .*--checkpoint 8"):
        resume(run)
    assert same(resume(run, checkpoint=8).state, equimorph.load(run).state)


def test_a_checkpoint_of_a_newer_version_is_refused(run):
    (record,) = (run / FOLDER / "10" / "record").glob("metadata")
    record.write_text(record.read_text().replace('"format": 1', '"format": 2').replace('"format":1', '"format":2'))
    with pytest.raises(UserError, match=r"checkpoint 10 .* has format 2; this version of equimorph reads format 1"):
        resume(run)


def test_another_structure_is_named_by_its_first_leaf(run):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("  name: mappo", "  name: mappo\n  widths: [8, 8]"))
    with pytest.raises(
        UserError, match=r"does not fit its configuration: it holds \S+ float32\[64, 2\] where .*\[8, 2\]"
    ):
        resume(run)


def test_a_folder_in_use_is_refused(run):
    lock = FolderLock(run)
    try:
        with pytest.raises(UserError, match="in use by a run that is still going"):
            resume(run)
    finally:
        lock.release()
    resume(run)


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    with pytest.raises(UserError, match=r"cannot write into the run folder .*Read-only file system"):
        train_from_config(settings(out=tmp_path / "run"))


def test_a_full_disk_leaves_what_is_there(run, monkeypatch):
    """The file of metrics is on a full device; earlier checkpoints stay."""
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/full")
    monkeypatch.setattr("equimorph.training.metrics._reports_until", lambda *_: [])
    monkeypatch.setattr("equimorph.training.metrics.write_text", lambda *_: None)
    with pytest.raises(UserError, match=r"cannot write .*metrics.jsonl.*No space left on device"):
        resume(run, sets=["training.iterations=12"])
    assert 10 in Checkpoints(run).iterations()


def test_a_checkpoint_that_cannot_be_written_is_told_in_one_line(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orbax.checkpoint.CheckpointManager.save", full)
    with pytest.raises(UserError, match=r"cannot write a checkpoint into .*: No space left on device; earlier ones"):
        train_from_config(settings(out=tmp_path / "run"))


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_finishes_the_iteration_and_saves(number, error, finished, tmp_path, monkeypatch, capsys):
    """In a chunk of many iterations the run ends at the next one, and goes on from exactly there."""
    out, calls, advance = tmp_path / "run", [], session.Session._step

    def step(self, part):
        whole = advance(self, part)

        def one(state, limit):
            calls.append(limit)
            if len(calls) == 2:
                signal.raise_signal(number)
            return whole(state, limit)

        return one

    monkeypatch.setattr(session.Session, "_step", step)
    with pytest.raises(error) as stopped:
        train_from_config(settings(out=out))
    done = sum(calls)
    assert done < 10
    assert Checkpoints(out).iterations()[-1] == done
    said = f"stopped at iteration {done} of 10"
    if error is SystemExit:
        assert stopped.value.code == 143
        assert said in capsys.readouterr().err
    else:
        assert said in str(stopped.value)
    monkeypatch.undo()
    assert equimorph.load(out).info["finished"] is False
    assert same(resume(out).state, equimorph.load(finished[0]).state)


def test_a_second_signal_ends_the_process_at_once(tmp_path):
    program = """
import os, signal, time
from equimorph.training.guard import Signals
with Signals():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    print("noted", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""
    started = time.monotonic()
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (130, "noted\n")
    assert time.monotonic() - started < 55


def test_not_finite_is_named_with_its_place_and_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    """The reward of environment 3 breaks in the seventh iteration."""
    out = tmp_path / "run"
    step = session.Session._step

    def broken(self, part):
        whole = step(self, part)

        def one(state, limit):
            if self.position.iteration >= 6:
                capital = state.env_state.k.at[3].set(np.nan)
                state = state._replace(env_state=state.env_state.replace(k=capital))
            return whole(state, limit)

        return one

    monkeypatch.setattr(session.Session, "_step", broken)
    message = r"observation or reward of environment 3 is not finite at iteration 7.*checkpoint of iteration 6"
    with pytest.raises(UserError, match=message):
        train_from_config(settings(out=out))
    monkeypatch.undo()
    assert Checkpoints(out).iterations()[-1] == 6
    assert len(resume(out).history["loss/value"]) == 10


def test_a_rollback_goes_back_with_smaller_rates(tmp_path):
    """A rate that breaks the run: it comes down by factors of a hundred thousand until the run goes through."""
    guard = {"on_nonfinite": "rollback", "factor": 1e-15, "max_rollbacks": 2}
    agent = {"learning_rate": 1e30, "schedule": "constant", "critic_warmup": 0}
    _, history = train_from_config(settings(guard=guard, agent=agent))
    assert len(history["loss/value"]) == 10
    assert np.isfinite(history["loss/value"]).all()
    assert history["policy/learning_rate"].max() == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(UserError, match=r"not finite at iteration .*, after 1 rollbacks"):
        train_from_config(settings(guard=guard | {"factor": 0.9, "max_rollbacks": 1}, agent=agent))


def test_rates_shrink_and_a_run_ends_early_when_evaluations_get_no_better(tmp_path):
    """With a rate of zero no evaluation is better than the first."""
    out = tmp_path / "run"
    flags = {
        "agent": {"learning_rate": 0.0, "schedule": "constant"},
        "evaluation": SETTINGS["evaluation"] | {"every": 1},
        "plateau": {"patience": 2, "factor": 0.1},
        "stopping": {"patience": 5},
    }
    _, history = train_from_config(settings(out=out, **flags))
    assert len(history["loss/value"]) == 6
    scales = [one["evaluation"]["rate_scale"] for one in lines(out)]
    assert scales == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    run = equimorph.load(out)
    assert "no better return in 5 evaluations" in run.info["stopped"]
    assert len(resume(out).history["loss/value"]) == 6


def test_the_best_policy_is_that_of_the_best_evaluation(tmp_path):
    """The policy is ruined after the first evaluation; the best one is the first."""
    out = tmp_path / "run"
    switch = [{"at": 4, "stepper": "sgd", "learning_rate": 10.0}]
    flags = {"training": {"iterations": 10, "switch": switch}, "evaluation": SETTINGS["evaluation"] | {"every": 2}}
    train_from_config(settings(out=out, **flags))
    found = {one["time"]["iteration"]: one["evaluation"]["return"] for one in lines(out) if "evaluation" in one}
    assert max(found, key=found.__getitem__) <= 4
    best, last = equimorph.load(out, best=True), equimorph.load(out)
    measure = make_monitor(best.config, best.env, best.params, best.agent)
    assert measure(best.state)["evaluation/return"] == pytest.approx(max(found.values()), rel=1e-12)
    assert not same(best.state.nets, last.state.nets)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"stopping": {"patience": 2}, "evaluation": {}}, "stopping.patience counts evaluations.*evaluation.every"),
        ({"plateau": {"factor": 0.1}}, "plateau.factor applies only with plateau.patience"),
        ({"guard": {"factor": 0.1}}, "guard.factor applies only with guard.on_nonfinite=rollback"),
        ({"guard": {"on_nonfinite": "rolback"}}, "guard.on_nonfinite"),
        ({"checkpoint": {"keep": 1}}, "checkpoint.keep applies only with a run folder"),
        ({"checkpoint": {"evry": 1}}, r"unknown key checkpoint.evry.*Did you mean 'checkpoint.every'\?"),
        ({"learner": "deqn", "agent": {"stepper": "lbfgs", "batch_size": 16}}, "'lbfgs' has no learning rate"),
    ],
)
def test_settings_that_do_not_go_together(flags, message):
    with pytest.raises(UserError, match=message):
        train_from_config(settings(**flags))
