"""Libraries that need not be installed."""

from __future__ import annotations

import importlib
from types import ModuleType

from ...errors import UserError


def require(module: str, extra: str) -> ModuleType:
    """Import a library that an extra of ours installs.

    Args:
        module: its import name, such as "pettingzoo" or "brax.envs".
        extra: the extra's name.

    Raises:
        UserError: it is not installed; the message tells how to.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] == library:
            raise UserError(f"{library} is not installed: pip install 'equimorph[{extra}]'") from None
        raise UserError(f"{library} is installed, but cannot be imported: {error}") from error
