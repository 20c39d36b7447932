"""Importing JaxMARL, which loads every environment it has (seconds) and prints while it does."""

from __future__ import annotations

import os
import sys
import warnings
from types import ModuleType

from ._optional import require

STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


def import_jaxmarl(module: str = "jaxmarl") -> ModuleType:
    """One of JaxMARL's modules, quietly: its prints and its dependencies' deprecation warnings are left out.

    Raises:
        UserError: it is not installed, or cannot be imported.
    """
    if "jaxmarl" in sys.modules:
        return require(module, "jaxmarl")
    # One of its environments points sys.stdout at sys.__stdout__, so redirecting the former is not enough.
    streams = {name: getattr(sys, name) for name in STREAMS}
    with open(os.devnull, "w") as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            for name in STREAMS:
                setattr(sys, name, nowhere)
            return require(module, "jaxmarl")
        finally:
            for name, stream in streams.items():
                setattr(sys, name, stream)
