"""A metric of runs over their training, with quantiles over seeds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..errors import UserError, unknown
from ..storage import write_atomically
from .figures import COLOURS
from .render import check_output
from .run import check_run_folder
from .sweep_plan import DEFINITION, folders_of

METRICS = "metrics.jsonl"

FORMATS = (".png", ".svg", ".pdf")

USUAL = ("evaluation/score", "evaluation/return", "episode/score", "episode/return")
"""What is shown where no metric is named: the first of these that all runs have."""

BANDS = ((10, 90, 0.15), (25, 75, 0.3))
"""Quantiles in percent, from and to, and how strongly the band between them is drawn."""

OVER = ("iterations", "steps")


class Series(NamedTuple):
    """A metric over the reports of a run.

    Attributes:
        iterations, steps: when each report was made, in iterations and in environment steps of one seed, `[R]`.
        values: one a seed, NaN where a seed has none, `[R, seeds]`.
    """

    iterations: Int[np.ndarray, " R"]
    steps: Int[np.ndarray, " R"]
    values: Float[np.ndarray, "R seeds"]


def plot(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    metric: str | None = None,
    *,
    out: str | os.PathLike[str],
    over: str = "iterations",
    force: bool = False,
) -> Path:
    """Draw a metric of runs over their training, one curve a run.

    With several seeds a curve is the median, in bands from the 25th to the 75th and from the 10th to the 90th
    percentile over the seeds (linear between order statistics).

    Args:
        runs: run folders, or folders of sweeps, of which every run is drawn; one or several.
        metric: a name in `metrics.jsonl`, "group/name"; None takes the score or return of evaluations during the
            training, or of episodes.
        out: the file, .png, .svg or .pdf.
        over: "iterations", or "steps" of the environment, of one seed.
        force: replace the file if it is there.

    Returns:
        The file.

    Raises:
        UserError: no such metric in a run, no run, or a file that cannot be written or is there.
    """
    if not isinstance(out, str | os.PathLike) or "\0" in str(out):
        raise UserError(f"a figure needs a file's name, got {out!r}")
    if not isinstance(runs, str | os.PathLike | Iterable):
        raise UserError(f"runs are given by their folders, got {runs!r}")
    target = check_output(out, FORMATS, force=force)
    if over not in OVER:
        raise unknown("axis", str(over), OVER)
    if not isinstance(metric, str | None):
        raise UserError(f"a metric is given by its name, such as evaluation/return; got {metric!r}")
    paths = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    if wrong := [path for path in paths if not isinstance(path, str | os.PathLike)]:
        raise UserError(f"runs are given by their folders, got {wrong[0]!r}")
    every = [found for path in paths for found in _runs_in(path, alone=len(paths) == 1)]
    labelled = dict(every)
    labels = [label for label, _ in every]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise UserError(f"the run {twice[0]!r} is given twice; once is enough")
    if not labelled:
        raise UserError("there is no run to be drawn: give run folders, or that of a sweep")
    silent = [  # of a sweep that is under way
        label for label, path in labelled.items() if label != os.fspath(path) and not (path / METRICS).is_file()
    ]
    found = {label: read_metrics(path) for label, path in labelled.items() if label not in silent}
    if not found:
        raise UserError("no run of the sweep has reported anything yet")
    metric = _usual(found) if metric is None else metric
    for label, series in found.items():
        if metric not in series:
            raise UserError(f"{label}: {unknown('metric', metric, series)}")
    figure = _figure({label: series[metric] for label, series in found.items()}, metric, over, silent)
    write_atomically(target, lambda file: figure.savefig(file, format=target.suffix[1:], dpi=150))
    return target


def read_metrics(path: str | os.PathLike[str]) -> dict[str, Series]:
    """Every metric that a run reported, by its name "group/name".

    Raises:
        UserError: there is no run, it has reported nothing yet, or its file is damaged.
    """
    check_run_folder(path)
    file = Path(path, METRICS)
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        reports = [(line["time"]["iteration"], line["step"], dict(_named(line))) for line in lines]
    except FileNotFoundError:
        raise UserError(f"the run in {os.fspath(path)!r} has reported nothing yet") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read the metrics in {os.fspath(file)!r}: {error}") from None
    names = dict.fromkeys(name for _, _, values in reports for name in values)
    if not names:
        raise UserError(f"the run in {os.fspath(path)!r} has reported nothing yet")
    found = {}
    for name in names:
        rows = [(iteration, step, values[name]) for iteration, step, values in reports if name in values]
        iterations, steps, numbers = zip(*rows, strict=True)
        width = max(np.size(one) for one in numbers)
        try:
            table = np.array([np.broadcast_to(np.asarray(one, float), (width,)) for one in numbers])
            found[name] = Series(np.array(iterations, float), np.array(steps, float), table)
        except (ValueError, TypeError, OverflowError):
            raise UserError(
                f"cannot read the metrics in {os.fspath(file)!r}: {name} is not a number, or one a seed, in every line"
            ) from None
    return found


def quantiles(values: Float[np.ndarray, "R seeds"], percent: float) -> Float[np.ndarray, " R"]:
    """A quantile over the seeds that have a number, by report; NaN where none has."""
    known = ~np.isnan(values).all(axis=1)
    found = np.full(len(values), np.nan)
    found[known] = np.nanpercentile(values[known], percent, axis=1)
    return found


def _named(line: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The metrics of a report by their whole names; those of the clock are none."""
    for group, values in line.items():
        if isinstance(values, dict):
            for name, value in values.items():
                if (group, name) != ("time", "iteration"):
                    yield f"{group}/{name}", value
        elif group not in ("step", "seconds"):
            yield group, values


def _runs_in(path: str | os.PathLike[str], *, alone: bool) -> Iterator[tuple[str, Path]]:
    """Run folders with what they are called: a run's path, or what is swept of one in a sweep."""
    if Path(path, DEFINITION).is_file():
        for label, folder in folders_of(path).items():
            yield (label if alone else f"{os.fspath(path)}: {label}"), folder
    else:
        yield os.fspath(path), Path(path)


def _usual(found: dict[str, dict[str, Series]]) -> str:
    for name in USUAL:
        if all(name in series for series in found.values()):
            return name
    common = set.intersection(*(set(series) for series in found.values()))
    raise UserError(f"name a metric, one of {', '.join(sorted(common))}")


def _figure(found: dict[str, Series], metric: str, over: str, silent: Sequence[str]) -> Any:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axis = figure.subplots()
    many = mpl.colormaps["viridis"](np.linspace(0, 0.9, len(found)))
    colours = COLOURS if len(found) <= len(COLOURS) else many
    for (label, series), colour in zip(found.items(), colours, strict=False):
        x = series.steps if over == "steps" else series.iterations
        if series.values.shape[1] > 1:
            for low, high, strength in BANDS:
                lower, upper = (quantiles(series.values, percent) for percent in (low, high))
                axis.fill_between(x, lower, upper, color=colour, alpha=strength, linewidth=0)
        axis.plot(x, quantiles(series.values, 50), color=colour, linewidth=1.5, label=_shown(label))
    for label in silent:
        axis.plot([], [], color="none", label=_shown(f"{label}: nothing yet"))
    axis.set_xlabel("environment steps" if over == "steps" else "iteration")
    axis.set_ylabel(metric)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    seeds = sorted({series.values.shape[1] for series in found.values()})
    if seeds[-1] > 1:
        counts = " or ".join(map(str, seeds))
        axis.set_title(f"median over {counts} seeds; bands: 25 to 75 and 10 to 90 percent", fontsize=8)
    axis.legend(fontsize=7, frameon=False)
    return figure


def _shown(label: str) -> str:
    """A label that a legend shows: matplotlib hides those that begin with an underscore."""
    return f" {label}" if label.startswith("_") else label
