"""What cells sense from afar: scents with their gradients, and shapes on a raster."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._forces import pairs
from ._steps import BaseState

PIXELS, HALF_WIDTH = 24, 6.0
# A disc of this many radii covers the gaps between close-packed neighbours.
FOOTPRINT = 1.1
SOFTNESS = 0.15


def scent(
    tissue: BaseState, reach: Float[Array, ""] | float, source: Float[Array, " A"] | None = None
) -> tuple[Float[Array, " A"], Float[Array, "A D"]]:
    """A scent that every living cell gives off, and its relative gradient.

    c_i = sum over j of s_j exp(-r_ij^2 / (2 reach^2)), and reach times the gradient of log c.

    Args:
        tissue: where the cells are.
        reach: in diameters.
        source: s, by default 1.
    """
    around = pairs(tissue)
    strength = jnp.where(tissue.alive, 1.0 if source is None else source, 0.0)[None, :]
    kernel = strength * jnp.exp(-around.square / (2 * reach**2))
    smell = jnp.sum(kernel, axis=1)
    gradient = jnp.stack([-jnp.sum(kernel * offset, axis=1) for offset in around.offsets], axis=-1)
    return smell, gradient / (reach * jnp.maximum(smell, 1e-6)[:, None])


def in_own_frame(heading: Float[Array, " A"], vector: Float[Array, "A 2"]) -> Float[Array, "A 2"]:
    """A vector's parts along a cell's heading and to its left."""
    cosine, sine = jnp.cos(heading), jnp.sin(heading)
    x, y = vector[:, 0], vector[:, 1]
    return jnp.stack([x * cosine + y * sine, y * cosine - x * sine], axis=-1)


def raster_points() -> Float[Array, "P 2"]:
    """Centres of the raster's 24 x 24 pixels, on a square of 12 diameters around the origin."""
    axis = (jnp.arange(PIXELS, dtype=jnp.result_type(float)) + 0.5) * (2 * HALF_WIDTH / PIXELS) - HALF_WIDTH
    x, y = jnp.meshgrid(axis, axis)
    return jnp.stack([x.ravel(), y.ravel()], axis=-1)


def occupancy(tissue: BaseState) -> Float[Array, " P"]:
    """How much of each pixel living cells cover, between 0 and 1, differentiable in positions and radii.

    A cell of radius r covers a point at distance d by sigmoid((1.1 r - d) / 0.15), and the tissue covers
    1 - product over cells of (1 - that).
    """
    points = raster_points()
    square = (points[:, None, 0] - tissue.position[None, :, 0]) ** 2
    square = square + (points[:, None, 1] - tissue.position[None, :, 1]) ** 2
    depth = (FOOTPRINT * tissue.radius[None, :] - jnp.sqrt(square + 1e-6)) / SOFTNESS
    bare = jnp.sum(jnp.where(tissue.alive[None, :], jax.nn.softplus(depth), 0.0), axis=1)
    return -jnp.expm1(-bare)


def inside(distance: Float[Array, " P"]) -> Float[Array, " P"]:
    """How much of each pixel a shape covers, from the signed distance of its centre to the edge (inside < 0)."""
    return jnp.clip(0.5 - distance / (2 * HALF_WIDTH / PIXELS), 0.0, 1.0)


def soft_iou(one: Float[Array, " P"], other: Float[Array, " P"]) -> Float[Array, ""]:
    """Intersection over union of two rasters in [0, 1]: sum of minima over sum of maxima."""
    return jnp.sum(jnp.minimum(one, other)) / jnp.maximum(jnp.sum(jnp.maximum(one, other)), 1e-6)
