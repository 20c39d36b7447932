"""What a sweep consists of: every combination of the values of some settings, checked before anything is trained."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from .config import Config, build, gather, resolve
from .lanes import kind_of
from .plan import first_state
from .resume import differences
from .session import Session
from .settings import check_path, load_config, merge
from .sweep_table import as_text
from .switch import stages

DEFINITION = "sweep.yaml"
"""What a sweep is, in its folder."""

LONGEST_NAME = 80


@dataclasses.dataclass(frozen=True)
class Combination:
    """One run of a sweep.

    Attributes:
        name: of its folder.
        values: of the settings that are swept, by their dotted names.
        config: all of its settings.
        kind: what it has in common with those that it can be trained with; None: it goes its own way.
    """

    name: str
    values: Mapping[str, Any]
    config: Config
    kind: Hashable | None

    @property
    def path(self) -> Path:
        """The folder of its run."""
        return Path(str(self.config.out))


def plan(definition: Mapping[str, Any], out: str | os.PathLike[str], fixed: Mapping[str, Any]) -> list[Combination]:
    """Every combination of a sweep, checked: each pair is built, and refused with its reason if it does not fit.

    Args:
        definition: nested settings `base`, lists of values `over`, and whether they are side by side, `zip`.
        out: the folder of the sweep.
        fixed: those of the settings that may not be swept as well.

    Raises:
        UserError: as `sweep`.
    """
    base, over = definition["base"], definition["over"]
    _check_over(over, base, fixed)
    if not definition["zip"]:
        _check_twice(over)
    many = list(_combined(over, zipped=definition["zip"]))
    planned: list[Combination] = []
    for number, values in enumerate(many):
        name = _name(number, len(many), values)
        try:
            config, kind = _checked(base, values, os.fspath(Path(out, name)))
        except UserError as error:
            raise UserError(f"cannot sweep to {_label(values)}: {error}") from None
        for other in planned:
            if not list(differences(settings_of(other.config), settings_of(config))):
                raise UserError(f"{other.name} and {name} are the same run; leave one of the two out")
        planned.append(Combination(name, values, config, kind))
    return planned


def read_definition(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the sweep in a folder is, as `plan` takes it.

    Raises:
        UserError: there is none, or its file is damaged.
    """
    if not Path(path, DEFINITION).is_file():
        raise UserError(f"{os.fspath(path)!r} holds no sweep: it has no {DEFINITION}")
    found = load_config(Path(path, DEFINITION))
    over = found.get("over")
    lists = isinstance(over, dict) and all(isinstance(key, str) and isinstance(over[key], list) for key in over)
    if set(found) != {"base", "over", "zip"} or not (
        lists and over and isinstance(found["base"], dict) and isinstance(found["zip"], bool)
    ):
        raise UserError(f"{os.fspath(Path(path, DEFINITION))!r} is damaged: it does not say what is swept")
    return found | {"over": plain_settings(over)}


def folders_of(path: str | os.PathLike[str]) -> dict[str, Path]:
    """The run folders of the sweep in a folder, whether they are there or not, by what is swept in each."""
    definition = read_definition(path)
    many = list(_combined(definition["over"], zipped=definition["zip"]))
    return {_label(values): Path(path, _name(number, len(many), values)) for number, values in enumerate(many)}


def base_of(
    config: str | Config | Mapping[str, Any], agent: str | None, settings: Mapping[str, Any] | None
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Nested settings that all combinations share, and those of them that may not be swept as well."""
    if isinstance(config, str):
        if not isinstance(settings, Mapping | None):
            raise UserError(f"settings are nested by their names, such as {{'training': {{}}}}; got {settings!r}")
        tree = gather(config, agent, settings)
        return tree, tree
    if agent is not None or settings is not None:
        raise UserError("agent and settings belong into the configuration that is given; set them there")
    if isinstance(config, Config):
        return config.model_dump(mode="json"), {}
    if isinstance(config, Mapping):
        return dict(config), {}
    raise UserError(f"a sweep is of an environment's id, a Config or nested settings, got {config!r}")


def _check_over(over: Any, base: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    if not isinstance(over, Mapping) or not over:
        raise UserError("a sweep needs a setting to go over, such as agent.learning_rate=1e-3,3e-4")
    if base.get("out") is not None:
        raise UserError(f"out = {base['out']!r} is no setting of a sweep: each run has its own folder in the sweep's")
    for key, values in over.items():
        if key.partition(".")[0] == "out":
            raise UserError("out cannot be swept: each run has its own folder in the sweep's")
        if not all(key.split(".")):
            raise UserError(f"cannot sweep {key!r}; settings have dotted names, such as agent.learning_rate")
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise UserError(f"{key} is swept over a list of values, got {values!r}")
        if not values:
            raise UserError(f"{key} has no values to be swept over; give at least one, or leave it out")
        if _there(fixed, key):
            raise UserError(f"{key} is both swept and set; keep one")
        if above := [other for other in over if other != key and key.startswith(f"{other}.")]:
            raise UserError(f"{key} is a part of {above[0]}, which is swept as well; keep one")


def _check_twice(over: Mapping[str, Sequence[Any]]) -> None:
    for key, values in over.items():
        shown = [as_text(value) for value in values]
        if twice := [value for value in shown if shown.count(value) > 1]:
            raise UserError(f"{key} is swept over {twice[0]} twice; keep one")


def _there(tree: Any, key: str) -> bool:
    """Whether nested settings say something of a dotted name, of a part of it, or of what it is a part of."""
    for name in key.split("."):
        if not isinstance(tree, Mapping):
            return tree is not None
        if name not in tree:
            return False
        tree = tree[name]
    return not (isinstance(tree, Mapping) and not tree)


def _combined(over: Mapping[str, Sequence[Any]], *, zipped: bool) -> Iterator[dict[str, Any]]:
    """Values by name, one mapping a combination."""
    lengths = {key: len(values) for key, values in over.items()}
    if zipped and len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise UserError(f"values side by side must be equally many: {shown}")
    together = zip(*over.values(), strict=True) if zipped else itertools.product(*over.values())
    for values in together:
        yield dict(zip(over, values, strict=True))


def _checked(base: Mapping[str, Any], values: Mapping[str, Any], out: str) -> tuple[Config, Hashable | None]:
    """The configuration of a combination, and its kind; everything that does not fit is refused."""
    tree: dict[str, Any] = dict(base)
    for key, value in values.items():
        check_path(tree, key.split("."))
        for name in reversed(key.split(".")):
            value = {name: value}
        tree = merge(tree, value)
    config = resolve(flags=tree).model_copy(update={"out": out})
    env, params, agent = build(config)
    parts = stages(config, env, params, agent)
    Session(config, env, params, parts, first_state(config, env, params, parts[0]))
    return config, kind_of(config, env, params, agent)


def _label(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={as_text(value)}" for key, value in values.items())


def _name(number: int, count: int, values: Mapping[str, Any]) -> str:
    """A folder's name: its number, which no two share, and what is swept."""
    parts = [f"{key.rpartition('.')[2]}={as_text(value)}" for key, value in values.items()]
    text = re.sub(r"[^\w.=+-]+", "_", "-".join(parts))[:LONGEST_NAME].strip("_-")
    return f"{number:0{len(str(count - 1))}d}-{text}"


def plain_settings(value: Any) -> Any:
    """Settings as YAML holds them: arrays as lists, tuples too."""
    if isinstance(value, Mapping):
        return {str(key): plain_settings(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | range):
        return [plain_settings(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"a sweep is of settings that YAML can hold: numbers, text and lists of them, not {value!r}")


def settings_of(config: Config) -> dict[str, Any]:
    """All settings of a run but where it is kept."""
    return config.model_dump(mode="json", exclude={"out"})
