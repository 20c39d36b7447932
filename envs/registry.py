"""Environment ids: what `make` builds, and the named calibrations of each."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ..errors import UserError, unknown
from .environment import Environment, EnvParams, canonical_params, validate_params

EntryPoint = str | Callable[..., Environment]


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """What is registered under an id.

    Attributes:
        id: such as "BrockMirman-v0".
        entry_point: the environment's class (or a factory with its keyword arguments), or "module:Class", imported
            when first made.
        options: constructor arguments.
        calibrations: named sets of overrides: constructor options and parameters.
        summary: one line for listings.
    """

    id: str
    entry_point: EntryPoint
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    calibrations: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    summary: str = ""

    def load(self) -> Callable[..., Environment]:
        """The class or factory behind the id."""
        if not isinstance(self.entry_point, str):
            return self.entry_point
        module, _, name = self.entry_point.partition(":")
        package = __name__.rpartition(".")[0]
        try:
            return getattr(importlib.import_module(module, package), name)
        except (ModuleNotFoundError, AttributeError) as error:
            raise UserError(f"environment {self.id!r} is registered as {self.entry_point!r}, but {error}") from None


_registry: dict[str, EnvSpec] = {}


def register(
    id: str,
    entry_point: EntryPoint,
    *,
    calibrations: Mapping[str, Mapping[str, Any]] | None = None,
    summary: str = "",
    **options: Any,
) -> None:
    """Register an environment, so that `make(id)` and the command line know it.

    Args:
        id: a new id, by convention "Name-v0".
        entry_point: a subclass of `Environment`, a factory, or "module:Class".
        calibrations: named sets of overrides for `make(id, calibration=...)`.
        summary: one line for listings.
        **options: constructor arguments that every `make` passes.

    Raises:
        UserError: the id is empty or taken, or the entry point is none.
    """
    if not isinstance(id, str) or not id:
        raise UserError(f"an environment id must be text that is not empty, got {id!r}")
    if id in _registry or id in gymnax_ids():
        raise UserError(f"environment {id!r} is already registered; choose another id or the next version")
    if not callable(entry_point) and not (isinstance(entry_point, str) and entry_point.count(":") == 1):
        raise UserError(f"the entry point of {id!r} must be a class, a factory or 'module:Class', got {entry_point!r}")
    _registry[id] = EnvSpec(id, entry_point, dict(options), dict(calibrations or {}), summary)


def list_envs() -> list[str]:
    """The ids of this suite's environments, sorted. gymnax's own ids work in `make` too."""
    return sorted(_registry)


def spec(id: str) -> EnvSpec:
    """What is registered under `id`.

    Raises:
        UserError: no such id; the message names the nearest one.
    """
    name = _imported(id)
    if name not in _registry:
        raise unknown("environment", name, [*_registry, *gymnax_ids()])
    return _registry[name]


def _imported(id: str) -> str:
    """The id behind "module:id"; the module, which registers it, is imported first."""
    module, colon, name = id.rpartition(":")
    if not colon:
        return id
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"cannot import {module!r}, which should register environment {name!r}: {error}") from None
    return name


def gymnax_ids() -> list[str]:
    """The ids that come from gymnax."""
    import gymnax

    return list(gymnax.registered_envs)


def make(id: str, *, calibration: str | None = None, **overrides: Any) -> tuple[Environment, EnvParams]:
    """Build an environment and its parameters.

    Args:
        id: one of `list_envs()`, an id of gymnax's, or "module:id" with a module that registers it.
        calibration: a named calibration of that environment; None is the default one.
        **overrides: constructor options (`concept="competitive"`) and parameters (`beta=0.99`), on top of it.

    Returns:
        The environment, hashable by value, and its parameters as arrays.

    Raises:
        UserError: an unknown id, calibration or name, or a value outside its domain.

    Example:
        >>> env, params = make("BrockMirman-v0", beta=0.9)
        >>> float(params.alpha * params.beta)
        0.324...
    """
    if not isinstance(id, str):
        raise UserError(f"an environment id must be text, got {id!r}")
    if id not in _registry and id in gymnax_ids():
        from .adapters.gymnax import make_gymnax

        if calibration is not None:
            raise UserError(f"{id} comes from gymnax and has no calibrations; leave calibration={calibration!r} out")
        return make_gymnax(id, **overrides)
    found = spec(id)
    id = found.id
    if calibration is not None:
        if calibration not in found.calibrations:
            raise unknown(f"calibration of {id}", calibration, found.calibrations)
        overrides = {**found.calibrations[calibration], **overrides}
    return build(id, found.load(), dict(found.options), overrides)


def build(
    id: str, factory: Callable[..., Environment], options: dict, overrides: dict
) -> tuple[Environment, EnvParams]:
    """Split `overrides` into constructor options and parameters, build both and check them."""
    option_names = option_fields(factory)
    options = options | {name: value for name, value in overrides.items() if name in option_names}
    environment = factory(**options)
    params = environment.default_params
    values = {name: value for name, value in overrides.items() if name not in option_names}
    params = override_params(id, params, values, option_names)
    environment.check_params(params)
    return environment, params


def override_params(id: str, params: EnvParams, values: Mapping[str, Any], option_names: list[str]) -> EnvParams:
    """`params` with `values` replaced, checked by name and domain."""
    names = [field.name for field in dataclasses.fields(params)]
    for name, value in values.items():
        if name not in names:
            raise unknown(f"option or parameter of {id}", name, [*names, *option_names])
        if isinstance(value, jax.core.Tracer):
            raise UserError(
                f"{id}: parameter {name} is traced; make the environment once, then params.replace({name}=...)"
            )
        try:
            number = np.asarray(value, dtype=float)
        except (TypeError, ValueError):
            raise UserError(f"{id}: parameter {name} must be a number, got {value!r}") from None
        if np.issubdtype(np.asarray(getattr(params, name)).dtype, np.integer) and not np.all(
            number == np.floor(number)
        ):
            raise UserError(f"{id}: parameter {name} must be a whole number, got {value!r}")
        if not np.all(np.isfinite(number)):
            raise UserError(f"{id}: parameter {name} must be finite, got {value!r}")
    # Each keeps its default's kind: an integer for a real parameter is a real, a whole float for a count is a count.
    typed = {name: np.asarray(value).astype(np.asarray(getattr(params, name)).dtype) for name, value in values.items()}
    params = canonical_params(params.replace(**typed))
    validate_params(params, id)
    return params


def option_fields(factory: Callable[..., Environment]) -> list[str]:
    """Names of the constructor options of an environment class."""
    if dataclasses.is_dataclass(factory):
        return [field.name for field in dataclasses.fields(factory) if field.init]
    import inspect

    return list(inspect.signature(factory).parameters)


register(
    "BrockMirman-v0",
    ".economies.brock_mirman:BrockMirman",
    calibrations={
        "default": {},
        "patient": {"beta": 0.99, "rho": 0.95, "sigma": 0.01},
        "externality": {"eta": 0.2},
    },
    summary="log utility, full depreciation: save alpha*beta of output, whatever the shock (Brock and Mirman 1972)",
)
register(
    "StochasticAK-v0",
    ".economies.stochastic_ak:StochasticAK",
    calibrations={"default": {}, "stress": {"gamma": 5.0, "mu": 0.05}},
    summary="risky linear returns, power utility: a share that depends on the shock's law (Levhari, Srinivasan 1969)",
)
register(
    "CellCount-v0",
    ".tissues.cell_count:CellCount",
    calibrations={"default": {}, "hazard": {"mode": "hazard"}},
    summary="organ size control: cells decide on dividing so that n* of them are there at the end",
)
