"""The examples in the package's docstrings are run against the installed package."""

import doctest
import importlib
import pkgutil

import pytest

import equimorph

MODULES = ["equimorph", *(module.name for module in pkgutil.walk_packages(equimorph.__path__, "equimorph."))]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0
