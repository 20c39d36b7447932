"""rejax and its like: our environments in gymnax's form before 1.0, five values out of `step`."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from gymnax.wrappers import LegacyStepAPIWrapper
from jaxtyping import Array, PyTree

from ...errors import UserError
from ..environment import Environment, EnvParams, EnvState


class LegacyStepAPI(LegacyStepAPIWrapper):
    """gymnax's own wrapper for libraries that unpack `(observation, state, reward, done, info)`.

    gymnax's cannot be copied, as rejax does when it makes an algorithm, and is equal to itself alone; this one can, and
    equal environments share one compilation.

    Args:
        env: the environment that `equimorph.make` returned.

    Example:
        >>> import equimorph
        >>> env, params = equimorph.make("BrockMirman-v0")
        >>> # rejax.get_algo("ppo").create(env=LegacyStepAPI(env), env_params=params, ...)
        >>> LegacyStepAPI(env) == LegacyStepAPI(equimorph.make("BrockMirman-v0")[0])
        True
    """

    def __init__(self, env: Environment):
        if "host" in env.capabilities:
            raise UserError(f"{env.name} is stepped on the host and cannot be compiled into a learner of JAX's")
        super().__init__(env)

    def step(
        self, key: Array, state: EnvState, action: Any, params: EnvParams | None = None
    ) -> tuple[PyTree, EnvState, Array, Array, dict]:
        """One step with gymnax's auto-reset: observation, state, reward, done, info.

        An action that lost its axis of length 1 gets it back: rejax squeezes those of its evaluations.
        """
        shape = getattr(self._env.action_space(params), "shape", None)
        if shape is not None and math.prod(shape) == 1 and jnp.shape(action) == ():
            action = jnp.reshape(action, shape)
        return super().step(key, state, action, params)

    def __deepcopy__(self, memo: dict[int, Any]) -> LegacyStepAPI:
        return self  # environments are immutable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LegacyStepAPI) and self._env == other._env

    def __hash__(self) -> int:
        return hash((LegacyStepAPI, self._env))
