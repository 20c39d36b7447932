"""Configuration files to begin with: they say everything, and change nothing."""

import re

import pytest
import yaml

from equimorph.errors import UserError
from equimorph.training.cli import main
from equimorph.training.config import resolve
from equimorph.training.init_config import init_config
from equimorph.training.presets import PRESETS


@pytest.mark.parametrize("pair", PRESETS)
def test_a_file_makes_the_run_that_the_names_make(pair, tmp_path):
    """For every pair with a preset; whatever stands in the file is valid."""
    file = tmp_path / "run.yaml"
    file.write_text(init_config(*pair))
    assert resolve(file=file) == resolve(*pair)


def test_everything_stands_in_it_with_its_meaning():
    text = init_config("BrockMirman-v0", "mappo")
    for name in ("beta", "concept", "clip", "num_envs", "every", "patience", "on_nonfinite", "count", "tensorboard"):
        assert re.search(rf"^ *(# +)?{name}: ", text, re.MULTILINE), name
    assert "# discount factor" in text
    assert "# iterations between checkpoints" in text
    assert yaml.safe_load(text)["agent"]["learning_rate"] == 1e-3  # the preset's


def test_a_default_can_be_changed_by_taking_the_mark_away(tmp_path):
    text = init_config("BrockMirman-v0", "mappo")
    text = re.sub(r"^  # params:", "  params:", text, flags=re.MULTILINE)
    text = re.sub(r"^  #   beta: .*", "    beta: 0.9", text, flags=re.MULTILINE)
    text = re.sub(r"^  # clip: 0.2", "  clip: 0.1", text, flags=re.MULTILINE)
    (tmp_path / "run.yaml").write_text(text)
    config = resolve(file=tmp_path / "run.yaml")
    assert config.env.params == {"beta": 0.9}
    assert config.agent.hyperparameters["clip"] == 0.1


def test_the_command_writes_once(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    words = ["init-config", "--env", "BrockMirman-v0", "--agent", "deqn", "--out", str(file)]
    assert main(words) == 0
    text = file.read_text()
    assert text == init_config("BrockMirman-v0", "deqn")
    capsys.readouterr()
    assert main(words) == 2
    assert "is there already" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    with pytest.raises(UserError, match="Did you mean 'deqn'"):
        init_config("BrockMirman-v0", "deqm")
