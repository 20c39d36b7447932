"""Metrics in files."""

import json
import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from equimorph.training.metrics import MetricsWriter, plain


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_line_per_report_by_group(tmp_path):
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(64, {"loss/policy": np.float32(0.5), "episode/return": 3, "episode/length": 4.0, "score": 1.0})
        writer.write(128, {"loss/policy": 0.25, "time/rate": 2.0})
    first, second = lines(tmp_path)
    assert first.pop("seconds") >= 0
    assert first == {"step": 64, "loss": {"policy": 0.5}, "episode": {"return": 3.0, "length": 4.0}, "score": 1.0}
    assert (second["step"], second["loss"], second["time"]) == (128, {"policy": 0.25}, {"rate": 2.0})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_no_finished_episode_is_left_out_and_a_diverged_loss_is_not(tmp_path):
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(
            1, {"episode/return": math.nan, "episode/length": None, "loss/value": math.nan, "loss/policy": math.inf}
        )
        writer.write(2, {"episode/return": math.inf})
    first, second = lines(tmp_path)
    assert "episode" not in first
    assert first["loss"] == {"value": None, "policy": None}
    assert second["episode"] == {"return": None}


def test_one_number_a_seed(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"episode/return": np.array([1.0, np.nan, 3.0]), "episode/length": np.array([np.nan, np.nan])})
    assert lines(tmp_path)[0]["episode"] == {"return": [1.0, None, 3.0]}
    assert scalars(tmp_path) == {"episode/return": [(1, 2.0)]}


def scalars(folder):
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_the_scalars_by_group(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(64, {"loss/policy": 0.5, "episode/return": None})
        writer.write(128, {"loss/policy": 0.25, "episode/return": 2.0})
    assert scalars(tmp_path) == {"loss/policy": [(64, 0.5), (128, 0.25)], "episode/return": [(128, 2.0)]}


def test_lines_survive_an_error_inside(tmp_path):
    def stopped():
        with MetricsWriter(tmp_path, tensorboard=False) as writer:
            writer.write(1, {"loss/policy": 1.0})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert len(lines(tmp_path)) == 1


def test_plain_is_strict_json():
    tree = {"a": np.float32("nan"), 1: np.arange(2), "c": [math.inf, True, None, "x"], "d": np.int64(3)}
    assert json.loads(json.dumps(plain(tree), allow_nan=False)) == {
        "a": None,
        "1": [0, 1],
        "c": [None, True, None, "x"],
        "d": 3,
    }
