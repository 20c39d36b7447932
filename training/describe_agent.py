"""An agent in words: what `equimorph info` prints of learners and solvers."""

import inspect
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from ..agents.registry import AGENTS, hyperparameters, is_solver
from .presets import PRESETS

ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*)$")
WIDTH = 118


def describe_agent(name: str) -> str:
    """What an agent does, every option with its default and meaning, and the settings known to work, by environment.

    Args:
        name: of a learner, a solver or a tissue's rule.

    Raises:
        UserError: there is no such agent.
    """
    doc = inspect.getdoc(_definition(name)) or ""
    lines = [f"{name}: {_summary(name, doc)}"]
    options = describe_hyperparameters(name)
    if options:
        lines += ["", "options (agent.NAME), with what they are unless set"]
    for option, default, meaning in options:
        shown = "" if default is inspect.Parameter.empty else f" = {default!r}"
        lines += [f"  {option}{shown}", *_wrapped(meaning)]
    presets = [(env, settings) for (env, agent), settings in PRESETS.items() if agent == name]
    if presets:
        lines += ["", "settings known to work, which lie under yours"]
    for env, settings in presets:
        lines += [f"  {env}", *_wrapped(", ".join(f"{key}={value!r}" for key, value in _flat(settings)))]
    return "\n".join(lines)


def describe_hyperparameters(name: str) -> list[tuple[str, Any, str]]:
    """Every option of an agent: its name, its default (`inspect.Parameter.empty`: none) and what it means."""
    target = _definition(name)
    meaning, first, chosen = entries(inspect.getdoc(target) or ""), _defaults(target), _defaults_by_name(name)
    found = []
    for option in hyperparameters(name):
        default = chosen.get(option, first.get(option, inspect.Parameter.empty))
        beside = (f"{other}: {text}" for other, text in meaning.items() if f"`{option}`" in text)
        found.append((option, default, meaning.get(option) or next(beside, "")))
    return found


def _definition(name: str) -> Any:
    """The class or function whose docstring says what there is to set."""
    from .. import agents
    from ..agents.classical import solver
    from ..agents.classical.tissues import RULES

    if is_solver(name):
        return RULES[name] if name in RULES else solver(name)
    learner = getattr(agents, AGENTS[name])
    return learner if isinstance(learner, type) else agents.MAPPO


def _summary(name: str, doc: str) -> str:
    from .. import agents

    own = doc if is_solver(name) else inspect.getdoc(getattr(agents, AGENTS[name])) or doc
    return own.partition("\n")[0]


def _defaults_by_name(name: str) -> dict[str, Any]:
    """What a named variant of a learner sets itself."""
    from .. import agents

    if is_solver(name) or isinstance(getattr(agents, AGENTS[name]), type):
        return {}
    variant = getattr(agents, AGENTS[name])()
    return {option: value for option in hyperparameters(name) if _plain(value := getattr(variant, option))}


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, tuple))


def _defaults(target: Any) -> dict[str, Any]:
    return {each.name: each.default for each in inspect.signature(target).parameters.values()}


def entries(doc: str) -> dict[str, str]:
    """What a docstring's list of arguments or attributes says of each."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in doc.splitlines():
        entry = ENTRY.match(line)
        if entry:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif names and line.startswith(" " * 8):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings as dotted keys, as `--set` takes them."""
    pairs: list[tuple[str, Any]] = []
    for key, value in settings.items():
        nested = isinstance(value, Mapping) and not prefix
        pairs += _flat(value, f"{key}.") if nested else [(f"{prefix}{key}", value)]
    return pairs
