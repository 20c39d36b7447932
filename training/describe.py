"""An environment in words: what `equimorph info` prints."""

import dataclasses
from typing import Any

import numpy as np

from ..envs import catalog, registry
from ..envs.economy import Economy
from ..envs.spaces import Box, MultiDiscrete
from .report import align


def describe(env_id: str) -> str:
    """What an environment is, what it offers, and everything that may be set.

    Args:
        env_id: any id that `equimorph.make` takes.

    Raises:
        UserError: there is no such environment.
    """
    env, params = registry.make(env_id)
    ours = not catalog.is_foreign(env_id)
    spec = catalog.spec(env_id) if ours else None
    lines = [
        f"{env_id}: {spec.summary}"
        if spec
        else f"{env_id}: from {env_id.partition(':')[0] if ':' in env_id else 'gymnax'}",
        "",
        f"agents        {env.num_agents}",
        f"observation   {describe_space(env.observation_space(params))}",
        f"action        {describe_space(env.action_space(params))}",
        f"concept       {env.concept}",
        f"capabilities  {', '.join(sorted(env.capabilities)) or 'none'}",
        f"known answer  {_known(env, params)}",
    ]
    if spec:
        lines.append(f"calibrations  {', '.join(spec.calibrations) or 'none'}")
        lines += _table("options (env.NAME)", [[name, repr(value)] for name, value in describe_options(env_id, env)])
    lines += _table("options of every environment (env.NAME)", [["window", "how many past observations an agent sees"]])
    if isinstance(env, Economy):
        lines.append("  inputs  parameters that are drawn for each episode, and seen: {beta: [low, high]}")
    return "\n".join(lines + _table("parameters (env.params.NAME)", describe_parameters(params)))


def _known(env: Any, params: Any) -> str:
    """The known answer; a solver is named, not run."""
    reference = env.reference(params)
    if reference is not None:
        return f"{reference.concept}, {_accuracy(reference.tolerance)}"
    solver = getattr(env, "solver", None)
    return "none" if solver is None else f"{env.concept}, by the solver {solver!r}"


def _accuracy(tolerance: float) -> str:
    return f"within {tolerance:g}" if tolerance else "exact"


def describe_space(space: Any) -> str:
    """A space in a few words; bounds at the edge of a float's range are none."""
    if isinstance(space, MultiDiscrete) and space.nvec.min() == space.nvec.max():
        return f"MultiDiscrete of {space.nvec.min()} choices {list(space.shape)}"
    if not isinstance(space, Box):
        return str(space)
    low, high = float(np.min(space.low)), float(np.max(space.high))
    bounds = f" in [{low:g}, {high:g}]" if max(abs(low), abs(high)) < 1e30 else ""
    return f"Box{list(space.shape)}{bounds}"


def describe_options(env_id: str, env: Any) -> list[tuple[str, Any]]:
    """The options of an environment's constructor, with their values."""
    fields = {field.name for field in dataclasses.fields(env)}
    names = registry.option_fields(catalog.spec(env_id).load())
    return [(name, getattr(env, name)) for name in names if name in fields]


def describe_parameters(params: Any) -> list[list[str]]:
    """The parameters of an environment: name, value, domain and meaning."""
    rows = []
    for field in dataclasses.fields(params):
        domain = field.metadata.get("domain")
        value = np.array2string(np.asarray(getattr(params, field.name)), precision=6)
        rows.append([field.name, value, "" if domain is None else str(domain), field.metadata.get("doc", "")])
    return rows


def _table(title: str, rows: list[list[str]]) -> list[str]:
    """A titled table whose last column is text."""
    if not rows:
        return []
    table = align([row[:-1] for row in rows]).splitlines()
    return ["", title, *(f"  {line}  {row[-1]}".rstrip() for line, row in zip(table, rows, strict=True))]
