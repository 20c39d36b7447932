"""Values from a file or a command line, turned into what a field's annotation asks for."""

import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from jaxtyping import AbstractArray

from ..errors import UserError


def coerce(value: Any, hint: Any, key: str) -> Any:
    """Give a plain value the type that a field declares.

    Args:
        value: what YAML, a flag or a Python caller gave.
        hint: the field's annotation: bool, int, float, str, None, a `Literal`, a tuple, or a union of them. An array of
            jaxtyping's is read as a float. Anything else takes plain data as it is; the field's owner checks it.
        key: the dotted name of the setting, for the message.

    Raises:
        UserError: no reading of the value fits; the message names the key.
    """
    if value is None and hint is not None and type(None) not in _arms(hint):
        raise UserError(f"{key} must be {_describe(hint)}, got nothing")
    for arm in _arms(hint):
        try:
            return _as(value, arm, key)
        except UserError:
            raise
        except (TypeError, ValueError, OverflowError):
            continue
    raise UserError(f"{key} must be {_describe(hint)}, got {value!r}")


def whole(value: Any) -> int:
    """An integer from an integer, a whole float (1e3) or its text; a bool is none.

    Raises:
        ValueError: it is something else.
    """
    number = real(value)
    if not number.is_integer():
        raise ValueError("it should be a whole number")
    return value if isinstance(value, int) else int(number)


def real(value: Any) -> float:
    """A finite float from a number or its text; a bool is none.

    Raises:
        ValueError: it is something else, or not finite.
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("it should be a finite number")
    return number


def number(value: Any) -> int | float:
    """A finite number that stays an integer where it is written as one.

    Raises:
        ValueError: it is something else, or not finite.
    """
    parsed = real(value)
    return value if isinstance(value, int) else parsed


def _arms(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    # the narrow readings first: 3 is an int before it is a float, and a float before it is text
    order = [type(None), bool, int, float]
    arms = typing.get_args(hint) if union else (type(None) if hint is None else hint,)
    return tuple(sorted(arms, key=lambda arm: order.index(arm) if arm in order else len(order)))


def _as(value: Any, arm: Any, key: str) -> Any:
    """`value` read as one arm of a union; any of the usual exceptions where it cannot be."""
    origin = typing.get_origin(arm)
    if arm is Any:
        return value
    if arm is type(None) or arm is bool or arm is str:
        if not isinstance(value, arm):
            raise TypeError
        return value
    if arm is int:
        return whole(value)
    if origin is typing.Literal:
        if value not in typing.get_args(arm):
            raise ValueError
        return value
    if origin in (tuple, list) or arm in (tuple, list):
        return _sequence(value, typing.get_args(arm), key)
    if _is_real(arm):
        return real(value)
    if not _is_plain(value):
        raise TypeError
    return value


def _is_real(arm: Any) -> bool:
    return arm is float or (isinstance(arm, type) and issubclass(arm, AbstractArray))


def _is_plain(value: Any) -> bool:
    """Whether a value is what YAML can hold: an object given in Python could not be saved with the run."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | str) or (isinstance(value, int | float) and math.isfinite(value))


def _sequence(value: Any, args: tuple[Any, ...], key: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError
    items = [arg for arg in args if arg is not Ellipsis] or [Any]
    if Ellipsis not in args and len(args) > 1 and len(value) != len(args):
        raise ValueError
    hints = items * len(value) if len(items) == 1 else items
    return tuple(
        coerce(item, hint, f"{key}[{index}]") for index, (item, hint) in enumerate(zip(value, hints, strict=True))
    )


def _describe(hint: Any) -> str:
    words = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text", type(None): "null"}
    parts: list[str] = []
    for arm in _arms(hint):
        if typing.get_origin(arm) is typing.Literal:
            text = " or ".join(repr(choice) for choice in typing.get_args(arm))
        elif typing.get_origin(arm) in (tuple, list) or arm in (tuple, list):
            text = "a list"
        else:
            text = words[float] if _is_real(arm) else words.get(arm, "plain data, as YAML holds it")
        if text not in parts:
            parts.append(text)
    return " or ".join(parts)
