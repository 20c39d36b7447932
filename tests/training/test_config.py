"""What may be set, where it comes from, and how a mistake is told."""

import dataclasses
import math
from typing import Literal

import pytest
import yaml
from jaxtyping import Array, Float

import equimorph.agents
from equimorph.errors import UserError
from equimorph.training import config as configuration
from equimorph.training import presets
from equimorph.training.config import apply_overrides, load_config, parse, resolve, save_config


@dataclasses.dataclass(frozen=True)
class Learner:
    """A learner with one hyperparameter of every kind."""

    learning_rate: float = 1e-3
    gamma: float | None = None
    epochs: int = 4
    normalise: bool = True
    score: str = "actions"
    hidden: tuple[int, ...] = (64, 64)
    loss: Literal["square", "huber"] = "square"
    optimiser: object = "adam"
    clip: Float[Array, ""] | None = None

    def prepare(self, env, params):
        return self


@pytest.fixture(autouse=True)
def learner(monkeypatch):
    monkeypatch.setitem(vars(equimorph.agents), "MAPPO", Learner)
    monkeypatch.setattr(presets, "PRESETS", {})  # they are for the real one


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return path

    return write


def basic(*sets, **kwargs):
    return resolve("BrockMirman-v0", "mappo", sets=sets, **kwargs)


def refused(*sets, **kwargs):
    with pytest.raises(UserError) as raised:
        basic(*sets, **kwargs)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_priority_is_set_flag_file_preset_default(file, monkeypatch):
    path = file("training: {iterations: 3, num_seeds: 3, seed: 3}")
    monkeypatch.setitem(
        presets.PRESETS,
        ("BrockMirman-v0", "mappo"),
        {"training": {"iterations": 2, "num_seeds": 2, "seed": 2}, "rollout": {"num_envs": 2}},
    )
    config = basic("training.iterations=5", file=path, flags={"training": {"iterations": 4, "num_seeds": 4}})
    assert config.training.iterations == 5
    assert config.training.num_seeds == 4
    assert config.training.seed == 3
    assert config.rollout.num_envs == 2
    assert config.rollout.num_steps == configuration.RolloutConfig().num_steps


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"stepper": "lm"}, {"next_policy", "rule", "widths"}),
        ({"conditions": "derived"}, {"learning_rate", "rule", "widths"}),
        ({"expectation": "all_in_one"}, {"learning_rate", "next_policy", "widths"}),
        ({"expectation": "quadrature", "conditions": "economy"}, {"learning_rate", "next_policy", "rule", "widths"}),
    ],
)
def test_another_choice_leaves_behind_what_the_preset_says_of_the_first(monkeypatch, given, kept):
    preset = {"learning_rate": 1e-3, "next_policy": "stop", "rule": "monomial3", "widths": [8]}
    monkeypatch.setitem(presets.PRESETS, ("BrockMirman-v0", "deqn"), {"agent": preset})
    config = resolve("BrockMirman-v0", "deqn", {"agent": given})
    assert set(config.agent.hyperparameters) == kept | set(given)


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        ({"next_policy": "stop"}, {"target_rate"}),
        ({"replay_size": None}, {"replay_share", "replay_exponent"}),
        ({"replay_size": 32, "next_policy": "target"}, set()),
    ],
)
def test_what_a_preset_says_leaves_with_the_choice_it_is_read_with(monkeypatch, given, gone):
    ring = {"replay_size": 64, "replay_share": 0.25, "replay_exponent": 1.0}
    preset = {"next_policy": "target", "target_rate": 0.02, **ring}
    monkeypatch.setitem(presets.PRESETS, ("BrockMirman-v0", "deqn"), {"agent": preset})
    config = resolve("BrockMirman-v0", "deqn", {"agent": given})
    assert config.agent.hyperparameters == {k: v for k, v in preset.items() if k not in gone} | given
    configuration.build(config)  # nothing is left that would be refused


def test_names_may_come_from_the_file_or_from_set(file):
    path = file("env: {id: StochasticAK-v0}\nagent: {name: mappo, epochs: 2}")
    config = resolve(file=path)
    assert (config.env.id, config.agent.name, config.agent.hyperparameters) == (
        "StochasticAK-v0",
        "mappo",
        {"epochs": 2},
    )
    assert resolve(file=path, sets=["env.id=BrockMirman-v0"]).env.id == "BrockMirman-v0"
    assert resolve("CellCount-v0", file=path).env.id == "CellCount-v0"


def test_missing_names_are_asked_for():
    with pytest.raises(UserError, match=r"agent\.name is missing: give --agent"):
        resolve("BrockMirman-v0")
    with pytest.raises(UserError, match=r"env\.id is missing"):
        resolve(agent="mappo")


@pytest.mark.parametrize("text", ["3e-4", "3.0e-4", "0.0003", "+3E-4", "'3e-4'"])
def test_numbers_are_read_as_written(text):
    assert basic(f"agent.learning_rate={text}").agent.hyperparameters == {"learning_rate": 3e-4}


def test_hyperparameters_take_the_type_of_their_field():
    given = basic(
        "agent.epochs=1e1", "agent.gamma=null", "agent.normalise=false", "agent.hidden=[8, 1e1]", "agent.score=events",
        "agent.learning_rate=1", "agent.loss=huber",
    ).agent.hyperparameters  # fmt: skip
    assert given == {
        "epochs": 10, "gamma": None, "normalise": False, "hidden": (8, 10),
        "score": "events", "learning_rate": 1.0, "loss": "huber",
    }  # fmt: skip
    assert isinstance(given["epochs"], int)
    assert isinstance(given["learning_rate"], float)


def test_hyperparameters_of_other_kinds_are_plain_data():
    given = basic("agent.optimiser={name: sgd, rate: 1e-2}", "agent.clip=0.5").agent.hyperparameters
    assert given == {"optimiser": {"name": "sgd", "rate": 0.01}, "clip": 0.5}
    with pytest.raises(UserError, match="must be plain data, as YAML holds it, got <object"):
        resolve("BrockMirman-v0", "mappo", flags={"agent": {"optimiser": object()}})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "agent.learning_rte=1",
            "unknown key agent.learning_rte: mappo has no such hyperparameter. Did you mean 'agent.learning_rate'?",
        ),
        (
            "training.iteration=1",
            "unknown key training.iteration: there is no such setting. Did you mean 'training.iterations'?",
        ),
        ("trainin.iterations=1", "unknown key trainin: there is no such setting. Did you mean 'training'?"),
        ("training.iterations=0", "training.iterations: it should be greater than or equal to 1, got 0"),
        ("training.iterations=2.5", "training.iterations: it should be a whole number, got 2.5"),
        ("training.iterations=many", "training.iterations: it should be a finite number, got 'many'"),
        ("training.seed=-1", "training.seed: it should be greater than or equal to 0, got -1"),
        ("training.num_seeds=true", "training.num_seeds: it should be a finite number, got True"),
        ("rollout.fresh_episodes=1", "rollout.fresh_episodes: it should be a valid boolean, got 1"),
        ("training=5", "training must be a group of settings, got 5"),
        ("env.params=5", "env.params must be a group of settings, got 5"),
        ("env.params.beta=.nan", "env.params.beta: it should be a finite number, got nan"),
        ("env.params.beta=.inf", "env.params.beta: it should be a finite number, got inf"),
        ("env.params.beta=high", "env.params.beta: it should be a finite number, got 'high'"),
        ("agent.gamma=nan", "agent.gamma must be null or a finite number, got 'nan'"),
        ("agent.epochs=2.5", "agent.epochs must be a whole number, got 2.5"),
        ("agent.epochs=true", "agent.epochs must be a whole number, got True"),
        ("agent.epochs=", "agent.epochs must be a whole number, got nothing"),
        ("agent.normalise=3", "agent.normalise must be true or false, got 3"),
        ("agent.score=3", "agent.score must be text, got 3"),
        ("agent.hidden=[8, x]", "agent.hidden[1] must be a whole number, got 'x'"),
        ("agent.hidden=8", "agent.hidden must be a list, got 8"),
        ("agent.clip=x", "agent.clip must be null or a finite number, got 'x'"),
        ("agent.optimiser={a: [.nan]}", "agent.optimiser must be plain data, as YAML holds it, got {'a': [nan]}"),
        ("agent.loss=cube", "agent.loss must be 'square' or 'huber', got 'cube'"),
        ("agent.name=mapo", "unknown agent 'mapo'. Did you mean 'mappo'?"),
        ("agent.gamma", "cannot read 'agent.gamma'; settings are given as key=value, such as agent.gamma=0.9"),
        ("=3", "cannot read '=3'; settings are given as key=value, such as agent.gamma=0.9"),
        ("agent.name.x=3", "cannot set agent.name.x: agent.name is 'mappo', not a group of settings"),
    ],
)
def test_a_mistake_is_told_in_one_line(override, message):
    assert refused(override) == message


def test_values_that_are_no_yaml_are_refused():
    assert refused("agent.hidden=[1, 2").startswith("the value of agent.hidden is not valid YAML")


def test_a_plain_value_in_place_of_a_group_is_refused(file):
    assert refused(file=file("agent: 3")) == "agent must be a group of settings, got 3"
    assert refused("env=3") == "env must be a group of settings, got 3"
    path = file("training: 3")
    assert refused(file=path, flags={"training": {"seed": 1}}) == "training must be a group of settings, got 3"


def test_files_that_cannot_be_read_are_refused(file, tmp_path):
    with pytest.raises(UserError, match=r"there is no configuration file '.*none\.yaml'"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="cannot read the configuration file"):
        load_config(tmp_path)
    with pytest.raises(UserError, match="is not valid YAML"):
        load_config(file("a: [1"))
    with pytest.raises(UserError, match="must hold a mapping, not a list"):
        load_config(file("- 1"))
    assert load_config(file("# nothing set\n")) == {}


def test_overrides_leave_their_input_alone():
    tree = {"agent": {"name": "mappo"}}
    assert apply_overrides(tree, ["agent.epochs=1", "agent.epochs=2"]) == {"agent": {"name": "mappo", "epochs": 2}}
    assert tree == {"agent": {"name": "mappo"}}


def test_a_saved_configuration_comes_back(tmp_path):
    config = basic(
        "agent.hidden=[8, 8]", "agent.learning_rate=1e-5", "env.params.beta=0.9", "env.concept=planner", "out=there"
    )
    save_config(config, tmp_path / "config.yaml")
    assert parse(load_config(tmp_path / "config.yaml")) == config
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert written["agent"]["learning_rate"] == 1e-5
    assert written["env"] == {
        "id": "BrockMirman-v0",
        "calibration": None,
        "params": {"beta": 0.9},
        "concept": "planner",
    }


def test_build_makes_the_pair():
    env, params, agent = configuration.build(basic("env.params.beta=0.9", "agent.epochs=7"))
    assert env.name == "BrockMirman-v0"
    assert math.isclose(params.beta, 0.9, rel_tol=1e-6)
    assert agent == Learner(epochs=7)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "env.params.betta=0.9",
            "unknown key env.params.betta: BrockMirman-v0 has no such parameter. Did you mean 'env.params.beta'?",
        ),
        (
            "env.concpt=planner",
            "unknown key env.concpt: BrockMirman-v0 has no such option. Did you mean 'env.concept'?",
        ),
        ("env.beta=0.9", "unknown key env.beta: it is a parameter of BrockMirman-v0, so set env.params.beta"),
        (
            "env.params.concept=1",
            "unknown key env.params.concept: it is an option of BrockMirman-v0, so set env.concept",
        ),
        ("env.id=BrockMirmn-v0", "unknown environment 'BrockMirmn-v0'. Did you mean 'BrockMirman-v0'?"),
    ],
)
def test_build_names_the_wrong_key(override, message):
    with pytest.raises(UserError) as raised:
        configuration.build(basic(override))
    assert str(raised.value) == message


def test_build_refuses_a_value_out_of_its_domain():
    with pytest.raises(UserError, match=r"beta.*1\.5"):
        configuration.build(basic("env.params.beta=1.5"))
