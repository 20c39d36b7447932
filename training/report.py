"""Evaluations as text: a row a policy, a column a measure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

NEAR_STEADY_STATE = 0.1
"""Risk moves where an economy comes to rest by a few per cent; a path along which wealth only grows ends anywhere."""

# the columns in the order they are read; measures that no row has get none
MEASURES = {
    "score": "score",
    "score_sampled": "score, sampled",
    "return": "return",
    "regret": "regret",
    "welfare_loss": "welfare loss",
    "policy_error": "policy error",
    "auxiliary_error": "auxiliary error",
    "exploitability": "exploitability",
    "euler.mean": "log10 Euler mean",
    "euler.p99": "log10 Euler p99",
    "euler.max": "log10 Euler max",
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
    return align(evaluation_rows(evaluations))


def evaluation_rows(evaluations: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The cells of `evaluation_table`, its head first."""
    rows: dict[str, Mapping[str, Any]] = {}
    for name, evaluation in evaluations.items():
        rows[name] = evaluation
        if evaluation.get("untrained") is not None:
            rows["untrained" if name == "trained" else f"{name}, untrained"] = evaluation["untrained"]
    present = [key for key in MEASURES if any(look_up(row, key) is not None for row in rows.values())]
    body = [[name, *(_cell(row, key) for key in present)] for name, row in rows.items()]
    return [["", *(MEASURES[key] for key in present)], *body]


def evaluation_notes(evaluations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a reader of the table has to know: values that are not finite, paths that were not scored."""
    notes = []
    for name, evaluation in evaluations.items():
        untrained = "untrained" if name == "trained" else f"{name}, untrained"
        for row, values in ((name, evaluation), (untrained, evaluation.get("untrained") or {})):
            discount, floored = values.get("effective_discount"), values.get("floored")
            if discount is not None and not discount < 1:
                notes.append(
                    f"{row}: the value of this policy is not finite (effective discount {discount:.4g}), so it has no "
                    "return, and its welfare loss counts as 1 whatever its Euler errors"
                )
            if floored:
                notes.append(f"{row}: {floored:.0%} of paths held up by the floor, or not finite; they are not scored")
            notes += [f"{row}: {note}" for note in _doubts(values)]
    return notes


def verdict_line(evaluation: Mapping[str, Any]) -> str:
    """Whether it is solved, or which tests a full evaluation did not pass; empty where it made none."""
    verdict = evaluation.get("verdict")
    if verdict is None:
        return ""
    if evaluation["solved"]:
        return "solved: " + ", ".join(verdict) + " pass"
    words = {True: "passes", False: "fails", None: "could not be told"}
    return "not shown to be solved: " + ", ".join(f"{test} {words[passed]}" for test, passed in verdict.items())


def _doubts(values: Mapping[str, Any]) -> list[str]:
    """What a figure of one evaluation does not say by itself."""
    notes = []
    if values.get("states_not_finite"):
        notes.append(f"{values['states_not_finite']:.2%} of visited states are not finite; errors leave them out")
    places = {"visited states": "euler", "states of the box": "euler_box"}
    places |= {f"states of {key.removeprefix('euler_').replace('_', ' ')}": key for key in values if "sphere" in key}
    for place, key in places.items():
        if (values.get(key) or {}).get("not_finite"):
            notes.append(
                f"Euler errors at {values[key]['not_finite']:.2%} of the {place} are not finite; quantiles are "
                "of the others"
            )
    tolerance = (values.get("reference") or {}).get("tolerance")
    error = values.get("policy_error")
    if tolerance and error is not None and error <= tolerance:
        notes.append(f"its policy error of {error:.2g} cannot be told from the reference's own, {tolerance:.2g}")
    if values.get("best_response") == "trained":
        notes.append("gains of deviating are of best responses that were trained: a lower bound")
    stability = values.get("stability") or {}
    if stability.get("from_steady_state", 0.0) > NEAR_STEADY_STATE:
        rest = ", ".join(f"{name} = {value:.3g}" for name, value in list(stability["fixed_point"].items())[:4])
        away = f"{stability['from_steady_state']:.2g} from the economy's steady state"
        notes.append(f"the policy rests at {rest}, {away}: conditions also hold along paths that accumulate for ever")
    contraction = stability.get("contraction")
    if contraction is not None and contraction > 1 - 1e-6:
        notes.append(
            f"paths under common shocks do not come together (factor {contraction:.6g} a period): moments of "
            "levels depend on the start"
        )
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


def look_up(evaluation: Mapping[str, Any], key: str) -> Any:
    """A measure by its dotted name; None where it is not defined."""
    group, _, leaf = key.rpartition(".")
    inner = evaluation.get(group) if group else evaluation
    return inner.get(leaf) if inner else None


def _cell(evaluation: Mapping[str, Any], key: str) -> str:
    value = look_up(evaluation, key)
    if value is None:
        return "-"
    if key.startswith("euler."):
        return log10(value)
    error = evaluation.get(f"{key}_se", evaluation.get(f"{key}_sd"))
    return f"{float(value):.4g}" if error is None else f"{float(value):.4g} ± {float(error):.1g}"


def log10(value: Any) -> str:
    """A size by its decimal logarithm; "-inf" where it is 0, a dash where it is not a number."""
    if value is None or math.isnan(value):
        return "-"
    return f"{math.log10(value):.2f}" if 0 < value < math.inf else f"{math.inf if value else -math.inf:g}"
