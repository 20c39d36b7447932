"""The report of a run as one page of HTML that needs nothing else: tables, pictures, and what they do not show."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ..envs.economy import Economy
from ..errors import UserError
from ..storage import write_text
from . import figures
from .metrics import plain
from .report import evaluation_notes, evaluation_rows, log10, verdict_line
from .run import Run

MOMENTS = ("mean", "sd", "autocorrelation", "skewness")
QUANTILES = ("mean", "median", "p90", "p99", "p999", "max")
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.86rem; }
.wide { overflow-x: auto; } th, td { padding: 0.2rem 0.8rem 0.2rem 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 1px solid #9aa7b3; font-weight: 600; }
figure { margin: 0.6rem 0; } figure img { max-width: 100%; height: auto; }
figcaption, .note, .absent { color: #566472; font-size: 0.86rem; } .verdict { font-size: 1.05rem; }
"""

Rows = Sequence[Sequence[str]]


def write_report(
    run: Run | str | os.PathLike,
    path: str | os.PathLike,
    *,
    force: bool = False,
    exploitability: str = "known",
) -> Path:
    """Evaluate a run, an economy's in full, and write its page.

    Args:
        run: a `Run`, or its folder.
        path: of the page.
        force: replace a file that is there.
        exploitability: as in `evaluate`.

    Returns:
        The page's path.

    Raises:
        UserError: as for `evaluate`; or the page's folder is missing, or there is something at `path`.

    Example:
        write_report(equimorph.train("BrockMirman-v0", "deqn"), "brock_mirman.html")
    """
    from .evaluation.scoring import evaluate
    from .run import load

    check_target(path, force=force)
    run = run if isinstance(run, Run) else load(run)
    found = evaluate(run, full=isinstance(run.env, Economy), exploitability=exploitability)
    return save_page(page(run, {"trained": found}), path, force=force)


def check_target(path: str | os.PathLike, *, force: bool = False, example: str = "report.html") -> None:
    """Refuse, before anything is computed, a file that could not be written or would replace another.

    Raises:
        UserError: names what is missing or in the way.
    """
    target = Path(path)
    try:
        is_folder, there = target.is_dir(), target.exists()
    except OSError as error:  # a name that is too long
        raise UserError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from None
    if not os.fspath(path) or is_folder:
        raise UserError(f"a file's name is needed, and {os.fspath(path)!r} is none; try {str(target / example)!r}")
    if not target.parent.is_dir():
        raise UserError(f"there is no folder {str(target.parent)!r} to write {target.name!r} into; make it first")
    if there and not force:
        raise UserError(f"{os.fspath(path)!r} is there already; choose another name, or replace it with --force")


def save_page(text: str, path: str | os.PathLike, *, force: bool = False) -> Path:
    """Write the page, whole or not at all.

    Raises:
        UserError: as for `check_target`, or the folder cannot be written to.
    """
    check_target(path, force=force)
    write_text(path, text)
    return Path(path)


def page(run: Run, evaluations: Mapping[str, Mapping[str, Any]]) -> str:
    """The page's text.

    Args:
        run: the run that is reported on.
        evaluations: a name for each row of the scores to an evaluation; the first is the full one, and of this run.
    """
    name, found = next(iter(evaluations.items()))
    found = plain(found)
    title = f"{run.config.env.id}, {run.config.agent.name}"
    absent = found.get("absent") or {}
    if not isinstance(run.env, Economy):
        absent = {
            "everything below": f"{run.config.env.id} is no economy: errors, stability and responses do not apply"
        }
    parts = [f"<h1>{escape(title)}</h1>", *_opening(run, found, name)]
    parts += _section("Scores", None, [_table(evaluation_rows(evaluations)), *_notes(evaluations), _score_words(found)])
    for heading, key, blocks in (
        ("Errors", "euler", list(_errors(found))),
        ("Limits that bind", "binding", list(_limits(found))),
        ("Stability", "stability", list(_stability(found, absent))),
        ("Policy", "policy", list(_policy(found))),
        ("Where the errors are", "euler", list(_map(found))),
        ("A simulated path", "path", list(_path(found))),
        ("Responses to shocks", "responses", list(_responses(found))),
        ("Moments", "moments", list(_moments(found))),
        ("Deviating alone", "exploitability", list(_game(found))),
        ("The perceived law of motion", "dynamic_error", list(_dynamic(found))),
    ):
        if blocks or key in absent or key == "euler":
            parts += _section(heading, _why(key, absent), blocks)
    parts += _section("What is not here", None, [_list(f"{what}: {why}" for what, why in absent.items())])
    parts += _section("The run", None, [_table(_facts(run))])
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


# -- the sections --------------------------------------------------------------------------------------------------


def _opening(run: Run, found: Mapping[str, Any], name: str) -> Iterator[str]:
    summary = [f"concept: {run.concept}"]
    if "welfare_loss" in found:
        summary.append(f"loss of consumption {_number(found['welfare_loss'])}")
    if "euler" in found:
        summary.append(f"Euler error 10^{log10(found['euler']['mean'])} on average")
    yield f'<p class="note">{escape("; ".join(summary))}. Figures are of the row {escape(repr(name))}.</p>'
    if verdict := verdict_line(found):
        yield f'<p class="verdict">{escape(verdict[0].upper() + verdict[1:])}.</p>'


def _score_words(found: Mapping[str, Any]) -> str:
    reference = found.get("reference")
    if not reference:
        return ""
    exact = f"within {reference['tolerance']:.2g}" if reference.get("tolerance") else "exact"
    words = (
        f"The known answer is the {reference['concept']} one ({reference['source']}, {exact}). Policy and answer face "
        "the same shocks, path by path; after ± stands a standard error."
    )
    if found.get("welfare_loss") is not None:
        words += " The loss is the share of consumption one would give up for ever to have the known answer instead."
    return _note(words)


def _errors(found: Mapping[str, Any]) -> Iterator[str]:
    """log10 of errors, a row for each place and condition."""
    rows = [("visited states", found.get("euler"))]
    rows += [(f"… {name}", each) for name, each in (found.get("euler_conditions") or {}).items()]
    places = {"euler_box": "box", "euler_sphere_sd": "sphere, one standard deviation"}
    for key in found:
        if key.startswith("euler_sphere") or key == "euler_box":
            rows.append((places.get(key, f"sphere, radius {key.rpartition('_')[2]}"), found[key]))
    rows.append(("the known answer itself", (found.get("reference") or {}).get("euler")))
    rows += [(f"residual of {name}", each) for name, each in (found.get("residuals") or {}).items()]
    present = [(label, each) for label, each in rows if each]
    if present:
        head = ["log10 of absolute errors", *QUANTILES, "not finite"]
        body = [
            [label, *(log10(each.get(q)) for q in QUANTILES), f"{each.get('not_finite') or 0:.2%}"]
            for label, each in present
        ]
        yield _table([head, *body])
        words = "Residuals are those that a learner drives to zero, unit-free."
        if found.get("euler"):
            words = (
                "Euler errors are in units of consumption: -3 is a tenth of a percent of it. The box reaches three "
                "standard deviations of the visited states in each coordinate; spheres lie around the steady state "
                f"(else the mean), positive coordinates in logs. {words}"
            )
        yield _note(words)


def _limits(found: Mapping[str, Any]) -> Iterator[str]:
    if found.get("binding"):
        head = ["limit", "binds", "log10 error where it binds: mean", "max", "elsewhere: mean", "max"]
        body = []
        for name, each in found["binding"].items():
            parts = [each.get("euler_binding") or {}, each.get("euler_slack") or {}]
            cells = [log10(part.get(q)) for part in parts for q in ("mean", "max")]
            body.append([name, f"{each['share']:.2%}", *cells])
        yield _table([head, *body])
    if found.get("complementarity"):
        head = ["complementarity, log10", *QUANTILES]
        yield _table([head, *([n, *(log10(e.get(q)) for q in QUANTILES)] for n, e in found["complementarity"].items())])


def _stability(found: Mapping[str, Any], absent: Mapping[str, str]) -> Iterator[str]:
    each = found.get("stability")
    if not each:
        return
    rows = [["test", "found"]]
    if "spectral_radius" in each:
        rows.append(["spectral radius at the policy's fixed point", _number(each["spectral_radius"], 6)])
        rest = ", ".join(f"{name} = {_number(value, 6)}" for name, value in list(each["fixed_point"].items())[:8])
        rows.append(["that fixed point", rest])
        rows.append(["its distance from the economy's steady state", _number(each["from_steady_state"], 3)])
    if "contraction" in each:
        factor, error = (_number(each[key], digits) for key, digits in (("contraction", 6), ("contraction_se", 1)))
        rows.append(["growth of a small difference under common shocks, per period", f"{factor} ± {error}"])
    length = f"long simulation, {each['paths']} paths x {each['periods']} periods"
    rows.append([length, "bounded" if each["bounded"] else "not bounded"])
    for key, words in (("not_finite", "not finite"), ("floored", "held up by a floor"), ("left", "left ten ranges")):
        rows.append([f"… paths {words}", f"{each[key]:.2%}"])
    yield _table(rows)
    if "spectral_radius" in absent:
        yield _note(f"There is no spectral radius: {absent['spectral_radius']}.")


def _policy(found: Mapping[str, Any]) -> Iterator[str]:
    slices = (found.get("curves") or {}).get("slices")
    if slices:
        words = (
            "The action along each coordinate, the others at the centre; dashed, the known answer where there is one."
        )
        yield _figure(figures.policy_figure(slices), "Policy functions", words)


def _map(found: Mapping[str, Any]) -> Iterator[str]:
    each = (found.get("curves") or {}).get("error_map")
    if each:
        words = f"log10 of the largest absolute error over {' and '.join(each['names'])}, the others at the centre."
        yield _figure(figures.error_figure(each), "Error map", words)


def _path(found: Mapping[str, Any]) -> Iterator[str]:
    path = (found.get("curves") or {}).get("path")
    if path:
        words = "From the centre; dashed, the known answer on the same shocks where there is one."
        yield _figure(figures.path_figure(path), "A simulated path", words)


def _responses(found: Mapping[str, Any]) -> Iterator[str]:
    for label, response in (found.get("responses") or {}).items():
        what = label if label.startswith(("switch", "value")) else f"{label}, one standard deviation"
        words = f"To {what}: generalised, with two standard errors" + (
            "; dashed, deterministic from the fixed point." if "deterministic" in response else "."
        )
        yield _figure(figures.response_figure(response), f"Responses to {what}", words)


def _moments(found: Mapping[str, Any]) -> Iterator[str]:
    moments = found.get("moments")
    if moments:
        keys = [key for key in MOMENTS if key in next(iter(moments.values()))]
        body = [
            [name, *(f"{_number(each[key], 5)} ± {_number(each[f'{key}_se'], 1)}" for key in keys)]
            for name, each in moments.items()
        ]
        yield _table([["", *keys], *body])
        length = f"{found['stability']['paths']} paths x {found['stability']['periods']} periods"
        yield _note(f"Over {length}; standard errors are by leaving out one batch of paths at a time.")


def _game(found: Mapping[str, Any]) -> Iterator[str]:
    if "gains" in found:
        errors = found.get("gains_se")
        head = ["player", "gain of its best deviation"]
        body = [
            [str(i + 1), _number(gain) + (f" ± {_number(errors[i], 1)}" if errors else "")]
            for i, gain in enumerate(found["gains"][:20])
        ]
        yield _table([head, *body])
        how = {"known": "by the economy's own formula", "trained": "of a best response that was trained: a lower bound"}
        yield _note(f"In discounted utility, the others keeping to the policy; {how[found['best_response']]}.")


def _dynamic(found: Mapping[str, Any]) -> Iterator[str]:
    if found.get("dynamic_error"):
        yield _table([["", "error"], *([name, _number(value)] for name, value in found["dynamic_error"].items())])
        yield _note(
            "Forecasts by the perceived law alone, from the first period on, against what came (den Haan 2010)."
        )


def _facts(run: Run) -> list[list[str]]:
    """What produced the run."""
    config = run.config
    rows = [
        ["setting", "value"],
        ["environment", config.env.id],
        ["agent", config.agent.name],
        ["concept", run.concept],
    ]
    for field in dataclasses.fields(run.params):
        value = getattr(run.params, field.name)
        if np.asarray(value).dtype.kind in "biuf":
            rows.append([f"env.params.{field.name}", _number(value, 6)])
    training, rollout = config.training, config.rollout
    steps = f"{training.iterations} iterations of {rollout.num_envs} x {rollout.num_steps} steps, seed {training.seed}"
    rows += [["training", steps], ["evaluation", f"seed {config.evaluation.seed}"]]
    return rows + [[name, str(version)] for name, version in run.info.get("versions", {}).items()]


# -- the elements --------------------------------------------------------------------------------------------------


def _section(heading: str, why: str | None, blocks: Sequence[str]) -> list[str]:
    inner = [block for block in blocks if block]
    if not inner and why is None:
        return []
    return [f"<h2>{escape(heading)}</h2>", *(inner or [f'<p class="absent">Not applicable: {escape(str(why))}.</p>'])]


def _why(key: str, absent: Mapping[str, str]) -> str | None:
    return absent.get(key, absent.get("everything below"))


def _notes(evaluations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [_list(evaluation_notes(evaluations))]


def _list(lines: Any) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="note">{items}</ul>' if items else ""


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _table(rows: Rows) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _figure(address: str, title: str, words: str) -> str:
    return f'<figure><img src="{address}" alt="{escape(title)}"><figcaption>{escape(words)}</figcaption></figure>'


def _number(value: Any, digits: int = 4) -> str:
    """A number, or a few of them; a dash where there is none."""
    if value is None:
        return "-"
    array = np.asarray(value)
    if array.ndim == 0:
        number = float(str(array)) if array.dtype == np.float32 else float(array)
        return f"{number:.{digits}g}"
    return np.array2string(array, precision=digits, threshold=12)
