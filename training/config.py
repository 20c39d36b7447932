"""The configuration of a run: what may be set, where it comes from, and what is built from it.

A setting has a dotted name (`agent.learning_rate`). It comes from, highest first: `--set`, a flag, a file, the
preset of the pair, the default.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, model_validator

from ..agents.registry import make_agent
from ..envs.catalog import is_foreign, spec
from ..errors import UserError
from .presets import preset
from .sections import (
    AgentConfig,
    CheckpointConfig,
    DevicesConfig,
    EnvConfig,
    EvaluationConfig,
    GuardConfig,
    LoggingConfig,
    PlateauConfig,
    RolloutConfig,
    Section,
    StoppingConfig,
    TrainingConfig,
    unknown_key,
)
from .settings import apply_overrides, load_config, merge

RATES = ("stepper", "learning_rate", "schedule", "final_rate", "warmup")
"""Hyperparameters that belong to a stepper: another stepper does not take them over."""
DECLARED = ("weights", "next_policy", "target_rate")
"""Hyperparameters that suit an economy's own conditions: derived ones do not take them over."""
NODES = ("rule", "order")
"""Hyperparameters of quadrature: another expectation does not take them over."""
SOURCES = ("box_stretch", "fresh_share", "steady_share", "steady_width")
"""Hyperparameters of where states come from: another source does not take them over."""
READ_WITH: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "next_policy": ("target", ("target_rate",)),
    "replay_size": (..., ("replay_share", "replay_exponent", "replay_correction")),
    "normalise_values": (True, ("value_decay",)),
    "unfinished": ("keep", ("unscored_tail",)),
    "score": ("actions", ("initial_std", "unscored_tail")),
}
"""Hyperparameters that are read with one value of another (...: any but None); with others a preset's are left out."""


class Config(Section):
    """Everything that determines a run.

    Attributes:
        out: the run folder; None keeps nothing on disk.
    """

    env: EnvConfig
    agent: AgentConfig
    rollout: RolloutConfig = RolloutConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    stopping: StoppingConfig = StoppingConfig()
    plateau: PlateauConfig = PlateauConfig()
    guard: GuardConfig = GuardConfig()
    devices: DevicesConfig = DevicesConfig()
    logging: LoggingConfig = LoggingConfig()
    out: str | None = None

    @model_validator(mode="after")
    def _what_goes_together(self) -> Config:
        read_with: list[tuple[str, str, Section, bool]] = [
            ("stopping.patience", "stopping", self.stopping, self.stopping.patience is not None),
            ("plateau.patience", "plateau", self.plateau, self.plateau.patience is not None),
            ("guard.on_nonfinite=rollback", "guard", self.guard, self.guard.on_nonfinite == "rollback"),
        ]
        for needed, name, section, given in read_with:
            fields = type(section).model_fields
            changed = [key for key in fields if getattr(section, key) != fields[key].default]
            if changed and not given:
                raise UserError(f"{name}.{changed[0]} applies only with {needed}; set that, or leave it out")
            if given and name != "guard" and self.evaluation.every is None:
                raise UserError(f"{name}.patience counts evaluations during training; set evaluation.every")
        return self


def parse(tree: Mapping[str, Any]) -> Config:
    """Check nested settings.

    Raises:
        UserError: the first thing that is wrong: its dotted name, the reason, and the nearest name that exists.
    """
    try:
        return Config.model_validate(dict(tree))
    except ValidationError as error:
        raise _user_error(error) from None


def resolve(
    env_id: str | None = None,
    agent: str | None = None,
    flags: Mapping[str, Any] | None = None,
    file: str | os.PathLike | None = None,
    sets: Sequence[str] = (),
) -> Config:
    """Bring settings together: `sets` over `flags` over `file` over the pair's preset over the defaults.

    Args:
        env_id: the environment; None: the file's.
        agent: the learner's name; None: the file's.
        flags: nested settings, `{"training": {"iterations": 10}}`.
        file: a YAML file.
        sets: overrides as `apply_overrides` takes them.

    Raises:
        UserError: something is missing, unknown or out of range.
    """
    tree = gather(env_id, agent, flags, file, sets)
    for section, key, how in [("env", "id", "an environment id"), ("agent", "name", "--agent")]:
        if tree[section].get(key) is None:
            known = tree["env"].get("id")
            if isinstance(known, str) and not is_foreign(known):
                spec(known)  # a misspelt environment is the first mistake to name
            raise UserError(f"{section}.{key} is missing: give {how}, or {section}.{key} in a configuration file")
    under = dict(preset(str(tree["env"]["id"]), str(tree["agent"]["name"])))
    given = tree["agent"]
    dropped = RATES if "stepper" in given else ()
    dropped += DECLARED if given.get("conditions") == "derived" else ()
    dropped += SOURCES if "states" in given else ()
    dropped += NODES if given.get("expectation", "quadrature") != "quadrature" else ()
    for name, (wanted, readers) in READ_WITH.items():
        if name in given and (given[name] is None if wanted is ... else given[name] != wanted):
            dropped += readers
    under["agent"] = {key: value for key, value in under.get("agent", {}).items() if key not in dropped}
    config = parse(merge(under, tree))
    if config.agent.name == "team_episodes" and "num_steps" not in tree.get("rollout", {}):
        limit = int(build_env(config.env)[1].max_steps_in_episode)
        return parse(merge(merge(under, {"rollout": {"num_steps": limit}}), tree))
    return config


def gather(
    env_id: str | None = None,
    agent: str | None = None,
    flags: Mapping[str, Any] | None = None,
    file: str | os.PathLike | None = None,
    sets: Sequence[str] = (),
) -> dict[str, Any]:
    """What `resolve` is given, in one tree: without presets and defaults, and not yet checked by name."""
    tree = load_config(file) if file else {}
    named = {"env": {"id": env_id} if env_id else {}, "agent": {"name": agent} if agent else {}}
    for part in (flags or {}, named):
        _check_groups(tree, part)
        tree = merge(tree, part)
    tree = apply_overrides(tree, sets)
    _check_groups(tree, named)
    return tree


def _check_groups(tree: Mapping[str, Any], part: Mapping[str, Any]) -> None:
    """Refuse a plain value where `part` has a group of settings: the group would replace it unseen."""
    for key, value in part.items():
        if isinstance(value, Mapping) and not isinstance(tree.get(key, {}), Mapping):
            raise UserError(f"{key} must be a group of settings, got {tree[key]!r}")


def save_config(config: Config, path: str | os.PathLike) -> None:
    """Write every setting, defaults included, as YAML that `load_config` and `parse` read back."""
    Path(path).write_text(dump_config(config), encoding="utf-8")


def dump_config(config: Config) -> str:
    """The YAML text of every setting, defaults included."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def build(config: Config) -> tuple[Any, Any, Any]:
    """Make what a configuration describes.

    Returns:
        The environment, its parameters, and the learner.

    Raises:
        UserError: the environment has no such option or parameter, a value lies outside its domain, or the learner
            refuses its hyperparameters.
    """
    env, params = build_env(config.env)
    return env, params, make_agent(config.agent.name, env, params, **config.agent.hyperparameters)


def build_env(config: EnvConfig) -> tuple[Any, Any]:
    """The environment and its parameters, its keys checked by their dotted names.

    Raises:
        UserError: as for `build`.
    """
    from ..envs import catalog, registry

    if not catalog.is_foreign(config.id):
        _check_env_keys(config)
    twice = sorted(set(config.options) & set(config.params))
    if twice:
        raise UserError(f"env.{twice[0]} and env.params.{twice[0]} are both set; keep env.params.{twice[0]}")
    settings: dict[str, Any] = {**config.options, **config.params}
    return registry.make(config.id, calibration=config.calibration, **settings)


def _check_env_keys(config: EnvConfig) -> None:
    from ..envs import catalog, registry

    options = [*registry.option_fields(catalog.spec(config.id).load()), *registry.GENERAL_OPTIONS]
    _, params = registry.make(config.id)
    names = [field.name for field in dataclasses.fields(params)]
    for key in config.options:
        if key in names:
            raise UserError(f"unknown key env.{key}: it is a parameter of {config.id}, so set env.params.{key}")
        if key not in options:
            raise unknown_key(("env", key), [*EnvConfig.model_fields, *options], f"{config.id} has no such option")
    for key in config.params:
        if key in options and key not in names:
            raise UserError(f"unknown key env.params.{key}: it is an option of {config.id}, so set env.{key}")
        if key not in names:
            raise unknown_key(("env", "params", key), names, f"{config.id} has no such parameter")


def _user_error(error: ValidationError) -> UserError:
    """The first of pydantic's complaints, in one line of our words."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return cause
    path = [str(part) for part in first["loc"] if not str(part).startswith("function-")]
    if first["type"] == "extra_forbidden":
        model: Any = Config
        for name in path[:-1]:
            inside_list = name.isdigit()
            model = typing.get_args(model)[0] if inside_list else model.model_fields[name].annotation
        return unknown_key(path, list(model.model_fields), "there is no such setting")
    key = ".".join(path)
    if first["type"] == "missing":
        return UserError(f"{key} is missing")
    if first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return UserError(f"{key} must be a group of settings, got {first['input']!r}")
    reason = str(cause) if cause else first["msg"].replace("Input should", "it should")
    return UserError(f"{key}: {reason}, got {first['input']!r}")
