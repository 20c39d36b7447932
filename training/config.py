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
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ..envs.catalog import is_foreign, spec
from ..errors import UserError, did_you_mean, unknown
from .coerce import coerce, number, whole
from .presets import preset
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

AGENTS = {
    "mappo": "MAPPO",
    "ppo": "PPO",
    "ippo": "IPPO",
    "team_episodes": "team_episodes",
    "reinforce": "REINFORCE",
    "deqn": "DEQN",
    "pathwise": "Pathwise",
}
"""Learners by name: a class, or a function that makes one with settings of its own."""

Whole = Annotated[int, BeforeValidator(whole)]
Count = Annotated[Whole, Field(ge=1, lt=2**31)]
Seed = Annotated[Whole, Field(ge=0, lt=2**31)]
Number = Annotated[int | float, BeforeValidator(number)]
Setting = Annotated[
    bool | int | float, BeforeValidator(lambda value: value if isinstance(value, bool) else number(value))
]


class Section(BaseModel):
    """A part of the configuration. Names that it does not know are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EnvConfig(Section):
    """Which environment, and how it is made. Any further key is one of its constructor's options.

    Attributes:
        id: any id that `equimorph.make` takes.
        calibration: a named calibration of that environment.
        params: values of its parameters, on top of the calibration.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    id: str
    calibration: str | None = None
    params: dict[str, Setting] = {}

    @property
    def options(self) -> dict[str, Any]:
        """The constructor's options that were set."""
        return dict(self.model_extra or {})


class AgentConfig(Section):
    """Which learner. Any further key is one of its hyperparameters, checked against its constructor.

    Attributes:
        name: "mappo" (with settings of its own as "ppo", "ippo" or "team_episodes"), "reinforce", "deqn"
            or "pathwise", or a classical solver ("closed_form", "log_linear", "chebyshev", ...).
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str

    @model_validator(mode="before")
    @classmethod
    def _hyperparameters(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "name" not in values:
            return values
        hints = hyperparameters(values["name"])
        checked = {"name": values["name"]}
        for key in [key for key in values if key != "name"]:
            if key not in hints:
                raise _unknown_key(("agent", key), ["name", *hints], f"{values['name']} has no such hyperparameter")
            checked[key] = coerce(values[key], hints[key], f"agent.{key}")
        return checked

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The hyperparameters that were set; the others keep the learner's defaults."""
        return dict(self.model_extra or {})


class RolloutConfig(Section):
    """What is collected before each update.

    Attributes:
        num_envs: environments that run side by side, N.
        num_steps: steps in each of them, T.
        fresh_episodes: start every rollout from reset.
    """

    num_envs: Count = 64
    num_steps: Count = 32
    fresh_episodes: bool = False


class SwitchConfig(Section):
    """Another stepper from some iteration on.

    Attributes:
        at: iterations before it.
        stepper: as the agent's; the policy is kept, the stepper's own state starts anew.
        learning_rate, schedule: of the new stepper; None takes its own. A schedule ends where the next stepper begins.
    """

    at: Count
    stepper: str | dict[str, Any]
    learning_rate: Number | None = None
    schedule: str | None = None


class TrainingConfig(Section):
    """How long, and from which seeds.

    Attributes:
        iterations: collect and update, this many times.
        iterations_per_chunk: iterations under one call of the compiled loop, between two reports; None chooses.
        seed: the first seed.
        num_seeds: seeds trained side by side.
        switch: other steppers later in the run, in the order of their `at`.
    """

    iterations: Count = 200
    iterations_per_chunk: Count | None = None
    seed: Seed = 0
    num_seeds: Count = 1
    switch: list[SwitchConfig] = []


class EvaluationConfig(Section):
    """What the trained policy is scored on.

    Attributes:
        every: iterations between evaluations during training, on keys of their own and without exploring; the best
            policy is kept. None: only at the end.
        num_episodes: episodes, side by side.
        horizon: steps in each; None chooses from the environment's time limit and discount.
        seed: of the shocks, which all policies share.
    """

    every: Count | None = None
    num_episodes: Count = 256
    horizon: Count | None = None
    seed: Seed = 12345


class CheckpointConfig(Section):
    """What a run can go on from. It needs a run folder.

    Attributes:
        every: iterations between checkpoints; None: about a tenth of the run. There is one at the end, and when a
            signal ends the run.
        keep: how many of the latest are kept, and the one with the best evaluation besides.
    """

    every: Count | None = None
    keep: Count = 3


class StoppingConfig(Section):
    """When a run may end early.

    Attributes:
        patience: evaluations without a better mean return after which it ends; None: never. It needs evaluation.every.
        least_gain: by how much a return must be better to count.
    """

    patience: Count | None = None
    least_gain: Annotated[Number, Field(ge=0)] = 0.0


class PlateauConfig(Section):
    """Smaller learning rates when evaluations get no better. It needs evaluation.every.

    Attributes:
        patience: evaluations without a better mean return after which rates are reduced; None: never.
        factor: what they are multiplied with.
        least: the smallest multiple of the first rates.
    """

    patience: Count | None = None
    factor: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    least: Annotated[Number, Field(gt=0, le=1)] = 0.01


class GuardConfig(Section):
    """What is done when a loss, a gradient, an observation or a reward is not finite.

    Attributes:
        on_nonfinite: "stop", or "rollback": go back to where the last checkpoint was due, with smaller rates.
        factor: what learning rates are multiplied with at each rollback.
        max_rollbacks: rollbacks before the run stops after all.
    """

    on_nonfinite: Literal["stop", "rollback"] = "stop"
    factor: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    max_rollbacks: Count = 3


class DevicesConfig(Section):
    """What environments are spread over.

    Attributes:
        count: devices; None: all there are. Learners are whole on each, and learn what they do on one but for the order
            of sums.
    """

    count: Count | None = 1


class LoggingConfig(Section):
    """What is reported on the way.

    Attributes:
        tensorboard: write TensorBoard events into the run folder.
        progress: show progress; None: only when the output is a terminal.
    """

    tensorboard: bool = True
    progress: bool | None = None


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


def agent_names() -> list[str]:
    """Learners, classical solvers and tissues' rules."""
    from ..agents.classical import SOLVERS
    from ..agents.classical.tissues import RULES

    return [*AGENTS, *SOLVERS, *RULES]


def is_solver(name: str) -> bool:
    """Whether an agent of that name is a classical solver or a tissue's rule; otherwise it is a learner.

    Raises:
        UserError: it is neither; the message names the nearest.
    """
    if not isinstance(name, str):
        kind = name.__name__ if isinstance(name, type) else type(name).__name__
        raise UserError(f"an agent is given by its name, such as 'deqn', got {kind}; its options go beside the name")
    names = agent_names()
    if name not in names:
        raise unknown("agent", name, names)
    return name not in AGENTS


def make_agent(name: str, env: Any, params: Any, **hyperparameters: Any) -> Any:
    """The agent of that name; a classical solver solves the environment here, a rule is made for it.

    Raises:
        UserError: there is none, or it refuses its hyperparameters or (a solver) the environment.
    """
    from .. import agents
    from ..agents.classical.tissues import RULES, rule_agent

    if name in RULES:
        return rule_agent(name, env, params, **hyperparameters)
    if is_solver(name):
        return agents.classical_agent(name, env, params, **hyperparameters)
    if name in ("ppo", "team_episodes"):
        from ..agents.ppo import check_single, check_team

        (check_single if name == "ppo" else check_team)(env)
    return getattr(agents, AGENTS[name])(**hyperparameters).prepare(env, params)


def hyperparameters(name: str) -> dict[str, Any]:
    """An agent's hyperparameters and their annotations.

    Raises:
        UserError: there is no agent of that name.
    """
    from .. import agents

    if is_solver(name):
        from ..agents.classical.agent import options_of
        from ..agents.classical.tissues import RULES, rule_options

        return rule_options(name) if name in RULES else options_of(name)
    learner = getattr(agents, AGENTS[name])
    if not isinstance(learner, type):
        learner = typing.get_type_hints(learner)["return"]
    hints = typing.get_type_hints(learner)
    return {field.name: hints[field.name] for field in dataclasses.fields(learner) if field.init}


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
    tree = load_config(file) if file else {}
    named = {"env": {"id": env_id} if env_id else {}, "agent": {"name": agent} if agent else {}}
    for part in (flags or {}, named):
        _check_groups(tree, part)
        tree = merge(tree, part)
    tree = apply_overrides(tree, sets)
    _check_groups(tree, named)
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
            raise _unknown_key(("env", key), [*EnvConfig.model_fields, *options], f"{config.id} has no such option")
    for key in config.params:
        if key in options and key not in names:
            raise UserError(f"unknown key env.params.{key}: it is an option of {config.id}, so set env.{key}")
        if key not in names:
            raise _unknown_key(("env", "params", key), names, f"{config.id} has no such parameter")


def _unknown_key(path: Sequence[str], candidates: Sequence[str], reason: str) -> UserError:
    prefix = ".".join(path[:-1])
    hint = did_you_mean(str(path[-1]), candidates).replace("mean '", f"mean '{prefix}." if prefix else "mean '")
    listed = "" if hint else f" Known: {', '.join(sorted(candidates))}."
    return UserError(f"unknown key {'.'.join(path)}: {reason}.{hint}{listed}")


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
        return _unknown_key(path, list(model.model_fields), "there is no such setting")
    key = ".".join(path)
    if first["type"] == "missing":
        return UserError(f"{key} is missing")
    if first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return UserError(f"{key} must be a group of settings, got {first['input']!r}")
    reason = str(cause) if cause else first["msg"].replace("Input should", "it should")
    return UserError(f"{key}: {reason}, got {first['input']!r}")
