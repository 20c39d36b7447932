"""What a run reports on its way, in files."""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
from jaxtyping import UInt8

from ..errors import UserError
from ..storage import write_text
from .tensorboard_log import Settings, TensorBoardLog
from .wandb_log import WandbLog

Metric = float | Sequence[float] | None


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
    """Writes metrics as JSON lines, and as TensorBoard or Weights and Biases show them.

    A metric's name is "group/name": loss/, episode/, policy/, evaluation/, time/. None means that there is nothing to
    report (no episode has finished): the metric is left out. So is a NaN of the group episode/, which is how a compiled
    loop says the same. A NaN elsewhere is a finding: null in the JSON line, NaN on TensorBoard.

    Args:
        folder: where `metrics.jsonl` and the events go; it exists.
        tensorboard: whether to write events.
        after: environment steps after which the run goes on; reports of later ones are dropped.
        seconds: wall-clock time of the run so far.
        wandb: where else it goes.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        tensorboard: bool = True,
        after: int = 0,
        seconds: float = 0.0,
        wandb: WandbLog | None = None,
    ):
        self._start = time.monotonic() - seconds
        path = Path(folder) / "metrics.jsonl"
        self._path = path
        if path.exists():
            write_text(path, "".join(_reports_until(path, after)))
        self._lines: TextIO = path.open("a", encoding="utf-8")
        self._board = TensorBoardLog(folder, after) if tensorboard else None
        self._shown = [each for each in (self._board, wandb) if each is not None]
        self._finished = False

    def write(self, step: int, metrics: Mapping[str, Metric]) -> None:
        """Record one report.

        Args:
            step: environment steps so far.
            metrics: "group/name" to a number, or to one number a seed, of which TensorBoard and Weights and Biases show
                the mean.
        """
        means: dict[str, float] = {}
        line: dict[str, Any] = {"step": int(step), "seconds": round(time.monotonic() - self._start, 3)}
        for name, metric in metrics.items():
            value = _none_if_unfinished(name, metric)
            if value is None:
                continue
            group, _, leaf = name.rpartition("/")
            (line.setdefault(group, {}) if group else line)[leaf] = plain(value)
            known = [number for number in (value if isinstance(value, list) else [value]) if number is not None]
            means[name] = sum(known) / len(known)
        for each in self._shown:
            each.scalars(int(step), means)
        try:
            self._lines.write(json.dumps(line, allow_nan=False) + "\n")
            self._lines.flush()
        except OSError as error:
            raise UserError(f"cannot write {os.fspath(self._path)!r}: {error.strerror}; what is there stays") from None

    def begin(self, settings: Settings, text: str) -> None:
        """Write what the run is made of, for TensorBoard: settings by dotted name, and the configuration in YAML."""
        if self._board is not None:
            self._board.begin(settings, text)

    def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Show distributions, "group/name" to numbers of any shape; those that are not finite are left out."""
        finite = {name: array[np.isfinite(array)] for name, array in values.items()}
        for each in self._shown:
            each.histograms(int(step), {name: array for name, array in finite.items() if array.size})

    def images(self, step: int, images: Mapping[str, UInt8[np.ndarray, "H W 3"]]) -> None:
        """Show pictures by "group/name"."""
        for each in self._shown:
            each.images(int(step), images)

    def finish(self) -> None:
        """Note that the run has come to its end; until then it counts as one that may go on."""
        self._finished = True

    def close(self, *, failed: bool = False) -> None:
        """Flush and close the files."""
        with contextlib.suppress(OSError):  # a full disk, of which writing has told
            self._lines.close()
        for each in self._shown:
            each.close(self._finished, failed)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)


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
