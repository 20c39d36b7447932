"""Making another library's environment from keyword arguments, its mistakes told in one line."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ...errors import UserError, unknown
from ..environment import EnvParams

Made = TypeVar("Made")

MISTAKES = (TypeError, ValueError, LookupError, AssertionError, ImportError, OSError)
"""What constructors raise for arguments that they do not like, and for what is not installed or not there."""


def constructor_options(factory: Callable[..., Any]) -> tuple[list[str], bool]:
    """The keyword arguments a factory takes, and whether it takes any others as well.

    Where a class hands `**kwargs` on, its parent's arguments count too.
    """
    constructors = [factory]
    if inspect.isclass(factory):
        constructors = [parent.__init__ for parent in factory.__mro__[:-1] if "__init__" in vars(parent)]
    names: list[str] = []
    for constructor in constructors:
        arguments = inspect.signature(constructor).parameters.values()
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names += [each.name for each in arguments if each.kind in named and each.name not in ("self", *names)]
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in arguments):
            return names, False
    return names, not inspect.isclass(factory)


def split_overrides(
    id: str, factory: Callable[..., Any], params: EnvParams, overrides: Mapping[str, Any], others: Iterable[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Overrides as the factory's options, and as values of our parameters.

    Args:
        id: for the message.
        factory: the other library's class or function.
        params: our parameters; they have the first say on a name.
        overrides: what the user set.
        others: further options, which the factory does not name.

    Raises:
        UserError: a name that neither knows.
    """
    parameters = [field.name for field in dataclasses.fields(params)]
    names, takes_any = constructor_options(factory)
    options = [*others, *(name for name in names if name not in parameters)]
    for name in overrides:
        if name not in parameters and name not in options and not takes_any:
            raise unknown(f"option or parameter of {id}", name, [*parameters, *options])
    values = {name: value for name, value in overrides.items() if name in parameters}
    return {name: value for name, value in overrides.items() if name not in parameters}, values


def construct(id: str, make: Callable[[], Made], mistakes: tuple[type[Exception], ...] = MISTAKES) -> Made:
    """What `make()` returns.

    Raises:
        UserError: one of `mistakes`, its first line behind the environment's name.
    """
    try:
        return make()
    except UserError:
        raise
    except mistakes as error:
        kind = f"{type(error).__name__} " if isinstance(error, LookupError) else ""  # whose message is a bare key
        first_line = kind + (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{id} cannot be made: {first_line}") from error
