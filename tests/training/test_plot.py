"""Curves over a training, with quantiles over seeds."""

import json
from pathlib import Path

import numpy as np
import pytest

import equimorph
from equimorph.errors import UserError
from equimorph.training import bands
from equimorph.training.cli import main

RETURNS = np.array([[4.0, 1.0, 2.0, 5.0, 3.0], [40.0, 10.0, 20.0, 50.0, 30.0]])
"""Five seeds, two evaluations."""


@pytest.fixture
def run(written, tmp_path):
    """A run folder that reports of four iterations, evaluated at every other."""
    written(tmp_path / "run", num_seeds=5)
    return report(tmp_path / "run", RETURNS)


def report(path: Path, returns):
    lines = []
    for iteration in range(1, 5):
        line = {"step": 32 * iteration, "seconds": 1.0, "time": {"iteration": iteration, "steps_per_second": 9.0}}
        if iteration % 2 == 0:
            line["evaluation"] = {"return": returns[iteration // 2 - 1].tolist()}
        lines.append(json.dumps(line | {"loss": {"policy": [None, 1.0, 2.0, 3.0, 4.0]}}))
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn while a test runs."""
    figures, draw = [], bands._figure

    def keep(*args):
        figures.append(draw(*args))
        return figures[-1]

    monkeypatch.setattr(bands, "_figure", keep)
    return figures


def test_a_curve_is_the_median_and_bands_are_quantiles_over_seeds(run, drawn, tmp_path):
    """Of 1 to 5 the median is 3, the quartiles are 2 and 4, and the tenths 1.4 and 4.6."""
    out = equimorph.plot(run, out=tmp_path / "curve.png", over="steps")
    assert out.read_bytes().startswith(b"\x89PNG")
    (axis,) = drawn[0].axes
    (line,) = axis.lines
    np.testing.assert_allclose(line.get_xydata(), [[64, 3], [128, 30]])
    edges = [sorted(set(band.get_paths()[0].vertices[:, 1])) for band in axis.collections]
    np.testing.assert_allclose(edges, [[1.4, 4.6, 14, 46], [2, 4, 20, 40]])
    assert axis.get_ylabel() == "evaluation/return"
    assert axis.get_xlabel() == "environment steps"


def test_seeds_without_a_number_are_left_out_of_quantiles():
    values = np.array([[np.nan, 1.0, 3.0], [np.nan, np.nan, np.nan]])
    np.testing.assert_array_equal(bands.quantiles(values, 50), [2.0, np.nan])
    np.testing.assert_array_equal(bands.quantiles(values, 25), [1.5, np.nan])


def test_several_runs_have_a_curve_each_and_one_seed_has_no_band(run, written, drawn, tmp_path, capsys):
    written(tmp_path / "single")
    single = report(tmp_path / "single", RETURNS[:, 0])
    command = ["plot", str(run), str(single), "--metric=evaluation/return", f"--out={tmp_path / 'both.svg'}"]
    assert main(command) == 0
    (axis,) = drawn[0].axes
    np.testing.assert_allclose([line.get_ydata() for line in axis.lines], [[3, 30], [4, 40]])
    np.testing.assert_allclose(axis.lines[0].get_xdata(), [2, 4])
    assert len(axis.collections) == 2
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [str(run), str(single)]
    assert main(command) == 2
    assert "is there already" in capsys.readouterr().err


def test_the_runs_of_a_sweep_are_called_by_what_is_swept(written, drawn, tmp_path):
    """One of them has reported nothing yet."""
    definition = {"base": {}, "over": {"env.params.beta": [0.9, 0.95]}, "zip": False}
    (tmp_path / "sweep.yaml").write_text(json.dumps(definition))
    written(tmp_path / "0-beta=0.9", num_seeds=5)
    report(tmp_path / "0-beta=0.9", RETURNS)
    equimorph.plot([tmp_path], "loss/policy", out=tmp_path / "curve.pdf")
    (axis,) = drawn[0].axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [2.5] * 4)
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts == ["env.params.beta=0.9", "env.params.beta=0.95: nothing yet"]


def test_what_cannot_be_drawn_is_named(run, written, tmp_path):
    out = tmp_path / "curve.png"
    with pytest.raises(UserError, match=r"unknown metric 'evaluation/retrun'. Did you mean 'evaluation/return'\?"):
        equimorph.plot(run, "evaluation/retrun", out=out)
    with pytest.raises(UserError, match="unknown axis 'seconds'"):
        equimorph.plot(run, out=out, over="seconds")
    with pytest.raises(UserError, match=r"must end in one of .png, .svg, .pdf"):
        equimorph.plot(run, out=tmp_path / "curve.jpg")
    with pytest.raises(UserError, match="is given twice"):
        equimorph.plot([run, run], out=out)
    written(tmp_path / "silent")
    with pytest.raises(UserError, match="has reported nothing yet"):
        equimorph.plot(tmp_path / "silent", out=out)
    (run / "metrics.jsonl").write_text('{"step": 1')
    with pytest.raises(UserError, match="cannot read the metrics in"):
        equimorph.plot(run, out=out)
    line = {"step": 1, "time": {"iteration": 1}, "loss": {"policy": "abc"}}
    (run / "metrics.jsonl").write_text(json.dumps(line))
    with pytest.raises(UserError, match="loss/policy is not a number"):
        equimorph.plot(run, "loss/policy", out=out)
    for runs, metric in ((5, None), ([None], None), (run, 5)):
        with pytest.raises(UserError, match="given by"):
            equimorph.plot(runs, metric, out=out)  # pyright: ignore
    assert not out.exists()


def test_a_run_whose_name_begins_with_an_underscore_is_in_the_legend():
    series = bands.Series(np.arange(2), np.arange(2), np.ones((2, 1)))
    (axis,) = bands._figure({"_run": series}, "a/b", "iterations", []).axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [" _run"]
