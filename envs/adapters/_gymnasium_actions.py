"""Actions that come in through Gymnasium's doors: what is accepted, and in which words the rest is refused."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np

from ...errors import UserError


def as_action(space: gymnasium.Space, action: Any, name: str) -> Any:
    """`action` as NumPy arrays of the types of `space`.

    Any real numbers make a continuous action, inside its bounds or not (the environment's side clips them and says so);
    NaN is refused. A discrete action must be a whole number by type, of any width, and inside its range.

    Args:
        space: the action space, of one environment or of a batch.
        action: what the user gave.
        name: what messages begin with.

    Raises:
        UserError: another structure, shape or kind of number; a NaN; a choice that does not exist.
    """
    return _convert(space, action, f"{name}: action")


def empty_action(space: gymnasium.Space) -> Any:
    """Zeros of the shapes and types that `as_action` returns."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: empty_action(inner) for name, inner in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(empty_action(inner) for inner in space.spaces)
    return np.zeros(space.shape or (), space.dtype)


def _convert(space: gymnasium.Space, action: Any, what: str) -> Any:
    if isinstance(space, gymnasium.spaces.Discrete):
        return _choice(space, action, what)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return _choices(space, action, what)
    if isinstance(space, gymnasium.spaces.Box):
        return _numbers(space, action, what)
    if isinstance(space, gymnasium.spaces.Dict):
        if not isinstance(action, Mapping) or set(action) != set(space.spaces):
            shown = sorted(action) if isinstance(action, Mapping) else type(action).__name__
            raise UserError(f"{what} must be a dict with the keys {sorted(space.spaces)}, got {shown}")
        return {name: _convert(inner, action[name], f"{what}[{name!r}]") for name, inner in space.spaces.items()}
    assert isinstance(space, gymnasium.spaces.Tuple)
    if not isinstance(action, (tuple, list)) or len(action) != len(space.spaces):
        raise UserError(f"{what} must be a tuple of {len(space.spaces)}, got {action!r}")
    parts = zip(space.spaces, action, strict=True)
    return tuple(_convert(inner, part, f"{what}[{i}]") for i, (inner, part) in enumerate(parts))


def _choice(space: gymnasium.spaces.Discrete, action: Any, what: str) -> Any:
    if action is True or action is False:
        raise UserError(f"{what} must be a whole number, got {action!r}; use int(action)")
    try:
        choice = operator.index(action)
    except TypeError:
        array = _array(action, (), what)
        raise UserError(f"{what} must be a whole number, got {array.item()!r} of type {array.dtype}") from None
    if not 0 <= choice < space.n:
        raise UserError(f"{what} must be one of 0 to {space.n - 1}, got {choice}")
    return space.dtype.type(choice)


def _choices(space: gymnasium.spaces.MultiDiscrete, action: Any, what: str) -> np.ndarray:
    array = _array(action, space.shape, what)
    if array.dtype.kind not in "iu":
        raise UserError(f"{what} must be whole numbers, got type {array.dtype}; use action.astype(int)")
    # Read without a sign, a negative number is too large as well.
    outside = array.astype(np.int64, copy=False).view(np.uint64) >= space.nvec.astype(np.uint64)
    if np.count_nonzero(outside):
        where, at = _first(outside)
        raise UserError(f"{what}{at} must be one of 0 to {space.nvec[where] - 1}, got {array[where]}")
    return array.astype(space.dtype, copy=False)


def _numbers(space: gymnasium.spaces.Box, action: Any, what: str) -> np.ndarray:
    array = _array(action, space.shape, what)
    dtype = np.dtype(space.dtype)
    if array.dtype != dtype:
        floating = np.issubdtype(dtype, np.floating)
        if array.dtype.kind not in "iu" and not (floating and jnp.issubdtype(array.dtype, np.floating)):
            raise UserError(f"{what} must be {'numbers' if floating else 'whole numbers'}, got type {array.dtype}")
        if not floating:  # out of bounds stays out of bounds, and does not wrap around
            limits = np.iinfo(dtype.str)
            array = np.clip(array, limits.min, limits.max)
        with np.errstate(over="ignore"):  # what is too large for the type is infinite, and out of bounds too
            array = array.astype(dtype)
    if dtype.kind == "f":
        missing = np.isnan(array)
        if missing.any():
            raise UserError(f"{what}{_first(missing)[1]} is not a number (NaN)")
    return array


def _array(action: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    try:
        array = np.asarray(action)
    except (TypeError, ValueError):
        raise UserError(f"{what} must be an array of shape {shape}, got {action!r}") from None
    if array.dtype.kind in "OSU":
        raise UserError(f"{what} must be an array of numbers of shape {shape}, got {action!r}")
    if array.shape != shape:
        raise UserError(f"{what} must have shape {shape}, got {array.shape}")
    return array


def _first(flags: np.ndarray) -> tuple[tuple, str]:
    """The index of the first true entry, and how to write it behind a name."""
    where = np.unravel_index(int(np.argmax(flags)), flags.shape)
    return where, str([int(i) for i in where]) if where else ""
