"""What may be different when a run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import UserError
from .config import Config, parse

FREE = ("training.iterations", "evaluation", "checkpoint", "stopping", "plateau", "guard", "logging", "devices")
STEPPER = ("stepper", "learning_rate", "schedule")
ALLOWED = "training.iterations, agent.stepper, agent.learning_rate, agent.schedule, evaluation, checkpoint, stopping, "
ALLOWED += "plateau, guard, logging and devices"


def resumed_config(old: Config, new: Config, at: int) -> Config:
    """The settings of a run that goes on: another stepper is one more entry of `training.switch`.

    Args:
        old: the settings that it had.
        new: those that are wanted.
        at: the iteration it goes on from.

    Raises:
        UserError: something differs that cannot; or the run would end before `at`.
    """
    tree = old.model_dump(mode="json")
    wanted = new.model_dump(mode="json")
    changed: dict[str, Any] = {}
    for name in differences(tree, wanted):
        section, _, key = name.partition(".")
        key = key.partition(".")[0]
        if section == "agent" and key in STEPPER:
            changed[key] = wanted["agent"].get(key)
        elif name not in FREE and section not in FREE:
            was, now = ("its default" if v is None else repr(v) for v in (setting(tree, name), setting(wanted, name)))
            raise UserError(
                f"cannot go on with {name} = {now}: the run has {was}; only {ALLOWED} may change, so leave it out "
                "or start a new run"
            )
    if new.training.iterations < at:
        raise UserError(
            f"training.iterations = {new.training.iterations} is less than the {at} iterations that are done; set "
            "more, or go on from an earlier checkpoint"
        )
    settings = wanted | {"agent": tree["agent"]}
    if changed:
        later = [entry for entry in tree["training"]["switch"] if entry["at"] > at]
        earlier = [entry for entry in tree["training"]["switch"] if entry["at"] <= at]
        current = earlier[-1] if earlier else tree["agent"]
        entry = {"at": at, "stepper": current.get("stepper"), **changed}
        if "stepper" not in changed:
            entry |= {key: changed.get(key, current.get(key)) for key in STEPPER[1:]}
        if entry["stepper"] is None:
            entry["stepper"] = "adam"
        if at == 0:
            settings["agent"] = tree["agent"] | changed
        else:
            earlier = [one for one in earlier if one["at"] < at]
            switch = [*earlier, entry, *later]
            settings["training"] = settings["training"] | {"switch": switch}
    return parse(settings)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of what differs between two trees of settings; those of an environment come first."""
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from differences(a, b, f"{prefix}{key}.")
        elif a != b:
            yield f"{prefix}{key}"


def setting(tree: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted name in a tree of settings; None where there is none."""
    value: Any = tree
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
