"""What became of a sweep, as one table: on the terminal and as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..storage import write_text
from .report import MEASURES, align, look_up

TABLE = "table.csv"

SHOWN = ("score", "return", "exploitability")
"""Measures of the printed table; the file has all."""


def as_text(value: Any) -> str:
    """A setting's value as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What became of one combination.

    Attributes:
        name: of its folder.
        path: its run folder.
        values: of what is swept, by dotted name.
        evaluations: what `evaluate` found, one a seed.
        together: the names of those that it was trained side by side with, its own among them; empty: alone.
        cpu_seconds: of the process while it was trained, compilation too; of those side by side an equal share each.
        failed: why it has no score; None where it has one.
    """

    name: str
    path: Path
    values: Mapping[str, Any]
    evaluations: Sequence[Mapping[str, Any]]
    together: Sequence[str]
    cpu_seconds: float
    failed: str | None

    def over_seeds(self, key: str, *, untrained: bool = False) -> np.ndarray:
        """A measure by its dotted name, one number a seed, `[seeds]`; empty where it is not defined."""
        rows = [one.get("untrained") or {} if untrained else one for one in self.evaluations]
        values = [look_up(row, key) for row in rows]
        return np.array([value for value in values if value is not None], float)

    @property
    def reference(self) -> float | None:
        """The return of the known answer, where there is one."""
        returns, regrets = self.over_seeds("return"), self.over_seeds("regret")
        return float(np.mean(returns + regrets)) if len(returns) and len(returns) == len(regrets) else None


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What became of a sweep.

    Attributes:
        path: its folder.
        runs: one a combination, in order; those that are over.
    """

    path: Path
    runs: Sequence[Trained]

    @property
    def measures(self) -> list[str]:
        """Dotted names of the measures that some combination has."""
        return [key for key in MEASURES if any(len(one.over_seeds(key)) for one in self.runs)]

    def table(self) -> str:
        """A row a combination: what is swept, its scores beside the untrained policy's, what it cost.

        A score is the mean over seeds, after ± its standard deviation over them where there are several.
        """
        if not self.runs:
            return "no combination is over"
        shown = [key for key in self.measures if key in SHOWN]
        if all(np.array_equal(one.over_seeds("score"), one.over_seeds("return")) for one in self.runs):
            shown = [key for key in shown if key != "return"]  # the environment has no other score
        known = any(one.reference is not None for one in self.runs)
        numbers = self._groups()
        head = ["", *self.runs[0].values]
        for key in shown:
            head += [MEASURES[key], "untrained"]
        head += [*(["reference return"] if known else []), "CPU s", "together"]
        rows = [head]
        for one in self.runs:
            row = [one.name, *map(as_text, one.values.values())]
            for key in shown:
                row += [_spread(one.over_seeds(key)), _spread(one.over_seeds(key, untrained=True))]
            row += [_spread(one.reference)] if known else []
            rows.append([*row, f"{one.cpu_seconds:.3g}", numbers[one.name] or "-"])
        return align(rows)

    def notes(self) -> list[str]:
        """What a reader of the table has to know."""
        return [f"{one.name}: {one.failed}" for one in self.runs if one.failed]

    def csv(self) -> str:
        """Every measure: its mean over seeds, their standard deviation (`_sd`), and the untrained policy's mean."""
        measures, numbers = self.measures, self._groups()
        columns = [name for key in measures for name in (key, f"{key}_sd", f"{key}_untrained")]
        swept = list(self.runs[0].values) if self.runs else []
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(
            ["run", *swept, *columns, "reference_return", "seeds", "cpu_seconds", "together", "failed", "folder"]
        )
        for one in self.runs:
            cells: list[Any] = []
            for key in measures:
                found, before = one.over_seeds(key), one.over_seeds(key, untrained=True)
                cells += [_mean(found), _sd(found), _mean(before)]
            end = [one.reference, len(one.evaluations), one.cpu_seconds, numbers[one.name], one.failed, one.path]
            writer.writerow([one.name, *map(as_text, one.values.values()), *cells, *end])
        return buffer.getvalue()

    def _groups(self) -> dict[str, str]:
        """The number of the group that each was trained in; empty for one that was trained alone."""
        numbers: dict[tuple[str, ...], str] = {}
        for one in self.runs:
            if one.together:
                numbers.setdefault(tuple(one.together), str(len(numbers) + 1))
        return {one.name: numbers.get(tuple(one.together), "") for one in self.runs}


def save_table(found: Sweep) -> None:
    """Write `table.csv` into the sweep's folder."""
    write_text(found.path / TABLE, found.csv())


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _sd(values: np.ndarray) -> float | None:
    return float(values.std(ddof=1)) if len(values) > 1 else None


def _spread(values: np.ndarray | float | None) -> str:
    """A mean, after ± the standard deviation."""
    found = np.atleast_1d(np.array([] if values is None else values, float))
    if not len(found):
        return "-"
    spread = _sd(found)
    return f"{found.mean():.4g}" if spread is None else f"{found.mean():.4g} ± {spread:.1g}"
