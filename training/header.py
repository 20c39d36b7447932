"""What a run says of itself before it begins: `verbose`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..agents.steppers import scheduled
from ..envs import catalog
from ..envs.environment import Environment, EnvParams
from .config import Config
from .describe import describe_space
from .describe_agent import describe_hyperparameters
from .distributions import networks
from .presets import preset
from .switch import Stage

WIDTH = 118
OMITTED = ("logging", "checkpoint", "out")
"""What of a configuration changes nothing of what a run learns or how it scores."""


def settings_of(config: Config, params: EnvParams) -> dict[str, bool | int | float | str]:
    """Every setting by dotted name, with the values of what was not set: a run's row in a table of runs.

    Args:
        config: of the run.
        params: of its environment; single numbers are included.
    """
    tree = {name: group for name, group in config.model_dump(mode="json").items() if name not in OMITTED}
    defaults = {name: default for name, default, _ in describe_hyperparameters(config.agent.name)}
    tree["agent"] = defaults | tree["agent"]
    tree["env"] = tree["env"] | {"params": _numbers(params) | tree["env"]["params"]}
    return dict(_flat(tree))


def _numbers(params: EnvParams) -> dict[str, Any]:
    fields = {field.name: np.asarray(getattr(params, field.name)) for field in dataclasses.fields(params)}
    return {name: _shortest(x) for name, x in fields.items() if x.ndim == 0 and x.dtype.kind in "biuf"}


def _shortest(value: np.ndarray) -> bool | int | float:
    """A number as it was written, not as float32 holds it."""
    return float(str(value)) if value.dtype.kind == "f" else value.item()


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{key}", value
        elif isinstance(value, list | tuple) and len(value):
            yield f"{prefix}{key}", json.dumps(value, default=str)


def header(config: Config, env: Environment, params: EnvParams, parts: Sequence[Stage], state: PyTree) -> str:
    """Environment, agent, numbers of parameters, and length with schedules and switches in gradient steps.

    Args:
        config, env, params: of the run.
        parts: what lies between its stepper switches.
        state: the learner's, of all seeds; its shapes only are read.
    """
    rows = [*_environment(config, env, params), *_agent(config, state), *_length(config, env, parts)]
    left = max(len(name) for name, _ in rows) + 2
    return "\n".join(
        line
        for name, text in rows
        for line in textwrap.wrap(
            f"{name:<{left}}{text}", WIDTH, subsequent_indent=" " * left, break_long_words=False, break_on_hyphens=False
        )
    )


Row = tuple[str, str]


def _environment(config: Config, env: Environment, params: EnvParams) -> Iterator[Row]:
    env_id = config.env.id
    summary = "" if catalog.is_foreign(env_id) or ":" in env_id else f": {catalog.spec(env_id).summary}"
    yield "environment", env_id + summary
    options = [f"{name}={value!r}" for name, value in config.env.options.items()]
    options += [] if config.env.calibration is None else [f"calibration={config.env.calibration!r}"]
    if options:
        yield "  options", ", ".join(options)
    yield "  agents", f"{env.num_agents}, concept {env.concept}"
    yield "  observation", describe_space(env.observation_space(params))
    yield "  action", describe_space(env.action_space(params))
    shown = [f"{name}={value:.6g}" for name, value in _numbers(params).items()]
    arrays = [field.name for field in dataclasses.fields(params) if np.ndim(getattr(params, field.name)) > 0]
    shown += [f"{name} {list(np.shape(getattr(params, name)))}" for name in arrays]
    if shown:
        yield "  parameters", ", ".join(shown)


def _agent(config: Config, state: PyTree) -> Iterator[Row]:
    name = config.agent.name
    yield "agent", name
    defaults = {option: default for option, default, _ in describe_hyperparameters(name)}
    known = dict(preset(config.env.id, name).get("agent", {}))
    chosen = config.agent.hyperparameters
    given = {k: v for k, v in chosen.items() if k not in known or not _same(v, known[k])}
    from_preset = {k: v for k, v in chosen.items() if k not in given}
    for label, values in (("  given", given), ("  preset", from_preset)):
        if values:
            told = (
                f"{k}={v!r}" + (f" (default {_default(defaults.get(k))})" if k in given else "")
                for k, v in values.items()
            )
            yield label, ", ".join(told)
    if not chosen:
        yield "  options", "all at their defaults"
    seeds = config.training.num_seeds
    counts = {
        which: sum(int(np.prod(x.shape)) for x in jax.tree.leaves(tree)) // seeds
        for which, tree in networks(state).items()
    }
    text = ", ".join(f"{which} {count:,}" for which, count in counts.items())
    yield "  parameters", text + (f"; {sum(counts.values()):,} in all" if len(counts) > 1 else "")


def _same(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, Sequence) and isinstance(b, Sequence) and list(a) == list(b))


def _default(value: Any) -> str:
    return "none" if value is None or value is inspect.Parameter.empty else repr(value)


def _length(config: Config, env: Environment, parts: Sequence[Stage]) -> Iterator[Row]:
    training, rollout = config.training, config.rollout
    each = rollout.num_envs * rollout.num_steps
    seeds = "" if training.num_seeds == 1 else f", {training.num_seeds} seeds side by side"
    yield "iterations", f"{training.iterations:,}, from seed {training.seed}{seeds}"
    yield (
        "steps",
        f"{rollout.num_envs} x {rollout.num_steps} = {each:,} an iteration, {each * training.iterations:,} in all",
    )
    steps = parts[0].agent.gradient_steps(rollout.num_steps, rollout.num_envs)  # a switch changes the stepper alone
    if steps is None:
        return
    yield "gradient steps", f"{steps:,} an iteration, {steps * training.iterations:,} in all"
    for number, part in enumerate(parts):
        where = f"at gradient step {part.start * steps:,} (iteration {part.start:,}): " if number else ""
        yield ("  switch" if number else "  schedule"), where + _schedule(part, env, steps)
    if waits := getattr(parts[0].agent, "critic_warmup", 0):
        yield (
            "  critic alone",
            f"until gradient step {waits * steps:,} (iteration {waits:,}), when the policy first moves",
        )
    if getattr(parts[0].agent, "entropy_schedule", "constant") != "constant":
        last = steps * training.iterations
        yield "  entropy", f"{parts[0].agent.entropy_schedule} from the first to the last, {last:,}"


def _schedule(part: Stage, env: Environment, steps: int) -> str:
    """The course of a part's learning rate, in gradient steps of the run; `steps` are those of an iteration."""
    agent = part.agent
    stepper = getattr(agent, "stepper", None)
    if stepper is None or not stepper.uses_rate:
        return f"{getattr(stepper, 'name', 'its stepper')} measures its own step length"
    rate = agent.effective_rate() if hasattr(agent, "effective_rate") else agent.learning_rate
    kind = agent.effective_schedule() if hasattr(agent, "effective_schedule") else agent.schedule
    warmup = agent.effective_warmup(env) if hasattr(agent, "effective_warmup") else agent.warmup
    final, first, last = agent.final_rate, part.start * steps, part.end * steps
    usual = 1e-3 if hasattr(agent, "effective_schedule") else 0.0
    at = partial(scheduled, kind, jnp.asarray(rate), usual if final is None else final)
    begins, ends = (float(at(jnp.asarray(step), jnp.asarray(last))) for step in (first, last))
    text = f"{stepper.name}, rate {begins:.4g}"
    text += ", constant" if kind == "constant" else f", {kind} to {ends:.4g} at gradient step {last:,}"
    return text + (f", warm-up until {warmup:,}" if warmup > first else "")
