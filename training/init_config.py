"""A configuration file to begin with: every setting of a pair, its value and its meaning."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import yaml

from ..envs import catalog, registry
from .config import Config, resolve
from .describe import describe_options, describe_parameters
from .describe_agent import describe_hyperparameters, entries

WIDTH = 118


def init_config(env_id: str, agent: str) -> str:
    """YAML with every setting of an environment and a learner.

    What the pair's preset sets, and everything that is not the environment's or the learner's, stands as it is; the
    defaults of the rest stand behind a `#`, because some of them exclude each other. The file makes the same run as
    `train(env_id, agent)`.

    Args:
        env_id: any id that `equimorph.make` takes.
        agent: a learner's or a solver's name.

    Raises:
        UserError: there is no such environment or agent.
    """
    config = resolve(env_id, agent)
    lines = [
        f"# {env_id} with {agent}: for `equimorph train --config FILE`.",
        "# Lines behind a # are defaults: take the # away to change them.",
    ]
    for name, field in Config.model_fields.items():
        value = getattr(config, name)
        lines.append("")
        if name == "env":
            lines += ["env:", *_env(config)]
        elif name == "agent":
            lines += ["agent:", f"  name: {agent}", *_agent(config)]
        elif isinstance(field.annotation, type):
            meaning = entries(inspect.getdoc(type(value)) or "")
            lines.append(f"{name}:")
            for key, inner in value.model_dump(mode="json").items():
                lines += [*_comment(meaning.get(key, "")), f"  {key}: {_yaml(inner)}"]
        else:
            meaning = entries(inspect.getdoc(Config) or "")
            lines += [*_comment(meaning.get(name, ""), ""), f"{name}: {_yaml(value)}"]
    return "\n".join(lines) + "\n"


def _env(config: Config) -> Iterator[str]:
    env_id = config.env.id
    yield f"  id: {env_id}"
    env, params = registry.make(env_id)
    if not catalog.is_foreign(env_id):
        spec = catalog.spec(env_id)
        if spec.calibrations:
            yield from _comment(f"a named calibration: {', '.join(spec.calibrations)}")
            yield f"  {_line('calibration', config.env.calibration, config.env.calibration is not None)}"
        for name, value in describe_options(env_id, env):
            yield f"  {_line(name, config.env.options.get(name, value), name in config.env.options)}"
    rows = describe_parameters(params)
    if not rows:
        return
    chosen = config.env.params
    yield "  params:" if any(name in chosen for name, *_ in rows) else "  # params:"
    for name, value, domain, doc in rows:
        yield from _comment(" ".join(part for part in (doc, f"in {domain}" if domain else "") if part), "    ")
        text = _yaml(chosen[name]) if name in chosen else ", ".join(value.split())
        yield f"    {name}: {text}" if name in chosen else f"  #   {name}: {text}"


def _agent(config: Config) -> Iterator[str]:
    chosen = config.agent.hyperparameters
    for name, default, meaning in describe_hyperparameters(config.agent.name):
        yield from _comment(meaning)
        shown = "" if default is inspect.Parameter.empty else default
        yield f"  {_line(name, chosen.get(name, shown), name in chosen)}"


def _line(name: str, value: Any, active: bool) -> str:
    return f"{name}: {_yaml(value)}" if active else f"# {name}: {_yaml(value)}".rstrip()


def _comment(text: str, indent: str = "  ") -> list[str]:
    lead = f"{indent}# "
    return textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=lead) if text else []


def _yaml(value: Any) -> str:
    """A value in one line of YAML; one that YAML has no word for is left out."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, Mapping):
        value = dict(value)
    if value == "":
        return ""
    try:
        text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    except yaml.YAMLError:
        return ""
    return text.removesuffix("...\n").strip()
