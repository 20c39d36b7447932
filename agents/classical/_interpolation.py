"""Interpolation on grids, as functions and as modules of arrays, so that policies made of them pass through `jit`.

The functions take NumPy or JAX arrays and return what they were given: solvers use the former, policies the latter.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def curved_grid(low: float, high: float, size: int, curvature: float = 3.0) -> np.ndarray:
    """`size` points from `low` to `high`, denser towards `low` the larger `curvature` is; 1 is evenly spaced."""
    return low + (high - low) * np.linspace(0.0, 1.0, size) ** curvature


def locate(x: Any, q: Any) -> Any:
    """The index of the cell of `x` that holds each of `q`; the first or last cell beyond the ends.

    Args:
        x: grid `[n]`, increasing.
        q: points, of any shape.

    Returns:
        Integers of the shape of `q`, from 0 to n - 2.
    """
    xp = _namespace(x, q)
    return xp.clip(xp.searchsorted(x, q, side="right") - 1, 0, x.shape[0] - 2)


def interpolate(x: Any, y: Any, q: Any) -> Any:
    """Piecewise linear through `(x, y)`, continued beyond the ends with the slope of the last cell.

    Args:
        x: grid `[n]`, increasing.
        y: values `[..., n]`.
        q: points, of any shape.

    Returns:
        `[..., *q.shape]`.
    """
    i = locate(x, q)
    weight = (q - x[i]) / (x[i + 1] - x[i])
    return y[..., i] * (1 - weight) + y[..., i + 1] * weight


def hermite(x: Any, y: Any, slope: Any, q: Any) -> Any:
    """Piecewise cubic with values `y` and slopes `slope` at `x`, continued linearly beyond the ends.

    Args:
        x: grid `[n]`, increasing.
        y, slope: values and derivatives at the grid, `[n]`.
        q: points, of any shape.

    Returns:
        Of the shape of `q`.
    """
    xp = _namespace(x, q)
    inside = xp.clip(q, x[0], x[-1])
    i = locate(x, inside)
    end = xp.where(q < x[0], slope[0], slope[-1])
    start, stop, rise, fall = hermite_weights(x, inside, i)
    cubic = start * y[i] + stop * y[i + 1] + rise * slope[i] + fall * slope[i + 1]
    return cubic + end * (q - inside)


def hermite_weights(x: Any, q: Any, i: Any) -> tuple[Any, Any, Any, Any]:
    """What a cubic in cell `i` puts on the values at its two ends and on the slopes there."""
    width = x[i + 1] - x[i]
    t = (q - x[i]) / width
    rise = t * t * (3 - 2 * t)
    return 1 - rise, rise, width * t * (1 - t) ** 2, width * t * t * (t - 1)


class PiecewiseLinear(eqx.Module):
    """`interpolate` as a function of the points.

    Attributes:
        x: grid `[n]`, increasing.
        y: values `[..., n]`.
    """

    x: Float[Array | np.ndarray, " n"]
    y: Float[Array | np.ndarray, "... n"]

    def __call__(self, q: Float[Array, "..."]) -> Float[Array, "..."]:
        """Values at `q`, `[..., *q.shape]`."""
        return interpolate(jnp.asarray(self.x), jnp.asarray(self.y), q)


class CubicHermite(eqx.Module):
    """`hermite` as a function of the points.

    Attributes:
        x: grid `[n]`, increasing.
        y, slope: values and derivatives there, `[n]`.
    """

    x: Float[Array | np.ndarray, " n"]
    y: Float[Array | np.ndarray, " n"]
    slope: Float[Array | np.ndarray, " n"]

    def __call__(self, q: Float[Array, "..."]) -> Float[Array, "..."]:
        """Values at `q`, of its shape."""
        return hermite(jnp.asarray(self.x), jnp.asarray(self.y), jnp.asarray(self.slope), q)


class CubicSpline2D(eqx.Module):
    """A function of two variables on evenly spaced grids: the tensor product of two not-a-knot cubic splines.

    Beyond the grid the cubic of the last cell goes on.

    Attributes:
        coefficients: of the cubic B-splines, `[n + 2, m + 2]`.
        low, high: ends of the grids, `[2]`.
    """

    coefficients: Float[Array | np.ndarray, "n m"]
    low: Float[Array | np.ndarray, " 2"]
    high: Float[Array | np.ndarray, " 2"]

    def __call__(self, x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
        """Values at the points `(x, y)`, of their shape."""
        table, size = jnp.asarray(self.coefficients), self.coefficients.shape
        i, in_x = spline_weights((x - self.low[0]) / (self.high[0] - self.low[0]), size[0] - 2)
        j, in_y = spline_weights((y - self.low[1]) / (self.high[1] - self.low[1]), size[1] - 2)
        rows = [sum(w * table[i + p, j + q] for q, w in enumerate(in_y)) for p in range(4)]
        return in_x[0] * rows[0] + in_x[1] * rows[1] + in_x[2] * rows[2] + in_x[3] * rows[3]


def spline_matrix(size: int) -> np.ndarray:
    """From values at `size` evenly spaced points to the `size + 2` coefficients of their not-a-knot cubic spline."""
    system = np.zeros((size + 2, size + 2))
    for row in range(size):
        system[row, row : row + 3] = np.array([1, 4, 1]) / 6
    # Equal third derivatives on both sides of the second and of the last but one point.
    system[size, :5] = system[size + 1, -5:] = [1, -4, 6, -4, 1]
    return np.linalg.inv(system)[:, :size]


def spline_weights(position: Any, size: int) -> tuple[Any, tuple[Any, Any, Any, Any]]:
    """The first of the four coefficients that count at a point, and their weights.

    Args:
        position: of the points on the grid, 0 at its low end and 1 at its high end.
        size: of the grid.

    Returns:
        Integers and four weights, of the shape of `position`.
    """
    xp = _namespace(position)
    scaled = position * (size - 1)
    i = xp.clip(xp.floor(scaled), 0, size - 2).astype(int)
    t = scaled - i
    return i, ((1 - t) ** 3 / 6, (3 * t**3 - 6 * t**2 + 4) / 6, (1 + 3 * t * (1 + t - t * t)) / 6, t**3 / 6)


def _namespace(*arrays: Any) -> Any:
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np
