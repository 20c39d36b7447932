"""What `make` builds: an environment and its parameters, checked by name and domain."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_type_hints, overload

import jax
import numpy as np

from ..errors import UserError, unknown
from .catalog import LIBRARIES, is_foreign, load_attribute, spec
from .economy import Economy
from .environment import Environment, EnvParams, canonical_params, validate_params
from .family import Family
from .history import with_window

# What `make(api=...)` returns, and the functions that build it.
DOORS = {
    "gymnasium": ".adapters.gymnasium:make_gymnasium",
    "pettingzoo": ".adapters.pettingzoo:make_pettingzoo",
    "jaxmarl": ".adapters.jaxmarl:make_jaxmarl",
}
GENERAL_OPTIONS = ("window", "inputs")
DOOR_OPTIONS = ("num_envs", "render_mode", "autoreset_mode")


@overload
def make(
    id: str,
    *,
    api: Literal["gymnax"] = "gymnax",
    calibration: str | None = None,
    window: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> tuple[Environment, EnvParams]: ...


@overload
def make(
    id: str,
    *,
    api: str,
    calibration: str | None = None,
    window: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Any: ...


def make(
    id: str,
    *,
    api: str = "gymnax",
    calibration: str | None = None,
    window: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Any:
    """Build an environment, for the interface that you know.

    Args:
        id: one of `list_envs()`, an id of gymnax's, "module:id" with a module that registers it, or another library's
            environment: "gymnasium:CartPole-v1", "jaxmarl:MPE_simple_spread_v3", "brax:ant", "jumanji:Snake-v1".
        api: "gymnax", "gymnasium" (with `num_envs=`, a vector environment), "pettingzoo" or "jaxmarl".
        calibration: a named calibration of that environment; None is the default one.
        window: what an agent sees are its last `window` observations (see `history.Windowed`); None, the last one.
        inputs: of an economy, parameters that are drawn for each episode, and seen, `{"beta": (0.9, 0.97)}`: one policy
            answers for all (see `family.Family`).
        **overrides: constructor options (`concept="competitive"`) and parameters (`beta=0.99`), on top of it; and the
            options of the interface, such as `render_mode="rgb_array"`.

    Returns:
        For "gymnax", the environment, hashable by value, and its parameters as arrays: `(env, params)`. For the others
        the environment as that library knows it.

    Raises:
        UserError: an unknown id, api, calibration or name, or a value outside its domain.

    Example:
        >>> env, params = make("BrockMirman-v0", beta=0.9)
        >>> float(params.alpha * params.beta)
        0.324...
        >>> make("BrockMirman-v0", api="gymnasium").action_space
        Box(0.0, 1.0, (1,), float32)
    """
    if not isinstance(id, str):
        raise UserError(f"an environment id must be text, got {id!r}")
    if api != "gymnax":
        if api not in DOORS:
            raise unknown("api", str(api), ["gymnax", *DOORS])
        if id.startswith("gymnasium:"):
            name = id.partition(":")[2]
            raise UserError(f"{id} is Gymnasium's own, stepped on the host; call gymnasium.make({name!r}) itself")
        general = {name: value for name, value in (("window", window), ("inputs", inputs)) if value is not None}
        return load_attribute(DOORS[api])(id, calibration=calibration, **general, **overrides)
    env, params = _plain(id, calibration, overrides)
    if inputs is not None:
        env, params = _family(env, params, inputs, overrides)
    return (env, params) if window is None else (with_window(env, window), params)


def _plain(id: str, calibration: str | None, overrides: dict[str, Any]) -> tuple[Environment, EnvParams]:
    """The environment without what `make` puts around any."""
    for name in DOOR_OPTIONS:
        if name in overrides:
            raise UserError(
                f"{name} is an option of api='gymnasium' (render_mode of api='pettingzoo' too), not of {id}"
            )
    if is_foreign(id):
        library, colon, name = id.partition(":")
        if not colon:
            library, name = "gymnax", id
        if calibration is not None:
            raise UserError(f"{id} is another library's and has no calibrations; leave calibration={calibration!r} out")
        return load_attribute(LIBRARIES[library])(name, **overrides)
    found = spec(id)
    id = found.id
    if calibration is not None:
        if calibration not in found.calibrations:
            raise unknown(f"calibration of {id}", calibration, found.calibrations)
        overrides = {**found.calibrations[calibration], **overrides}
    return build(id, found.load(), dict(found.options), overrides)


def _family(
    env: Environment, params: EnvParams, inputs: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[Environment, EnvParams]:
    """An economy with `inputs`, which are not set as well."""
    family = Family(env, inputs)  # pyright: ignore[reportArgumentType] - it refuses what is no economy
    for name, *_ in family.inputs:
        if name in overrides:
            raise UserError(f"{env.name}: parameter {name} is both set and one of inputs, which draws it; keep one")
    params = family.usual(params)
    family.check_params(params)
    return family, params


def build(
    id: str, factory: Callable[..., Environment], options: dict, overrides: dict
) -> tuple[Environment, EnvParams]:
    """Split `overrides` into constructor options and parameters, build both and check them."""
    option_names = option_fields(factory)
    options = options | {name: value for name, value in overrides.items() if name in option_names}
    environment = factory(**typed_options(id, factory, options))
    params = environment.default_params
    values = {name: value for name, value in overrides.items() if name not in option_names}
    if "max_steps_in_episode" in values and isinstance(environment, Economy) and environment.one_shot:
        raise UserError(
            f"{id}: max_steps_in_episode = {values['max_steps_in_episode']!r} does not apply to a game that is played "
            "once; leave it out"
        )
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
        switch = np.asarray(getattr(params, name)).dtype == bool
        if switch and not np.all((number == 0) | (number == 1)):
            raise UserError(f"{id}: parameter {name} must be True or False, got {value!r}")
        if not switch and np.asarray(value).dtype == bool:
            raise UserError(f"{id}: parameter {name} must be a number, got {value!r}")
        if not number.size:
            raise UserError(f"{id}: parameter {name} is empty; give at least one number")
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
    return list(inspect.signature(factory).parameters)


def typed_options(id: str, factory: Callable[..., Environment], options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` with those declared as `bool` or `int` (or None) checked and made Python's own, which hash by value.

    Raises:
        UserError: a value of another type.
    """
    plain_class = inspect.isclass(factory) and not dataclasses.is_dataclass(factory)
    try:
        declared = get_type_hints(factory.__init__ if plain_class else factory)
    except (NameError, TypeError, AttributeError, SyntaxError):  # annotations for a type checker alone, or none
        return dict(options)
    typed = dict(options)
    for name, value in options.items():
        kinds = {*(get_args(declared.get(name)) or (declared.get(name),))}
        optional = type(None) in kinds
        kinds -= {type(None)}
        if value is None and optional:
            continue
        tail = " or None" if optional else ""
        if kinds == {bool}:
            if not isinstance(value, (bool, np.bool_)):
                raise UserError(f"{id}: option {name} must be True or False{tail}, got {value!r}")
            typed[name] = bool(value)
        elif kinds == {int}:
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise UserError(f"{id}: option {name} must be a whole number{tail}, got {value!r}")
            typed[name] = int(value)
    return typed
