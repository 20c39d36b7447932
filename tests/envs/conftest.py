"""Numbers that an independent solver computed, for the tests."""

import json
from pathlib import Path

import pytest

VALUES = json.loads((Path(__file__).parents[1] / "reference_values.json").read_text())


@pytest.fixture(scope="session")
def known():
    """`known(key)` is a value within its tolerance, as `pytest.approx`."""
    return lambda key: pytest.approx(VALUES[key]["value"], abs=VALUES[key]["tol"])
