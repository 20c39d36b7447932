"""What the two doors to Gymnasium share: parameters and options, render modes, and when a reset is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import numpy as np

from ...errors import UserError, unknown
from ..environment import Environment, EnvParams
from ..registry import override_params
from ..wrappers import Wrapper
from ._spaces import to_gymnasium
from ._typed import strong

FRAMES_PER_SECOND = 10


class ResetNeededError(UserError, gymnasium.error.ResetNeeded):
    """A step or a picture was asked for where there is no episode under way."""


class Door:
    """An environment, its parameters as arrays, and Gymnasium's spaces at them.

    Raises:
        UserError: it is none of ours, or a parameter is not of the shape of its default.
    """

    def __init__(self, env: Environment, params: EnvParams):
        if not isinstance(env, Environment):
            got = type(env).__name__
            raise UserError(
                f"expected an equimorph.envs.Environment, got {got}; see equimorph.make(id, api='gymnasium')"
            )
        self.env = env
        self.params = strong(params)
        self.action_space = to_gymnasium(env.action_space(self.params))
        self.observation_space = to_gymnasium(env.observation_space(self.params))
        self._check_shapes(self.params)

    def replace_params(self, values: Any) -> None:
        """Take new values for some parameters.

        Raises:
            UserError: an unknown name, a value outside its domain, or one that would change a space, which is fixed.
        """
        name = self.env.name
        if not isinstance(values, Mapping):
            raise UserError(f"{name}: options['params'] must be a dict of parameters by name, got {values!r}")
        params = override_params(name, self.params, values, [])
        self._check_shapes(params)
        self.env.check_params(params)
        for kind in ("action_space", "observation_space"):
            space = to_gymnasium(getattr(self.env, kind)(params))
            if space != getattr(self, kind):
                shown = ", ".join(f"{parameter}={value!r}" for parameter, value in values.items())
                raise UserError(
                    f"{name}: {shown} would make the {kind} {space}, which is fixed; make a new environment with it"
                )
        self.params = params

    def _check_shapes(self, params: EnvParams) -> None:
        """One environment has one value of each parameter."""
        after = jax.tree.leaves_with_path(params)
        for (path, leaf), default in zip(after, jax.tree.leaves(self.env.default_params), strict=True):
            if np.shape(leaf) != np.shape(default):
                parameter = jax.tree_util.keystr(path, simple=True, separator=".")
                raise UserError(
                    f"{self.env.name}: parameter {parameter} must have shape {np.shape(default)}, got {np.shape(leaf)}"
                )


def split_options(name: str, options: Mapping[str, Any] | None, known: tuple[str, ...]) -> dict[str, Any]:
    """The options of a reset, none of them unknown.

    Raises:
        UserError: an option that is not in `known`.
    """
    if options is not None and not isinstance(options, Mapping):
        raise UserError(f"{name}: options must be a dict, got {options!r}")
    for option in options or {}:
        if option not in known:
            raise unknown(f"reset option of {name}", str(option), known)
    return dict(options or {})


def has_picture(env: Environment) -> bool:
    """Whether somebody wrote a `render` for it."""
    while isinstance(env, Wrapper) and type(env).render is Wrapper.render:
        env = env.inner
    return type(env).render is not Environment.render


def check_render_mode(env: Environment, render_mode: str | None, modes: list[str]) -> None:
    """Raise `UserError` where the environment cannot be seen that way."""
    if render_mode is None or render_mode in modes:
        return
    if not modes:
        raise UserError(f"{env.name} has no picture, so render_mode must be None, got {render_mode!r}")
    raise unknown(f"render_mode of {env.name}", str(render_mode), modes)


def picture(env: Environment, state: Any, params: EnvParams) -> np.ndarray:
    """A frame, uint8[H, W, 3], the user's own.

    Raises:
        UserError: `render` returned something else.
    """
    frame = np.array(env.render(state, params))
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
        raise UserError(f"{env.name}: render must return uint8[H, W, 3], got {frame.dtype}{list(frame.shape)}")
    return frame


def has_shapeless(space: gymnasium.Space) -> bool:
    """Whether a Box without axes is among what it holds."""
    inner = getattr(space, "spaces", ())
    inner = inner.values() if isinstance(inner, Mapping) else inner
    return (isinstance(space, gymnasium.spaces.Box) and space.shape == ()) or any(map(has_shapeless, inner))


def as_arrays(space: gymnasium.Space, observation: Any) -> Any:
    """The observation with arrays where Python numbers stand for a Box without axes."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: as_arrays(inner, observation[name]) for name, inner in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(as_arrays(inner, part) for inner, part in zip(space.spaces, observation, strict=True))
    shapeless = isinstance(space, gymnasium.spaces.Box) and space.shape == ()
    return np.array(observation, space.dtype) if shapeless else observation
