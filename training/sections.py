"""The sections of a configuration, one class each; `Config` joins them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ..agents.registry import hyperparameters
from ..errors import UserError, did_you_mean
from .coerce import coerce, number, whole

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
                raise unknown_key(("agent", key), ["name", *hints], f"{values['name']} has no such hyperparameter")
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
        tensorboard: write TensorBoard events into the run folder: numbers, hyperparameters, and what is asked for here.
        histograms: at each report, distributions of the networks' parameters, of observations and of actions.
        figures: pictures, at evaluations and at the end: an economy's policy function, a tissue's population.
        wandb: send the run to Weights and Biases too: a project's name, or true for "equimorph".
        progress: true: a bar on a terminal, and elsewhere plain lines; false: nothing; None: a bar on a terminal, and
            elsewhere plain lines from the command line, nothing in Python.
        verbose: say first what is run: environment, agent, parameters, schedule in gradient steps.
    """

    tensorboard: bool = True
    histograms: bool = False
    figures: bool = False
    wandb: bool | str = False
    progress: bool | None = None
    verbose: bool = False


def unknown_key(path: Sequence[str], candidates: Sequence[str], reason: str) -> UserError:
    """The error for a key that does not exist, with the nearest that does."""
    prefix = ".".join(path[:-1])
    hint = did_you_mean(str(path[-1]), candidates).replace("mean '", f"mean '{prefix}." if prefix else "mean '")
    listed = "" if hint else f" Known: {', '.join(sorted(candidates))}."
    return UserError(f"unknown key {'.'.join(path)}: {reason}.{hint}{listed}")
