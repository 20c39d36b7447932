"""Sweeps: one setting or several over lists of values, each combination an ordinary run, all in one table."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..errors import UserError
from ..storage import write_text
from .checkpoint import Checkpoints
from .compilation import use_compilation_cache
from .config import Config, parse
from .distributed import process_group
from .guard import LOCK, FolderLock
from .lanes import Lanes
from .loop import check_count
from .report import MEASURES
from .resume import differences
from .run import CONFIG, EVALUATION, INFO, UNTRAINED, RunFolder, load
from .session import NotFiniteError
from .settings import load_config
from .sweep_plan import DEFINITION, Combination, base_of, plain_settings, plan, read_definition, settings_of
from .sweep_table import Sweep, Trained, save_table
from .trainer import resume, start, train_from_config

RECORD = "sweep.json"
"""In a run's folder, what became of that combination."""

AT_ONCE = 32
"""Combinations that are trained side by side, at most, unless told otherwise."""


def sweep(
    config: str | Config | Mapping[str, Any],
    agent: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    over: Mapping[str, Sequence[Any]],
    out: str | os.PathLike[str],
    zipped: bool = False,
    at_once: int = AT_ONCE,
    report: Callable[[str], None] = lambda line: None,
) -> Sweep:
    """Train every combination of the values of some settings, and score them in one table.

    Combinations that differ in numbers alone (an environment's parameters, learning rates, the seed) are trained side
    by side in one compiled call; others one after another. Either way each leaves an ordinary run folder in `out`, with
    all of its seeds. Nothing is trained before all combinations are found to fit. Where `out` holds this sweep already,
    it goes on: what is finished stays, what is not goes on from its checkpoints.

    Args:
        config: an environment's id, with `agent` and `settings`; or a whole configuration, or nested settings.
        agent: the learner's name.
        settings: nested settings, `{"training": {"iterations": 100, "num_seeds": 3}}`.
        over: dotted names of settings to the values that each shall take,
            `{"agent.learning_rate": [1e-3, 3e-4], "env.params.beta": [0.9, 0.95]}`.
        out: the folder of the sweep.
        zipped: the lists side by side, first with first, instead of every value with every other.
        at_once: combinations that are trained side by side, at most; 1: one after another.
        report: is told on the way what is trained, line by line.

    Returns:
        What became of each combination. One in which a loss or the like is not finite has `failed`; the others go on.

    Raises:
        UserError: an unknown setting, one that is both swept and set, a list that is empty, of another length or with a
            value twice, a combination that does not fit, or a folder that holds something else.
        KeyboardInterrupt, SystemExit: a signal ended it; it is saved, and the same call goes on.
    """
    if not isinstance(zipped, bool):
        raise UserError(f"zipped must be True or False, got {zipped!r}")
    base, fixed = base_of(config, agent, settings)
    definition = {"base": plain_settings(base), "over": plain_settings(over), "zip": zipped}
    return run_sweep(definition, out, fixed=fixed, at_once=at_once, report=report)


def resume_sweep(
    path: str | os.PathLike[str], *, at_once: int = AT_ONCE, report: Callable[[str], None] = lambda line: None
) -> Sweep:
    """Go on with the sweep in a folder, as its definition there says; arguments and errors as those of `sweep`."""
    return run_sweep(read_definition(path), path, at_once=at_once, report=report)


def run_sweep(
    definition: Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    fixed: Mapping[str, Any] | None = None,
    at_once: int = AT_ONCE,
    report: Callable[[str], None] = lambda line: None,
) -> Sweep:
    """The sweep itself.

    Args:
        definition: nested settings `base`, lists of values `over`, and whether they are side by side, `zip`.
        out: its folder.
        fixed: those of the settings that may not be swept as well.
        at_once, report: as in `sweep`.
    """
    check_count("at_once", at_once)
    if process_group().size > 1:
        raise UserError("a sweep is trained by one process; start it without the others, or train its runs one by one")
    use_compilation_cache()
    path = _check_out(out)
    known = (path / DEFINITION).is_file()
    if known:
        _check_same(path, definition)
    elif path.exists() and (not path.is_dir() or any(file.name != LOCK for file in path.iterdir())):
        raise UserError(f"{os.fspath(path)!r} holds something else than this sweep; choose another folder")
    combinations = plan(definition, path, fixed or {})
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the sweep's folder {os.fspath(path)!r}: {error.strerror}") from None
    lock = FolderLock(path)
    try:
        if not known:
            write_text(path / DEFINITION, yaml.safe_dump(dict(definition), sort_keys=False, allow_unicode=True))
        for one in combinations:
            _check_folder(one)
        todo = [one for one in combinations if not _is_over(one)]
        if done := len(combinations) - len(todo):
            report(f"{done} of {len(combinations)} combinations are done already")
        with _told_how_to_go_on(path):
            for group in _groups(todo, at_once):
                names = ", ".join(one.name for one in group)
                report(f"training {names}" + (" side by side" if len(group) > 1 else ""))
                _train(group)
                _tabulate(path, combinations)
            return _tabulate(path, combinations)
    finally:
        lock.release()


# -- its folder -------------------------------------------------------------------------------------------------------


def _check_out(out: Any) -> Path:
    if not isinstance(out, str | os.PathLike) or not os.fspath(out) or "\0" in str(os.fspath(out)):
        raise UserError(f"a sweep needs a folder, got {out!r}")
    path = Path(out)
    try:
        (path / DEFINITION).stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # it is made, or refused by what is there
    except OSError as error:
        raise UserError(f"cannot look into the sweep's folder {os.fspath(path)!r}: {error.strerror}") from None
    return path


def _check_same(path: Path, definition: Mapping[str, Any]) -> None:
    """Refuse another sweep than the one in a folder, by the first thing that differs."""
    there = read_definition(path)
    if list(there["over"]) != list(definition["over"]) or there["zip"] != definition["zip"]:
        was, now = (", ".join(one["over"]) + (" side by side" if one["zip"] else "") for one in (there, definition))
        raise UserError(f"{os.fspath(path)!r} holds a sweep over {was}, not over {now}; choose another folder")
    for name in differences(there, definition):
        what = name.partition(".")[2]
        raise UserError(
            f"{os.fspath(path)!r} holds a sweep with another {what}; choose another folder, or go on with it: "
            f"equimorph sweep --resume {path}"
        )


def _is_over(one: Combination) -> bool:
    return (one.path / RECORD).is_file()


@contextlib.contextmanager
def _told_how_to_go_on(path: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stopped:
        said = f"{stopped}; " if str(stopped) else ""
        raise KeyboardInterrupt(f"{said}to go on, equimorph sweep --resume {path}") from None


# -- training ---------------------------------------------------------------------------------------------------------


def _groups(todo: Sequence[Combination], at_once: int) -> Iterator[list[Combination]]:
    """What is trained side by side, in the order of its first member; groups of a kind are about equally large."""
    kinds: dict[Hashable, list[Combination]] = {}
    for one in todo:
        kinds.setdefault(one.name if one.kind is None else one.kind, []).append(one)
    for members in kinds.values():
        for part in np.array_split(np.arange(len(members)), -(-len(members) // at_once)):
            yield [members[index] for index in part]


def _train(group: Sequence[Combination]) -> None:
    """Train a group to its end, score it, and write down what became of each."""
    began = time.process_time()
    together = [one.name for one in group] if len(group) > 1 else []

    def note(one: Combination, failed: str | None, until: float) -> None:
        seconds = (until - began) / len(group)
        record = {"values": one.values, "together": together, "cpu_seconds": seconds, "failed": failed}
        RunFolder(one.path).write_json(RECORD, record)

    def fails(number: int, reason: str) -> None:
        note(group[number], reason, time.process_time())

    (_side_by_side if together else _alone)(group, fails)
    ended = time.process_time()
    for one in group:
        if not _is_over(one):
            note(one, _score(one), ended)


def _check_folder(one: Combination) -> None:
    """See that a run that is there is this combination's; drop one that did not come to its start."""
    if not one.path.exists():
        return
    if not (one.path / INFO).is_file():
        if not one.path.is_dir() or one.path.is_symlink() or not all(map(_is_begun, one.path.iterdir())):
            raise UserError(f"{os.fspath(one.path)!r} is in the way of a run of the sweep; move it away")
        shutil.rmtree(one.path)  # the process ended while it was made
        return
    there = settings_of(parse(load_config(one.path / CONFIG)))
    for name in differences(there, settings_of(one.config)):
        raise UserError(f"the run in {os.fspath(one.path)!r} has another {name} than the sweep; move it away")


def _is_begun(file: Path) -> bool:
    """Whether a file is among those that a run writes before the one that says what it is."""
    whole = (CONFIG, UNTRAINED)
    return file.name in (LOCK, *whole) or file.name.startswith(tuple(f".{name}." for name in (*whole, INFO)))


def _alone(group: Sequence[Combination], fails: Callable[[int, str], None]) -> None:
    """Train a group of one; `fails` is told if something is not finite."""
    (one,) = group
    try:
        if one.path.exists():
            resume(one.path)
        else:
            train_from_config(one.config)
    except NotFiniteError as error:
        fails(0, str(error))


def _side_by_side(group: Sequence[Combination], fails: Callable[[int, str], None]) -> None:
    """Train combinations of one kind together; `fails` is told in which something is not finite."""
    at = _common_checkpoint(group)
    with contextlib.ExitStack() as stack:
        started = []
        for one in group:
            folder = RunFolder.reopen(one.path) if one.path.exists() else None
            if folder is not None:
                stack.callback(folder.release)
                if at is None:
                    Checkpoints(one.path, keep=one.config.checkpoint.keep).drop_after(0)
            before = None if folder is None else one.config
            started.append(start(one.config, folder=folder, at=at, before=before))
            if folder is None:
                stack.callback(started[-1].release)
        lanes = Lanes([run.session for run in started], fails)
        lanes.run()
        for lane in lanes.living:
            started[lane].finish()


def _common_checkpoint(group: Sequence[Combination]) -> int | None:
    """The latest iteration of which every member has a checkpoint; None: they begin anew."""
    common = set.intersection(*(set(Checkpoints(one.path).iterations()) for one in group))
    return max(common, default=None)


def _score(one: Combination) -> str | None:
    """Score every seed of a run and keep it in its folder; says why it cannot be scored, if it cannot."""
    from .evaluation.scoring import evaluate

    count = one.config.training.num_seeds
    try:
        found = [evaluate(load(one.path, seed=seed)) for seed in range(count)]
    except UserError as error:
        return f"cannot be scored: {error}"
    RunFolder(one.path).write_json(EVALUATION, {"seeds": found} if count > 1 else found[0])
    return None


def _tabulate(path: Path, combinations: Sequence[Combination]) -> Sweep:
    """The table of what is over, printed into the folder as well."""
    runs = []
    for one in combinations:
        if not _is_over(one):
            continue
        try:
            runs.append(_outcome(one))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{RECORD} or {EVALUATION} in {os.fspath(one.path)!r} is missing or damaged; delete {RECORD} there, "
                "and the sweep scores that run again"
            ) from None
    found = Sweep(path, tuple(runs))
    save_table(found)
    return found


def _outcome(one: Combination) -> Trained:
    """What a combination's folder says became of it; any of Python's errors where that is damaged."""
    record = json.loads((one.path / RECORD).read_text(encoding="utf-8"))
    failed, together, seconds = record["failed"], record["together"], record["cpu_seconds"]
    strings = isinstance(together, list) and all(isinstance(name, str) for name in together)
    if not (strings and isinstance(seconds, int | float) and isinstance(failed, str | None)):
        raise ValueError(RECORD)
    seeds = []
    if not failed:
        content = json.loads((one.path / EVALUATION).read_text(encoding="utf-8"))
        seeds = content.get("seeds", [content])
        if len(seeds) != one.config.training.num_seeds or not all(seeds):
            raise ValueError(EVALUATION)
    found = Trained(one.name, one.path, one.values, tuple(seeds), together, seconds, failed)
    for key in MEASURES:
        for untrained in (False, True):
            found.over_seeds(key, untrained=untrained)
    return found
