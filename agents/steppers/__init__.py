"""Steppers: how an agent's parameters move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UserError, unknown
from .gauss_newton import GAUSS_NEWTON, GaussNewton
from .gradient import LINE_SEARCHES, OPTIMIZERS, Gradient
from .per_term import PER_TERM, PerTerm
from .stepper import (
    SCHEDULES,
    Objective,
    Separable,
    Stepper,
    Terms,
    check_policy_gradient,
    check_rate,
    check_schedule,
    scheduled,
)

__all__ = [
    "GAUSS_NEWTON",
    "LINE_SEARCHES",
    "OPTIMIZERS",
    "PER_TERM",
    "SCHEDULES",
    "STEPPERS",
    "GaussNewton",
    "Gradient",
    "Objective",
    "PerTerm",
    "Separable",
    "Stepper",
    "Terms",
    "check_policy_gradient",
    "check_rate",
    "check_schedule",
    "make_stepper",
    "scheduled",
]

STEPPERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(OPTIMIZERS, ("max_norm", "weight_decay")),
    **dict.fromkeys(LINE_SEARCHES, ()),
    "pcgrad": ("optimizer", "max_norm", "weight_decay"),
    "mao": ("max_norm", "weight_decay"),
    "gn": ("damping",),
    "ign": ("damping", "iterations", "tolerance"),
    "lm": ("damping",),
}
"""Every stepper's name, and the options it has."""


def make_stepper(value: Any, **defaults: Any) -> Stepper:
    """A stepper from what a configuration may say.

    Args:
        value: a `Stepper`; a name in `STEPPERS`; or a mapping such as `{"stepper": "pcgrad", "max_norm": 1.0}`.
            Without "stepper" it is `Gradient`'s, by "optimizer" (Adam unless named).
        **defaults: options where `value` does not name them and the stepper has them.

    Raises:
        UserError: an unknown stepper or option, or an option that this stepper does not have.

    Example:
        >>> make_stepper({"stepper": "pcgrad", "optimizer": "sgd"}).name
        'pcgrad'
    """
    if isinstance(value, Stepper):
        return value
    given = {"stepper": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise UserError(f"a stepper is a name, a mapping or a Stepper, got {value!r}")
    names = dict.fromkeys(("stepper", *(option for options in STEPPERS.values() for option in options)))
    for option in given:
        if option not in names:
            raise unknown("stepper option", str(option), names)
    options = {option: setting for option, setting in given.items() if option != "stepper"}
    name = given.get("stepper")
    if name is None:
        name = options.pop("optimizer", "adam")
        if name in (*PER_TERM, *GAUSS_NEWTON):
            raise UserError(f"{name!r} is no optimizer but a stepper of its own; write stepper={name!r}")
        if not isinstance(name, str):
            return Gradient(name, **{**defaults, **options})
    elif not isinstance(name, str) or name not in STEPPERS:
        raise unknown("stepper", str(name), STEPPERS)
    return _built(name, options, defaults)


def _built(name: str, options: dict[str, Any], defaults: dict[str, Any]) -> Stepper:
    """The stepper of a name with its options; defaults only where they apply."""
    taken = STEPPERS.get(name)
    if taken is None:
        raise unknown("optimizer", name, (*OPTIMIZERS, *LINE_SEARCHES))
    for option in options:
        if option not in taken:
            has = f"has {', '.join(taken)}" if taken else "has no options"
            raise UserError(f"{option} does not apply with stepper {name!r}, which {has}; leave it out")
    options = {**{option: setting for option, setting in defaults.items() if option in taken}, **options}
    if name in PER_TERM:
        return PerTerm(name, **options)
    if name in GAUSS_NEWTON:
        return GaussNewton(name, **options)
    return Gradient(name, **options)
