"""Several runs of one environment in one table, scored on the same shocks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from .evaluation.scoring import Evaluation, evaluate
from .run import Run, load


def compare_runs(paths: Sequence[str | os.PathLike]) -> tuple[dict[str, Evaluation], list[str]]:
    """Score runs side by side.

    All are scored as the first one's settings say: the same paths, horizon and shocks.

    Args:
        paths: run folders, two or more.

    Returns:
        A name for each run and seed to its evaluation, empty for one that cannot be scored; and notes that say why.

    Raises:
        UserError: fewer than two runs, one that cannot be opened, or runs of different environments, parameters or
            equilibrium concepts; the message names what differs.
    """
    if len(paths) < 2:
        raise UserError("a comparison takes two run folders or more; one alone is scored by 'equimorph evaluate'")
    names = [os.fspath(path) for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"the run folder {twice[0]!r} is given twice")
    firsts = [load(path) for path in paths]
    for name, run in zip(names[1:], firsts[1:], strict=True):
        if difference := difference_of(firsts[0], run):
            raise UserError(f"{names[0]} and {name} cannot be compared: {difference}")
    evaluations: dict[str, Evaluation] = {}
    notes = []
    for path, name, first in zip(paths, names, firsts, strict=True):
        count = first.config.training.num_seeds
        for seed in range(count):
            run = first if seed == 0 else load(path, seed=seed)
            run = dataclasses.replace(
                run, config=run.config.model_copy(update={"evaluation": firsts[0].config.evaluation})
            )
            label = name if count == 1 else f"{name}, seed {run.config.training.seed + seed}"
            try:
                evaluations[label] = evaluate(run)
            except UserError as error:
                evaluations[label] = {}
                notes.append(f"{label} cannot be scored: {error}")
    return evaluations, notes


def difference_of(first: Run, second: Run) -> str:
    """In what the economies of two runs differ, in words; empty where they are the same."""
    if first.config.env.id != second.config.env.id:
        return f"one is of {first.config.env.id}, the other of {second.config.env.id}"
    if first.concept != second.concept:
        return f"concept is {first.concept!r} and {second.concept!r}"
    for prefix, one, other in (("env.", first.env, second.env), ("env.params.", first.params, second.params)):
        for name, value, there in _fields(one, other):
            if not _equal(value, there):
                return f"{prefix}{name} is {_shown(value)} and {_shown(there)}"
    return ""


def _fields(one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """The fields of two dataclasses of one kind; whole, where they are no dataclasses."""
    if not dataclasses.is_dataclass(one) or type(one) is not type(other):
        return [("id", one, other)]
    return [(f.name, getattr(one, f.name), getattr(other, f.name, None)) for f in dataclasses.fields(one)]


def _equal(one: Any, other: Any) -> bool:
    if hasattr(one, "shape") and hasattr(other, "shape"):
        return np.array_equal(np.asarray(one), np.asarray(other))
    return bool(one == other)


def _shown(value: Any) -> str:
    return np.array2string(np.asarray(value), threshold=8) if hasattr(value, "shape") else repr(value)
