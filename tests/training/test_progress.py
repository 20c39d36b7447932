"""Progress that suits where it is shown."""

import io
import math

import numpy as np
import pytest
from rich.console import Console

from equimorph.errors import UserError
from equimorph.training import progress as progress_module
from equimorph.training.cli import main
from equimorph.training.progress import Progress, duration, lines_without_terminal
from equimorph.training.summary import headline


def shown(monkeypatch, *, terminal=False, enabled=True, times=(), total=None, done=0, compiled=None):
    """What is printed with reports at `times`, one an iteration; `compiled`: when the first call came back."""
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, get_time=lambda: 0.0)
    with Progress(total or len(times), 100, done=done, enabled=enabled, console=console) as progress:
        if compiled is not None:
            progress.compiling()
            now[0] = compiled
            progress.compiled(done + 1, compiled)
        first = done + (1 if compiled is None else 2)
        for iteration, now[0] in enumerate(times, first):
            progress.update(iteration, score=0.5 if iteration == first + 1 else None, name="return")
    return out.getvalue()


def test_lines_where_there_is_no_terminal_ever_farther_apart(monkeypatch):
    """Compiling is no part of the rate, 100 steps a second; waits are 2, 3, 4.5, 6.75 ... seconds at least."""
    text = shown(monkeypatch, compiled=30.0, times=[30.0 + k for k in range(1, 20)], total=20)
    assert text.splitlines() == [
        "compiling ...",
        "compiled, and ran the first iteration, in 30.0 s",
        "iteration 3/20, 17 s left, 100 steps/s, return 0.5",
        "iteration 6/20, 14 s left, 100 steps/s, return 0.5",
        "iteration 11/20, 9 s left, 100 steps/s, return 0.5",
        "iteration 18/20, 2 s left, 100 steps/s, return 0.5",
        "iteration 20/20, 0 s left, 100 steps/s, return 0.5",
    ]


def test_compiling_is_no_part_of_the_first_rate_either(monkeypatch):
    text = shown(monkeypatch, compiled=30.0, times=[40.0], total=11)
    assert text.splitlines()[-1] == "iteration 2/11, 1 min 30 s left, 10 steps/s"


def test_a_run_that_goes_on_counts_only_what_it_does_itself(monkeypatch):
    """From 900 of 1,000: an iteration in 20 s leaves 99 of them, and not 100 / 901 of that."""
    text = shown(monkeypatch, times=[20.0], total=1000, done=900)
    assert text == "iteration 901/1000, 33 min 00 s left, 5 steps/s\n"


def test_nothing_where_it_is_not_wanted(monkeypatch):
    assert shown(monkeypatch, terminal=True, enabled=False, times=[20.0], compiled=1.0) == ""


def test_unasked_it_is_silent_in_python_and_lines_from_the_command_line(monkeypatch):
    assert shown(monkeypatch, enabled=None, times=[20.0]) == ""
    with lines_without_terminal():
        assert shown(monkeypatch, enabled=None, times=[20.0]).startswith("iteration 1/1, ")
        assert shown(monkeypatch, enabled=False, times=[20.0]) == ""
    assert shown(monkeypatch, enabled=None, times=[20.0]) == ""


@pytest.mark.parametrize("more", [["--out", "here"], ["--resume", "there"]])
def test_the_command_line_asks_for_lines_and_passes_verbose_on(monkeypatch, more, tmp_path):
    import equimorph.training.trainer as trainer

    found = []

    def train(config):
        found.append((config.logging.verbose, Progress(1, 1, console=Console(file=io.StringIO()))._shown))
        raise UserError("enough")

    def resume(path, *, checkpoint, changes, sets):
        found.append((changes["logging"]["verbose"], Progress(1, 1, console=Console(file=io.StringIO()))._shown))
        raise UserError("enough")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.yaml").touch()
    monkeypatch.setattr(trainer, "train_from_config", train)
    monkeypatch.setattr(trainer, "resume", resume)
    assert main(["train", "BrockMirman-v0", "--agent", "mappo", "--verbose", *more]) == 2
    assert found == [(True, True)]


def test_a_bar_on_a_terminal():
    out = io.StringIO()
    with Progress(3, 100, console=Console(file=out, force_terminal=True, width=140)) as progress:
        progress.compiling()
        progress.compiled(1, 1.25)
        progress.update(2)
        progress.update(3, score=math.nan)
    text = out.getvalue()
    for part in ("compiling ...", "in 1.2 s", "3/3", "left", "steps/s"):
        assert part in text
    assert "score" not in text


def test_times_in_units_that_suit():
    assert [duration(s) for s in (0.4, 59.4, 59.6, 3599.4, 3599.6, 7380)] == [
        "0 s", "59 s", "1 min 00 s", "59 min 59 s", "1 h 00 min", "2 h 03 min",
    ]  # fmt: skip


def test_the_one_number_is_a_score_a_return_or_the_loss_of_conditions():
    rewards = {"loss/policy": 1.0, "loss/value": 2.0, "episode/return": np.array([3.0, np.nan, 5.0])}
    assert headline(rewards) == (4.0, "return")
    assert headline(rewards | {"episode/score": 7.0}) == (7.0, "score")
    assert headline(rewards | {"episode/return": np.nan}) == (None, "return")
    residuals = {"loss/euler": np.array([1.0, 3.0]), "loss/price": 0.5, "loss/grad_norm": 9.0, "episode/return": 1.0}
    assert headline(residuals) == (2.5, "loss")
    assert headline({"episode/return": 1.0}) == (1.0, "return")
