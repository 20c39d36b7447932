"""Steppers: how an agent's parameters move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UserError, unknown
from .gradient import OPTIMIZERS, Gradient
from .stepper import SCHEDULES, Objective, Stepper, Terms, check_schedule, scheduled

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Gradient",
    "Objective",
    "Stepper",
    "Terms",
    "check_schedule",
    "make_stepper",
    "scheduled",
]


def make_stepper(value: Any, **defaults: Any) -> Stepper:
    """A stepper from what a configuration may say.

    Args:
        value: a `Stepper`; the name of an optimizer; or a mapping of `Gradient`'s arguments.
        **defaults: `Gradient`'s arguments where `value` does not name them.

    Raises:
        UserError: an unknown optimizer or argument.
    """
    if isinstance(value, Stepper):
        return value
    given = {"optimizer": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise UserError(f"a stepper is an optimizer's name, a mapping or a Stepper, got {value!r}")
    names = ("optimizer", "max_norm", "weight_decay")
    for name in given:
        if name not in names:
            raise unknown("stepper option", str(name), names)
    return Gradient(**{**defaults, **given})
