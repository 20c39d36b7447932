"""rejax and its like: our environments in gymnax's form before 1.0, five values out of `step`."""

from __future__ import annotations

from typing import Any

from gymnax.wrappers import LegacyStepAPIWrapper

from ..environment import Environment


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
        super().__init__(env)

    def __deepcopy__(self, memo: dict[int, Any]) -> LegacyStepAPI:
        return self  # environments are immutable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LegacyStepAPI) and self._env == other._env

    def __hash__(self) -> int:
        return hash((LegacyStepAPI, self._env))
