"""Grids that agents walk on: moves, compass offsets, distances, and how a part of a grid stands in an observation."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])
"""Rows and columns that a move goes: stay, up, down, left, right."""
COMPASS = np.array([(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)])
"""The directions of goals, row by row; the middle one, `HERE`, is where one is."""
HERE = 4


@dataclasses.dataclass(frozen=True)
class GridSight:
    """Where an observation has the square of the grid around its agent.

    A flat observation begins with `planes` squares of `2 radius + 1` cells a side, row by row, the agent in the middle;
    the first of them is 1 where nobody can stand, the edge of the grid included. Then come four numbers: how far the
    edge is up, down, left and right, in units of `stride` and at most 1. More may follow.

    Attributes:
        radius: cells that are seen to each side; at least `stride`.
        planes: number of squares.
        stride: how far a goal lies, in cells along each axis; nearer where the grid ends.
    """

    radius: int
    planes: int
    stride: int

    @property
    def side(self) -> int:
        """Cells along a side of the squares, S."""
        return 2 * self.radius + 1

    @property
    def size(self) -> int:
        """How many numbers of an observation this speaks of."""
        return self.planes * self.side**2 + 4

    def squares(self, flat: Float[Array, "*batch O"]) -> Float[Array, "*batch P S S"]:
        """The planes of flat observations."""
        count = self.planes * self.side**2
        return flat[..., :count].reshape(*flat.shape[:-1], self.planes, self.side, self.side)

    def goals(self, flat: Float[Array, "*batch O"]) -> Int[Array, "*batch 9 2"]:
        """Row and column, in the squares, of the goal in each direction of `COMPASS`."""
        first = self.planes * self.side**2
        room = jnp.round(flat[..., first : first + 4] * self.stride).astype(jnp.int32)
        up, down, left, right = (room[..., k, None] for k in range(4))
        rows, columns = COMPASS.T
        row = jnp.where(rows < 0, -up, jnp.where(rows > 0, down, 0))
        column = jnp.where(columns < 0, -left, jnp.where(columns > 0, right, 0))
        return self.radius + jnp.stack([row, column], axis=-1)


def neighbours(grid: Array, outside: float) -> tuple[Array, Array, Array, Array]:
    """The values above, below, left and right of each cell, each `[S, S, ...]`: a stack would not stay in registers.

    Args:
        grid: `[S, S, ...]`.
        outside: what stands beyond its edge.
    """
    padded = jnp.pad(grid, ((1, 1), (1, 1), *((0, 0),) * (grid.ndim - 2)), constant_values=outside)
    return padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]


def most(grids: tuple[Array, ...]) -> Array:
    """The largest of several grids, cell by cell."""
    return functools.reduce(jnp.maximum, grids)


def breadth_first(
    free: Bool[Array, "S S *batch"], source: Bool[Array, "S S *batch"], sweeps: int
) -> Int[Array, "S S *batch"]:
    """Steps over free cells from each cell to the nearest source; `sweeps + 1` where it takes more.

    A path may end in a cell that is not free where that is a source, and begins anywhere but in one that is neither.

    Args:
        free: where one can stand.
        source: where paths end.
        sweeps: the longest path that is found.
    """
    far = jnp.int32(sweeps + 1)

    def sweep(steps: Array, _: None) -> tuple[Array, None]:
        nearest = 1 + functools.reduce(jnp.minimum, neighbours(steps, sweeps + 1))
        return jnp.where(source, 0, jnp.where(free, jnp.minimum(nearest, far), far)), None

    return jax.lax.scan(sweep, jnp.where(source, 0, far), None, length=sweeps)[0]


def largest_component(free: Bool[Array, "H W"]) -> Bool[Array, "H W"]:
    """The largest set of free cells that are connected by their sides; of equal ones, one."""
    height, width = free.shape
    names = jnp.where(free, 1 + jnp.arange(height * width, dtype=jnp.int32).reshape(height, width), 0)

    def spread(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        names, _ = carry
        return jnp.where(free, jnp.maximum(names, most(neighbours(names, 0))), 0), names

    names, _ = jax.lax.while_loop(lambda c: jnp.any(c[0] != c[1]), spread, spread((names, names)))
    members = jnp.zeros(height * width + 1, jnp.int32).at[names.ravel()].add(1).at[0].set(0)
    return free & (names == jnp.argmax(members))
