"""Attributes that a package imports only when somebody asks for them (PEP 562).

`import equimorph` and `equimorph --help` must not wait for JAX, and nobody who makes an economy should wait for
the tissue simulator. The packages list where their public names live; this module finds them on first use.
"""

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_attributes(
    package: str, attributes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make a package's `__getattr__` and `__dir__` from the places of its public names.

    Args:
        package: the package's `__name__`.
        attributes: public name -> module that defines it, relative to the package (".mappo"). A name whose module is
            the name itself (`{"envs": ".envs"}`) is that submodule.

    Returns:
        The functions to bind as `__getattr__` and `__dir__`. An attribute that was found is kept in the package, so
        each is looked up once; an unknown one raises `AttributeError`, as it would in any module.
    """

    def __getattr__(name: str) -> object:
        if name not in attributes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(attributes[name], package)
        value = module if attributes[name] == f".{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *attributes})

    return __getattr__, __dir__
