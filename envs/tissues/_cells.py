"""What tissue tasks share: how founders lie, what a cell senses around it, and a picture from above."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import spaces
from ..pictures import OWN_STYLE, CellStyle
from ._forces import pairs
from ._steps import BaseState

if TYPE_CHECKING:
    from ..tissue import TissueParams

RADIUS = 0.5
NEWBORN_RADIUS = RADIUS / np.sqrt(2)  # of a disc; a ball's is `newborn_radius(3)`
# A rate so high that a division within one macro-step has probability 1 in floating point.
CERTAIN = 1e9


def newborn_radius(dimensions: int) -> float:
    """Of a full-grown cell's daughter, which has half its area or volume."""
    return RADIUS / 2 ** (1 / dimensions)


def count(tissue: BaseState) -> Float[Array, ""]:
    """Number of living cells, as a float."""
    return jnp.sum(tissue.alive, dtype=tissue.radius.dtype)


def living_mean(tissue: BaseState, values: Float[Array, "A ..."]) -> Float[Array, "..."]:
    """Mean over living cells; 0 where there are none."""
    mask = tissue.alive.reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.sum(jnp.where(mask, values, 0.0), axis=0) / jnp.maximum(count(tissue), 1.0)


def close_packed(number: int) -> np.ndarray:
    """The `number` sites of a triangular lattice of spacing 1 that lie nearest to the origin, float[number, 2]."""
    reach = np.arange(-int(np.sqrt(number)) - 1, int(np.sqrt(number)) + 2)
    a, b = np.meshgrid(reach, reach)
    sites = np.stack([a + b / 2, b * np.sqrt(3) / 2], axis=-1).reshape(-1, 2)
    nearest = np.lexsort((sites[:, 1].round(6), sites[:, 0].round(6), (sites**2).sum(axis=1).round(6)))
    return sites[nearest][:number]


def close_packed_balls(number: int) -> np.ndarray:
    """The `number` sites of a face-centred cubic lattice of spacing 1 nearest to the origin, float[number, 3]."""
    steps = np.arange(-int(np.cbrt(number)) - 3, int(np.cbrt(number)) + 4)
    sites = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(-1, 3)
    sites = sites[sites.sum(axis=1) % 2 == 0] / np.sqrt(2)
    order = (sites[:, 2], sites[:, 1], sites[:, 0], (sites**2).sum(axis=1))
    return sites[np.lexsort([each.round(6) for each in order])][:number]


def found(key: Array, empty: BaseState, params: TissueParams, sites: np.ndarray | None = None) -> BaseState:
    """Full-grown founders of the first type in the first slots.

    Args:
        key: of their noise.
        empty: the state that they are placed in.
        params: how many, and how noisy.
        sites: `[A, D]`, where; None packs them closely around the origin.
    """
    slots, dimensions = empty.position.shape
    packed = close_packed if dimensions == 2 else close_packed_balls
    alive = jnp.arange(slots) < params.founders
    lattice = jnp.asarray(packed(slots) if sites is None else sites, empty.position.dtype)
    noise = params.founder_noise * jax.random.normal(key, lattice.shape, lattice.dtype)
    found = empty.update(
        alive=alive,
        position=jnp.where(alive[:, None], lattice + noise, 0.0),
        radius=jnp.where(alive, RADIUS, empty.radius),
        celltype=empty.celltype.at[:, 0].set(jnp.where(alive, 1.0, 0.0)),
    )
    if "growth_rate" not in empty.specs:
        return found
    return found.set("growth_rate", jnp.where(alive, params.growth_rate, empty.growth_rate))


def crowding(tissue: BaseState) -> tuple[Float[Array, " A"], Float[Array, "A D"]]:
    """Density of neighbours within two diameters, and the direction in which it grows: into the tissue.

    A neighbour at distance r weighs w = (1 - (r / 2)^2)^2; the density is the sum of w, the direction that of
    (1 - (r / 2)^2) times the vector to the neighbour, half its gradient. An exponential would cost as much as physics.
    """
    around = pairs(tissue)
    weight = jnp.where(tissue.alive[None, :], jnp.maximum(1 - around.square / 4, 0.0), 0.0)
    inward = jnp.stack([-jnp.sum(weight * offset, axis=1) for offset in around.offsets], axis=-1)
    return jnp.sum(weight**2, axis=1) - 1, inward


def own_state(tissue: BaseState) -> list[Float[Array, " A"]]:
    """Radius (0 full-grown, -1 newborn) and recency of division (0 at once, 1 long ago)."""
    return [
        (tissue.radius - RADIUS) / (RADIUS - newborn_radius(tissue.position.shape[1])),
        tissue.division_age / (1 + tissue.division_age),
    ]


def real_numbers(size: int) -> spaces.Box:
    """A space of `size` finite real numbers."""
    dtype = jnp.result_type(float)
    big = float(jnp.finfo(dtype).max)
    return spaces.Box(-big, big, (size,), dtype)


def picture(
    tissue: BaseState,
    colours: Float[np.ndarray, "A 3"],
    size: int,
    ground: np.ndarray | None = None,
    style: CellStyle = OWN_STYLE,
) -> np.ndarray:
    """The tissue along z, uint8[size, size, 3]: living cells as discs, around their middle.

    Args:
        tissue: the simulator's state.
        colours: of the cells, 0 to 255.
        size: of the picture.
        ground: uint8[size, size, 3], drawn under the cells, with the origin in its middle and 12 diameters across.
        style: its view, where there is no ground, and the rings it asks for.
    """
    tissue = jax.tree.map(np.asarray, tissue)
    alive, colours = tissue.alive, np.asarray(colours)
    shown = np.full((size, size, 3), 255, np.uint8) if ground is None else ground.copy()
    position, radius = tissue.position[alive, :2], tissue.radius[alive]
    if ground is not None:
        middle, half = np.zeros(2), 6.0
    elif style.view is not None:
        middle, half = style.view
    elif alive.any():
        middle = position.mean(axis=0)
        half = max(4.0, float(np.abs(position - middle).max()) + 1.0)
    else:
        return shown
    axis = (np.arange(size) + 0.5) / size * 2 * half - half

    def square_distance(place: np.ndarray) -> np.ndarray:
        x, y = place - middle
        return (axis[None, :] - x) ** 2 + (axis[::-1, None] - y) ** 2

    for place in () if style.gone is None else style.gone:
        disc = square_distance(place)
        shown[(disc < RADIUS**2) & (disc > (0.8 * RADIUS) ** 2)] = (205, 120, 110)
    for place, r, colour in zip(position, radius, colours[alive], strict=True):
        disc = square_distance(place)
        shown[disc < r**2] = (20, 60, 90)
        shown[disc < (0.88 * r) ** 2] = colour
    return shown


def by_age(tissue: BaseState) -> Float[np.ndarray, "A 3"]:
    """Blue, the lighter the longer ago a cell divided."""
    age = np.asarray(tissue.division_age)
    light = (age / (1 + age))[:, None]
    return np.array([60.0, 120.0, 170.0]) + light * np.array([130.0, 90.0, 50.0])
