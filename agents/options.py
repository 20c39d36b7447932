"""What a learner is given in Python: every option checked against its annotation, by its name."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import types
import typing
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray

from ..errors import UserError
from .agent import scalar

if TYPE_CHECKING:
    from .agent import Agent

LARGEST_COUNT = 2**31 - 1
"""The largest whole number that a compiled program counts to."""

_WORDS = {bool: "True or False", int: "a whole number", float: "a finite number", str: "text", tuple: "a list"}


def number(value: Any) -> Any:
    """A strongly typed array of what reads as a number; `check_types`, which knows the option, refuses the rest."""
    try:
        return value if value is None else scalar(value)
    except UserError:
        return value


def sequence(value: Any) -> Any:
    """A list as a tuple, which a static field can hold; `check_types` refuses what is none."""
    return tuple(value) if isinstance(value, list) else value


def check_types(agent: Agent) -> None:
    """Raise `UserError` for an option that is not of the kind which its annotation declares.

    Traced numbers pass, and arrays of them. Annotations of other kinds are left to who reads the option.
    """
    for name, kinds in _kinds(type(agent)).items():
        check_kind(name, getattr(agent, name), kinds)


def check_kind(name: str, value: Any, kinds: tuple[Any, ...]) -> None:
    """Raise `UserError` unless the value of option `name` is of one of `kinds`: bool, int, float, str, tuple, None."""
    if (value is None and None in kinds) or any(_is(value, kind) for kind in kinds if kind is not None):
        return
    if int in kinds and _is_whole(value):
        raise UserError(f"{name} = {value} must be at most {LARGEST_COUNT}")
    words = " or ".join(_WORDS[kind] for kind in kinds if kind is not None)
    shown = f"{float(value):.6g}" if isinstance(value, jax.Array) and value.ndim == 0 else repr(value)
    raise UserError(f"{name} = {shown} must be {words}")


def check_single_numbers(agent: Agent) -> None:
    """Raise `UserError` for a number that is an array of them: many learners side by side are made under `jax.vmap`."""
    for name, kinds in _kinds(type(agent)).items():
        value = getattr(agent, name)
        if float in kinds and value is not None and jnp.ndim(value):
            shape = jnp.shape(value)
            raise UserError(f"{name} must be one number here, got an array of shape {shape}; use jax.vmap over several")


@functools.cache
def _kinds(kind: type[Agent]) -> dict[str, tuple[Any, ...]]:
    """The kinds of each option that a constructor takes, where its annotation is made of them alone."""
    hints = typing.get_type_hints(kind)
    found = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        kinds = tuple(map(_kind, typing.get_args(hint) if union else (hint,)))
        if field.init and Any not in kinds:
            found[field.name] = kinds
    return found


def _kind(arm: Any) -> Any:
    if arm in (bool, int, float, str):
        return arm
    if arm is type(None):
        return None
    if typing.get_origin(arm) is tuple:
        return tuple
    return float if isinstance(arm, type) and issubclass(arm, AbstractArray) else Any


def _is(value: Any, kind: type) -> bool:
    if kind is int:
        return _is_whole(value) and abs(int(value)) <= LARGEST_COUNT
    if kind is not float:
        return isinstance(value, (bool, np.bool_) if kind is bool else kind)
    if isinstance(value, jax.core.Tracer):
        return True
    if isinstance(value, jax.Array | np.ndarray):
        return value.size > 0 and bool(jnp.all(jnp.isfinite(value)))
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
