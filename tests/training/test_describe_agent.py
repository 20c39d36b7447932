"""What `equimorph info` says of agents."""

import itertools

import pytest

from equimorph.agents.registry import AGENTS, hyperparameters
from equimorph.errors import UserError
from equimorph.training.describe_agent import describe_agent


@pytest.mark.parametrize("name", [*AGENTS, "chebyshev", "constant_hazard", "gradient_climbing"])
def test_every_option_is_listed_and_explained(name):
    lines = describe_agent(name).splitlines()
    headed = [line for line in lines if line.startswith("  ") and not line.startswith("   ")]
    options = [line.split()[0] for line in headed]
    assert options[: len(hyperparameters(name))] == list(hyperparameters(name))
    assert not [one for one, after in itertools.pairwise(lines) if one in headed and not after.startswith("      ")]


def test_a_named_variant_shows_what_it_sets():
    assert "  ratio = 'joint'" in describe_agent("team_episodes").splitlines()
    assert "  ratio = 'per_agent'" in describe_agent("mappo").splitlines()


def test_settings_by_environment_are_shown():
    assert "  Growth-v0" in describe_agent("deqn").splitlines()


def test_a_misspelt_agent_is_named():
    with pytest.raises(UserError, match="Did you mean 'mappo'"):
        describe_agent("mapo")
