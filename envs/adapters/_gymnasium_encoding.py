"""Gymnasium's observations as networks take them, and learners' actions as Gymnasium takes them."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ...errors import UserError
from .. import spaces
from ._spaces import from_gymnasium


def encoded_space(name: str, space: gymnasium.Space) -> spaces.Space:
    """The space of what `encode` returns.

    Args:
        name: the environment's, for the message.
        space: its observation space.

    Raises:
        UserError: a space that has no fixed number of numbers.
    """
    kinds = gymnasium.spaces
    if isinstance(space, kinds.Discrete):
        return spaces.Box(0.0, 1.0, (int(space.n),), jnp.result_type(float))
    if isinstance(space, kinds.MultiDiscrete):
        return spaces.Box(0.0, 1.0, (int(np.sum(space.nvec)),), jnp.result_type(float))
    if isinstance(space, kinds.MultiBinary):
        return spaces.Box(0.0, 1.0, space.shape, jnp.result_type(float))
    if isinstance(space, kinds.Box):
        return from_gymnasium(space)
    if isinstance(space, kinds.Dict):
        return spaces.Dict({key: encoded_space(name, part) for key, part in space.spaces.items()})
    if isinstance(space, kinds.Tuple):
        return spaces.Tuple([encoded_space(name, part) for part in space.spaces])
    raise UserError(
        f"{name}: observations in a {type(space).__name__} space have no fixed size, which networks need; wrap the "
        "environment so that it shows Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them"
    )


def shapes(space: spaces.Space) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes and types of an element, in the containers that `encode` gives."""
    if isinstance(space, spaces.Dict):
        return {key: shapes(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(shapes(part) for part in space.spaces)
    return jax.ShapeDtypeStruct(tuple(space.shape), space.dtype)


def encode(space: gymnasium.Space, value: Any) -> PyTree[np.ndarray]:
    """One-hot vectors of choices, and the numbers of everything else, with any batch axes in front."""
    kinds = gymnasium.spaces
    if isinstance(space, kinds.Discrete):
        return _one_hot(np.asarray(value) - space.start, int(space.n))
    if isinstance(space, kinds.MultiDiscrete):
        chosen = np.asarray(value) - space.start
        chosen = chosen.reshape(*chosen.shape[: chosen.ndim - len(space.shape)], -1)
        parts = [_one_hot(chosen[..., index], int(n)) for index, n in enumerate(space.nvec.ravel())]
        return np.concatenate(parts, axis=-1)
    if isinstance(space, kinds.Dict):
        return {key: encode(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, kinds.Tuple):
        return tuple(encode(part, each) for part, each in zip(space.spaces, value, strict=True))
    kind = jnp.result_type(float) if isinstance(space, kinds.MultiBinary) else space.dtype
    return np.asarray(value, jax.dtypes.canonicalize_dtype(kind))


def _one_hot(chosen: np.ndarray, count: int) -> np.ndarray:
    return (chosen[..., None] == np.arange(count)).astype(jnp.result_type(float))


def learnable_action_space(name: str, space: gymnasium.Space) -> spaces.Space:
    """The twin of an action space, discrete actions counted from 0.

    Raises:
        UserError: it is neither Discrete nor a Box of real numbers with finite bounds.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if not isinstance(space, gymnasium.spaces.Box):
        raise UserError(
            f"{name}: learners have no actions for a {type(space).__name__} space; wrap the environment so that it "
            "takes a Discrete or a Box"
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise UserError(f"{name}: learners' actions in a Box are real numbers, this one takes {space.dtype}")
    if not (np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high))):
        raise UserError(
            f"{name}: actions are unbounded, from {space.low.min():g} to {space.high.max():g}, and learners' policies "
            "need finite bounds; wrap the environment in gymnasium.wrappers.TransformAction with a bounded space"
        )
    return from_gymnasium(space)


def decode(space: gymnasium.Space, action: Any) -> np.ndarray:
    """A learner's actions, with any batch axes in front, in the space's own type and inside its bounds."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return (np.asarray(action) + space.start).astype(space.dtype)
    assert isinstance(space, gymnasium.spaces.Box)
    return np.clip(np.asarray(action).astype(space.dtype), space.low, space.high)
