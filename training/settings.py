"""Nested settings as plain mappings: read from YAML, overridden by dotted names, laid over each other."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError


class _Loader(yaml.SafeLoader):
    """YAML 1.1, in which 3e-4 is a number as everywhere else."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    """What YAML says; raises `UserError` where it is none, and names its source."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None


def load_config(path: str | os.PathLike) -> dict[str, Any]:
    """Read a YAML file of settings.

    Returns:
        The nested mapping, not yet checked against what may be set.

    Raises:
        UserError: the file is missing or unreadable, is not YAML, or is not a mapping.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no configuration file {os.fspath(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration file {os.fspath(path)!r}: {error}") from None
    tree = parse_yaml(text, f"the configuration file {os.fspath(path)!r}")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"the configuration file {os.fspath(path)!r} must hold a mapping, not a {type(tree).__name__}")
    return tree


def apply_overrides(tree: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Settings with some of them replaced.

    Args:
        tree: nested settings; left as it is.
        overrides: such as `"agent.learning_rate=3e-4"`: a dotted name, and a value in YAML. A later one wins.

    Raises:
        UserError: an override has no `=` or no name, its value is not YAML, or its name leads through a plain value.

    Example:
        >>> apply_overrides({"agent": {"name": "deqn"}}, ["agent.learning_rate=3e-4"])
        {'agent': {'name': 'deqn', 'learning_rate': 0.0003}}
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise UserError(f"cannot read {override!r}; settings are given as key=value, such as agent.gamma=0.9")
        value = parse_yaml(text, f"the value of {key.strip()}")
        for depth in range(len(path) - 1, 0, -1):
            value = {path[depth]: value}
        check_path(tree, path)
        tree = merge(tree, {path[0]: value})
    return dict(tree)


def check_path(tree: Any, path: Sequence[str]) -> None:
    """Raise `UserError` where a name leads through a plain value, which a group of settings would replace unseen."""
    for depth, name in enumerate(path[:-1], start=1):
        tree = tree.get(name)
        if tree is None:
            return
        if not isinstance(tree, Mapping):
            raise UserError(
                f"cannot set {'.'.join(path)}: {'.'.join(path[:depth])} is {tree!r}, not a group of settings"
            )


def merge(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings laid over each other; the last one wins, key by key.

    Example:
        >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
        {'a': {'x': 1, 'y': 3}}
    """
    merged: dict[str, Any] = {}
    for tree in trees:
        for key, value in tree.items():
            below = merged.get(key)
            if isinstance(below, Mapping) and isinstance(value, Mapping):
                value = merge(below, value)
            merged[key] = value
    return merged
