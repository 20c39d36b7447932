"""Several processes in the trainer: one run, one folder, one end. Two real ones over loopback share all the checks."""

import json
import os
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import equimorph
from equimorph.errors import UserError
from equimorph.training import distributed
from equimorph.training.checkpoint import Checkpoints
from equimorph.training.cli import main
from equimorph.training.guard import Signals

SETTINGS = (
    "rollout.num_envs=8", "rollout.num_steps=8", "agent.unscored_tail=2", "agent.widths=[8]",
    "training.iterations=10", "training.switch=[{at: 6, stepper: rmsprop, learning_rate: 0.01}]",
    "checkpoint.every=5", "checkpoint.keep=9", "evaluation.every=5", "evaluation.num_episodes=8",
    "evaluation.horizon=10", "logging.tensorboard=false",
)  # fmt: skip

PROGRAM = """
import json, os, signal, sys
from equimorph.training import distributed

rank, settings = int(sys.argv[2]), json.loads(sys.argv[3])
distributed.initialize_distributed(sys.argv[1], 2, rank)

import jax
import numpy as np
import equimorph
from equimorph.errors import UserError
from equimorph.training import cli, parallel, session
from equimorph.training.config import resolve

def config(*more):
    return resolve("BrockMirman-v0", "reinforce", {"devices": {"count": None}}, sets=[*settings, *more])

def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(parallel.to_host(tree))]

def command(*more):
    sets = [word for one in (*settings, "devices.count=null", *more) for word in ("--set", one)]
    return cli.main(["train", "BrockMirman-v0", "--agent", "reinforce", *sets])

def refused(call):
    try:
        call()
    except Exception as error:
        found[call.__name__] = f"{type(error).__name__}: {error}"

assert jax.device_count() == 4
found = {}
state, history = equimorph.train_from_config(config("out=run"))
found["policy"] = [leaf.tolist() for leaf in leaves(state.agent)]
found["history"] = {name: history[name].tolist() for name in ("loss/policy", "episode/finished")}
run = equimorph.resume("run", checkpoint=5)
found["resumed"] = all(np.array_equal(a, b) for a, b in zip(leaves(state.agent), leaves(run.state), strict=True))
found["taken"] = command("out=run")

def other_seed():
    equimorph.train_from_config(config(f"training.seed={rank}"))

def one_device():
    equimorph.train_from_config(config("devices.count=1", "out=one"))

def not_finite():
    more = "agent.learning_rate=1e38", "guard.on_nonfinite=rollback", "guard.max_rollbacks=1"
    equimorph.train_from_config(config("out=broken", "training.switch=[]", *more))

def crashed():
    with distributed.process_group().together():
        if rank == 1:
            raise ValueError("a mistake of ours")
        distributed.process_group().wait()

for call in (other_seed, one_device, not_finite, crashed):
    refused(call)

def book(self, rows, seconds, plain=session.Session.book):
    finite = plain(self, rows, seconds)
    if rank == 1 and self.position.iteration == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return finite

session.Session.book = book
try:
    command("out=stopped", "evaluation.every=null")
except SystemExit as stopped:
    found["stopped"] = stopped.code
found["files"] = sorted(os.listdir("."))
print("FOUND", json.dumps(found))
"""


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def start(words, folder, devices=2):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    folder.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", *words], env=environment, cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def heard(processes, seconds):
    """What processes said until they ended; where one does not, all are ended."""
    try:
        return [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """What two processes of two devices each found, what they said, and the folders they ran in."""
    address, folder = free_address(), tmp_path_factory.mktemp("pair")
    folders = [folder / str(rank) for rank in range(2)]
    both = [start([PROGRAM, address, str(rank), json.dumps(SETTINGS)], folders[rank]) for rank in range(2)]
    said = heard(both, 300)
    for process, (_, errors) in zip(both, said, strict=True):
        assert process.returncode == 0, errors[-3000:]
    lines = [next(line for line in out.splitlines() if line.startswith("FOUND")) for out, _ in said]
    return [json.loads(line.removeprefix("FOUND")) for line in lines], [errors for _, errors in said], folders


@pytest.mark.slow
def test_two_processes_train_what_one_device_does(pair, tmp_path):
    """Ten iterations over a change of stepper, with evaluations: within 1e-5 of the run of one process."""
    from equimorph.training.config import resolve

    (first, second), _, _ = pair
    config = resolve("BrockMirman-v0", "reinforce", sets=[*SETTINGS, f"out={tmp_path}"])
    alone, history = equimorph.train_from_config(config)
    assert first["policy"] == second["policy"]
    assert first["history"] == second["history"]
    for a, b in zip(first["policy"], jax.tree.leaves(alone.agent), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(first["history"]["loss/policy"], history["loss/policy"], rtol=1e-4, atol=1e-5)
    assert sum(first["history"]["episode/finished"]) == history["episode/finished"].sum()


@pytest.mark.slow
def test_first_process_keeps_the_run_and_others_write_nothing(pair):
    (first, second), _, folders = pair
    assert first["files"] == ["broken", "run", "stopped"]
    assert second["files"] == []
    run = folders[0] / "run"
    assert Checkpoints(run).iterations() == [5, 10]
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [report["time"]["iteration"] for report in reports] == list(range(1, 11))
    assert [report["step"] for report in reports if "evaluation" in report] == [5 * 64, 10 * 64]
    kept = equimorph.load(run)
    for a, b in zip(first["policy"], jax.tree.leaves(kept.state), strict=True):
        np.testing.assert_array_equal(np.asarray(a, b.dtype), b)
    assert (run / "best.eqx").is_file()


@pytest.mark.slow
def test_a_resumed_run_is_the_same_to_the_bit(pair):
    assert [found["resumed"] for found in pair[0]] == [True, True]


@pytest.mark.slow
def test_an_error_of_one_process_ends_both_with_its_message(pair):
    (first, second), errors, _ = pair
    assert first["taken"] == second["taken"] == 2
    for text in errors:
        assert "error: the run folder 'run' already holds a run" in text
    wanted = "UserError: the processes of a run must have the same settings: training.seed is 0 in process 0 and 1 in"
    assert first["other_seed"] == second["other_seed"] == f"{wanted} process 1"
    assert first["one_device"] == second["one_device"]
    assert "devices.count = 1 leaves out some of the 4 devices of 2 processes" in first["one_device"]
    assert first["not_finite"] == second["not_finite"]
    assert "not finite" in first["not_finite"]
    assert "after 1 rollbacks" in first["not_finite"]
    assert "broken keeps the untrained policy" in first["not_finite"]
    assert first["crashed"] == "RuntimeError: process 1 ended with ValueError: a mistake of ours"
    assert second["crashed"] == "ValueError: a mistake of ours"


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_iteration(pair):
    (first, second), errors, folders = pair
    assert first["stopped"] == second["stopped"] == 143
    for text in errors:
        assert "stopped at iteration 3 of 10; saved in stopped" in text
    assert Checkpoints(folders[0] / "stopped").iterations() == [3]


@pytest.mark.extended
def test_sigterm_from_outside_to_the_second_process_of_the_command_line(tmp_path):
    """As a cluster would send it: both end with 143, within seconds, and a later single process goes on."""
    address, run = free_address(), tmp_path / "run"
    sets = [word for one in (*SETTINGS, "training.iterations=1000000") for word in ("--set", one)]
    words = ["from equimorph.training.cli import main; raise SystemExit(main())", "train", "BrockMirman-v0"]
    words += ["--agent", "reinforce", "--out", str(run), "--distributed", "--coordinator", address, *sets]
    counted = ["--num-processes", "2", "--process-id"]
    both = [start([*words, *counted, str(rank)], tmp_path / str(rank)) for rank in range(2)]
    deadline = time.monotonic() + 120
    while not (run / "checkpoints" / "10").is_dir() and time.monotonic() < deadline:
        time.sleep(0.2)
    both[1].terminate()
    said = [errors for _, errors in heard(both, 60)]
    assert [process.returncode for process in both] == [143, 143], said
    done = Checkpoints(run).iterations()[-1]
    assert all(f"stopped at iteration {done} of 1000000; saved in {run}" in text for text in said)
    assert main(["train", "--resume", str(run), "--iterations", str(done + 1), "--set", "devices.count=1"]) == 0


def test_alone_a_group_returns_what_it_is_given():
    group = distributed.ProcessGroup()
    value = object()
    with group.together():
        assert group.gather(value) == [value]
        assert group.of_primary(lambda: value) is value
    assert (group.size, group.rank, group.primary) == (1, 0, True)


def test_a_shared_signal_counts_once_all_have_heard_of_it():
    signals = Signals(shared=True)
    signals.noted = 15
    assert signals.received is None
    signals.agree([None, None])
    assert signals.received is None
    signals.agree([None, 15])
    signals.agree([2, None])
    assert signals.received == 15


@pytest.mark.parametrize("option", [("--coordinator", "host:1"), ("--num-processes", "2"), ("--process-id", "0")])
def test_places_of_processes_need_distributed(option, capsys):
    assert main(["train", "BrockMirman-v0", *option]) == 2
    assert f"{option[0]} does not apply without --distributed" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["host", "host:", "host:99999", "host:0", ":12345", "host:port"])
def test_a_coordinator_without_host_or_port_is_refused_at_once(address, monkeypatch):
    reason = f"must be host:port with a port from 1 to 65535, got '{address}'"
    with pytest.raises(UserError, match=f"^coordinator {reason}"):
        distributed.initialize_distributed(address, 2, 0)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
    with pytest.raises(UserError, match=f"JAX_COORDINATOR_ADDRESS {reason}"):
        distributed.initialize_distributed()
