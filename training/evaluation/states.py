"""The states at which errors are reported: an economy's continuous coordinates, a box and spheres in them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...agents.classical.coordinates import StateCoordinates
from ...envs.environment import EnvState
from ...envs.wrappers import innermost

BOX_SD = 3.0
RADII = (0.01, 0.1, 1.0)
MOST_COORDINATES = 64


def coordinates_of(states: EnvState) -> StateCoordinates:
    """The coordinates of visited states `[S, ...]`: names from their fields, logs where all of them are positive."""
    names, logs = [], []
    for path, leaf in jax.tree_util.tree_flatten_with_path(innermost(states))[0]:
        if _is_float(leaf):
            values = np.asarray(leaf).reshape(leaf.shape[0], -1)
            shape = leaf.shape[1:]
            base = jax.tree_util.keystr(path).lstrip(".")
            indices = [f"[{','.join(map(str, np.unravel_index(i, shape)))}]" for i in range(values.shape[1])]
            names += [base + (index if shape else "") for index in indices]
            logs += [bool(column.min() > 0) for column in values.T]
    template = jax.tree.map(lambda leaf: np.asarray(leaf[0]), states)
    return StateCoordinates(tuple(names), tuple(logs), template)


def packed(coordinates: StateCoordinates, states: EnvState) -> Float[np.ndarray, "S D"]:
    """Every state as a vector."""
    return np.asarray(jax.vmap(coordinates)(states))


def unpacked(coordinates: StateCoordinates, points: np.ndarray, like: EnvState) -> EnvState:
    """The state of every vector `[S, D]`; what is not a coordinate is that of `like`, `[S, ...]`."""
    return jax.vmap(lambda x, one: unpack(coordinates, x, one))(jnp.asarray(points), like)


def unpack(coordinates: StateCoordinates, x: Float[Array, " D"], like: EnvState) -> EnvState:
    """The state of one vector; what is not a coordinate is that of `like`."""
    return dataclasses.replace(coordinates, template=like).state(x)


def levels(coordinates: StateCoordinates, x: np.ndarray) -> np.ndarray:
    """Vectors `[..., D]` in the state's own units."""
    return np.where(coordinates.logs, np.exp(np.where(coordinates.logs, x, 0.0)), x)


def box(coordinates: StateCoordinates, visited: EnvState, count: int, seed: int) -> EnvState:
    """States drawn uniformly from a box around the visited ones.

    Each coordinate lies within three standard deviations of its mean, and not below 0 where none was. What is not a
    coordinate (a chain's index) is that of a visited state.
    """
    rng = np.random.default_rng(seed)
    x = packed(coordinates, visited)
    low, high = box_bounds(coordinates, x)
    points = rng.uniform(low, high, (count, coordinates.size))
    return unpacked(coordinates, points, _drawn(rng, visited, count))


def box_bounds(coordinates: StateCoordinates, x: Float[np.ndarray, "S D"]) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the box in each coordinate, `[D]`."""
    mean, width = x.mean(axis=0), BOX_SD * x.std(axis=0)
    never_negative = ~np.array(coordinates.logs) & (x >= 0).all(axis=0)
    return np.where(never_negative, np.maximum(mean - width, 0.0), mean - width), mean + width


def sphere(
    coordinates: StateCoordinates,
    visited: EnvState,
    centre: np.ndarray,
    radius: float,
    count: int,
    seed: int,
    *,
    sd: bool,
) -> EnvState:
    """States at one distance from a centre, in directions drawn uniformly (Juillard and Villemot 2011, JEDC 35).

    Args:
        coordinates, visited: as for `box`.
        centre: `[D]`.
        radius: relative: positive coordinates are in logs, and others are in units of their centre, or as they are
            where that is 0 within a standard deviation. With `sd`, in standard deviations of the visited states.
        count, seed: how many states, and of the draw.
        sd: the unit.
    """
    rng = np.random.default_rng(seed)
    spread = packed(coordinates, visited).std(axis=0)
    moves = spread > 1e-12
    direction = rng.standard_normal((count, coordinates.size)) * moves
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-12)
    relative = np.where(np.array(coordinates.logs) | (np.abs(centre) < spread), 1.0, np.abs(centre))
    points = centre + radius * direction * (spread if sd else relative)
    return unpacked(coordinates, points, _drawn(rng, visited, count))


def _drawn(rng: np.random.Generator, states: EnvState, count: int) -> EnvState:
    index = rng.integers(0, jax.tree.leaves(states)[0].shape[0], count)
    return jax.tree.map(lambda x: x[index], states)


def _is_float(leaf: Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))
