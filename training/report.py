"""Evaluations as text: a row a policy, a column a measure."""

from collections.abc import Mapping, Sequence
from typing import Any

# the columns in the order they are read; measures that no row has get none
MEASURES = {
    "score": "score",
    "score_sampled": "score, sampled",
    "return": "return",
    "regret": "regret",
    "welfare_loss": "welfare loss",
    "policy_error": "policy error",
    "euler.mean": "Euler mean",
    "euler.p99": "Euler p99",
    "euler.max": "Euler max",
}


def evaluation_table(evaluations: Mapping[str, Mapping[str, Any]]) -> str:
    """Evaluations one under the other, each with the untrained policy beside it.

    Args:
        evaluations: a name for each row ("trained", "seed 1", "deqn") to what `equimorph.evaluate` returned.

    Returns:
        An aligned table. A measure that a policy does not have is a dash. After ± stands the standard error of regret
        and welfare loss, and the standard deviation of a score over episodes.

    Example:
        >>> print(evaluation_table({"deqn": {"score": 2.0, "untrained": {"score": 1.0}}}))
                         score
        deqn                 2
        deqn, untrained      1
    """
    rows: dict[str, Mapping[str, Any]] = {}
    for name, evaluation in evaluations.items():
        rows[name] = evaluation
        if evaluation.get("untrained") is not None:
            rows["untrained" if name == "trained" else f"{name}, untrained"] = evaluation["untrained"]
    present = [key for key in MEASURES if any(_look_up(row, key) is not None for row in rows.values())]
    body = [[name, *(_cell(row, key) for key in present)] for name, row in rows.items()]
    return align([["", *(MEASURES[key] for key in present)], *body])


def evaluation_notes(evaluations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a reader of the table has to know: values that are not finite, paths that were not scored."""
    notes = []
    for name, evaluation in evaluations.items():
        for row, values in ((name, evaluation), (f"{name}, untrained", evaluation.get("untrained") or {})):
            discount, floored = values.get("effective_discount"), values.get("floored")
            if discount is not None and not discount < 1:
                notes.append(
                    f"{row}: the value of this policy is not finite (effective discount {discount:.4g}), so it has no "
                    "return, and its welfare loss counts as 1 whatever its Euler errors"
                )
            if floored:
                notes.append(f"{row}: {floored:.0%} of paths held up by the floor, or not finite; they are not scored")
    return notes


def align(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _look_up(evaluation: Mapping[str, Any], key: str) -> Any:
    group, _, leaf = key.rpartition(".")
    inner = evaluation.get(group) if group else evaluation
    return inner.get(leaf) if inner else None


def _cell(evaluation: Mapping[str, Any], key: str) -> str:
    value = _look_up(evaluation, key)
    if value is None:
        return "-"
    error = evaluation.get(f"{key}_se", evaluation.get(f"{key}_sd"))
    return f"{float(value):.4g}" if error is None else f"{float(value):.4g} ± {float(error):.1g}"
