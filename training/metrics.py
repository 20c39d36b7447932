"""What a run reports on its way: numbers in files, and progress on the terminal."""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from ..errors import UserError
from ..storage import write_text

Metric = float | Sequence[float] | None

SECONDS_BETWEEN_LINES = 10.0


def plain(value: Any) -> Any:
    """Anything numeric or nested as plain Python that strict JSON holds: NaN and infinities become null.

    Args:
        value: numbers, NumPy or JAX arrays, strings, None, mappings and sequences of them.

    Example:
        >>> plain({"a": float("nan"), "b": (1, 2.5)})
        {'a': None, 'b': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class MetricsWriter:
    """Writes metrics as JSON lines, and as TensorBoard scalars by group.

    A metric's name is "group/name": loss/, episode/, policy/, evaluation/, time/. None means that there is nothing to
    report (no episode has finished): the metric is left out. So is a NaN of the group episode/, which is how a compiled
    loop says the same. A NaN elsewhere is a finding: null in the JSON line, NaN on TensorBoard.

    Args:
        folder: where `metrics.jsonl` and the events go; it exists.
        tensorboard: whether to write events.
        after: environment steps after which the run goes on; reports of later ones are dropped.
        seconds: wall-clock time of the run so far.
    """

    def __init__(self, folder: str | os.PathLike, *, tensorboard: bool = True, after: int = 0, seconds: float = 0.0):
        self._start = time.monotonic() - seconds
        path = Path(folder) / "metrics.jsonl"
        self._path = path
        if path.exists():
            write_text(path, "".join(_reports_until(path, after)))
        self._lines: TextIO = path.open("a", encoding="utf-8")
        self._events = None
        if tensorboard:
            from tensorboardX import SummaryWriter  # only where events are wanted

            self._events = SummaryWriter(os.fspath(folder), purge_step=after + 1 if after else None)

    def write(self, step: int, metrics: Mapping[str, Metric]) -> None:
        """Record one report.

        Args:
            step: environment steps so far.
            metrics: "group/name" to a number, or to one number a seed. TensorBoard shows the mean over seeds.
        """
        line: dict[str, Any] = {"step": int(step), "seconds": round(time.monotonic() - self._start, 3)}
        for name, metric in metrics.items():
            value = _none_if_unfinished(name, metric)
            if value is None:
                continue
            group, _, leaf = name.rpartition("/")
            (line.setdefault(group, {}) if group else line)[leaf] = plain(value)
            if self._events is not None:
                values = value if isinstance(value, list) else [value]
                known = [number for number in values if number is not None]
                self._events.add_scalar(name, sum(known) / len(known), int(step))
        try:
            self._lines.write(json.dumps(line, allow_nan=False) + "\n")
            self._lines.flush()
        except OSError as error:
            raise UserError(f"cannot write {os.fspath(self._path)!r}: {error.strerror}; what is there stays") from None

    def close(self) -> None:
        """Flush and close the files."""
        with contextlib.suppress(OSError):  # a full disk, of which writing has told
            self._lines.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _reports_until(path: Path, step: int) -> Iterator[str]:
    """The lines of a file of metrics up to an environment step; a half-written last one is left out."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        with contextlib.suppress(ValueError):
            if json.loads(line)["step"] <= step:
                yield line if line.endswith("\n") else line + "\n"


def _none_if_unfinished(name: str, metric: Any) -> Any:
    """A float, a list of floats and None, or None where there is nothing to report."""
    if metric is None:
        return None
    value = metric.tolist() if hasattr(metric, "tolist") else metric
    if isinstance(value, list | tuple):
        values = [_none_if_unfinished(name, inner) for inner in value]
        return values if any(inner is not None for inner in values) else None
    number = float(value)
    return None if name.startswith("episode/") and math.isnan(number) else number


class Progress:
    """How far a run is: a bar on a terminal, a line now and then elsewhere, or nothing.

    Args:
        iterations: how many there will be.
        steps_per_iteration: environment steps in each, over all environments and seeds.
        done: iterations that were done before, where a run goes on.
        enabled: True: always; False: never; None: only when the output is a terminal.
        console: where it goes; by default the standard output.
    """

    def __init__(
        self,
        iterations: int,
        steps_per_iteration: int,
        *,
        done: int = 0,
        enabled: bool | None = None,
        console: Console | None = None,
    ):
        self._iterations = iterations
        self._steps = steps_per_iteration
        self._done = done
        self._console = console or Console()
        self._bar: Bar | None = None
        self._shown = self._console.is_terminal if enabled is None else enabled
        self._start = self._last_line = time.monotonic()
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> "Progress":
        self._start = self._last_line = time.monotonic()
        if self._shown and self._console.is_terminal:
            columns = [
                TextColumn("iteration"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[report]}"),
            ]  # fmt: skip
            self._bar = Bar(*columns, console=self._console)
            self._task = self._bar.add_task("", total=self._iterations, completed=self._done, report="compiling")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, iteration: int, score: float | None = None) -> None:
        """Report that `iteration` iterations are done.

        Args:
            iteration: how many are done.
            score: the latest score; None or NaN where there is none yet.
        """
        if not self._shown:
            return
        now = time.monotonic()
        report = " ".join(part for part in (self._rate(iteration, now), _score_text(score)) if part)
        if self._bar is not None:
            self._bar.update(self._task, completed=iteration, report=report)
        elif now - self._last_line >= SECONDS_BETWEEN_LINES or iteration >= self._iterations:
            self._last_line = now
            left = (now - self._start) / max(iteration - self._done, 1) * (self._iterations - iteration)
            self._console.print(
                f"iteration {iteration}/{self._iterations}, {left:.0f} s left, {report}", highlight=False
            )

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        if self._shown:
            self._console.print(text, highlight=False, markup=False)

    def _rate(self, iteration: int, now: float) -> str:
        """Environment steps a second since the first report: the time before it was compilation's."""
        if self._first is None:
            self._first = (iteration, now)
        done, seconds = iteration - self._first[0], now - self._first[1]
        if done <= 0 or seconds <= 0:
            done, seconds = iteration - self._done, max(now - self._start, 1e-9)
        return f"{done * self._steps / seconds:,.0f} steps/s"


def _score_text(score: float | None) -> str:
    return "" if score is None or math.isnan(score) else f"score {score:.4g}"
