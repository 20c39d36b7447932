"""Spaces there and back: gymnax's (and ours) and Gymnasium's."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from ...errors import UserError
from .. import spaces


def to_gymnasium(space: spaces.Space) -> gymnasium.Space:
    """Gymnasium's twin of a space: the same shape, type and bounds. Bounds at the edge of a float's range are infinite.

    Raises:
        UserError: the space has no twin.
    """
    if isinstance(space, spaces.Discrete):
        return gymnasium.spaces.Discrete(int(space.n), dtype=_integer(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return gymnasium.spaces.MultiDiscrete(np.asarray(space.nvec), dtype=_integer(space.dtype))
    if isinstance(space, spaces.Box):
        return _box(space)
    if isinstance(space, spaces.Dict):
        return gymnasium.spaces.Dict({name: to_gymnasium(inner) for name, inner in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return gymnasium.spaces.Tuple([to_gymnasium(inner) for inner in space.spaces])
    raise UserError(f"a space of type {type(space).__name__} has no twin in Gymnasium")


def _integer(dtype: Any) -> Any:
    """An integer type of NumPy's; JAX's ids of types are not."""
    return np.dtype(dtype).type


def _box(space: spaces.Box) -> gymnasium.spaces.Box:
    dtype = np.dtype(space.dtype)
    bounds = []
    for bound in (space.low, space.high):
        bound = np.broadcast_to(np.asarray(bound), space.shape).astype(dtype)
        if np.issubdtype(dtype, np.floating):
            edge = np.abs(bound) >= np.finfo(dtype).max
            bound = np.where(edge, np.copysign(dtype.type(np.inf), bound), bound).astype(dtype)
        bounds.append(bound)
    return gymnasium.spaces.Box(*bounds, shape=tuple(space.shape), dtype=dtype.type)


def from_gymnasium(space: gymnasium.Space) -> spaces.Space:
    """Our twin of one of Gymnasium's spaces, its types those that JAX has (no float64 without `jax_enable_x64`).

    Raises:
        UserError: the space has no twin.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        if space.start != 0:
            raise UserError(f"a discrete space that starts at {space.start} has no twin here; start at 0")
        return spaces.Discrete(int(space.n))
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        if np.any(space.start):
            raise UserError("a multi-discrete space that does not start at 0 has no twin here")
        return spaces.MultiDiscrete(space.nvec)
    if isinstance(space, gymnasium.spaces.MultiBinary):
        return spaces.MultiDiscrete(np.full(space.shape, 2))
    if isinstance(space, gymnasium.spaces.Box):
        dtype = jax.dtypes.canonicalize_dtype(space.dtype)
        low, high = space.low, space.high
        if np.issubdtype(dtype, np.integer):  # a wider type's bounds would wrap around
            low, high = (np.clip(bound, np.iinfo(dtype).min, np.iinfo(dtype).max) for bound in (low, high))
        return spaces.Box(jnp.asarray(low, dtype), jnp.asarray(high, dtype), space.shape, dtype)
    if isinstance(space, gymnasium.spaces.Dict):
        return spaces.Dict({name: from_gymnasium(inner) for name, inner in space.spaces.items()})
    if isinstance(space, gymnasium.spaces.Tuple):
        return spaces.Tuple([from_gymnasium(inner) for inner in space.spaces])
    raise UserError(f"Gymnasium's space {type(space).__name__} has no twin here")
