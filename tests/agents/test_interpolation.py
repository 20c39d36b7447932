"""Interpolation against SciPy's, and through jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import CubicHermiteSpline, CubicSpline

from equimorph.agents.classical._interpolation import (
    CubicHermite,
    CubicSpline2D,
    PiecewiseLinear,
    curved_grid,
    hermite,
    interpolate,
    spline_matrix,
)

INSIDE = np.linspace(0, 1, 23)

apply = jax.jit(lambda function, *points: function(*points))  # a module of arrays is an argument like any other


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_linear_interpolation_is_numpys_and_goes_on_beyond_the_ends():
    x = curved_grid(0, 1, 9, 2.0)
    y = np.stack([np.sin(3 * x), 2 - 5 * x])
    found = interpolate(x, y, INSIDE)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found[0], np.interp(INSIDE, x, y[0]), atol=1e-15)
    outside = np.array([[-1.0, 3.0]])
    np.testing.assert_allclose(interpolate(x, y, outside)[1], 2 - 5 * outside, atol=1e-13)
    np.testing.assert_allclose(apply(PiecewiseLinear(x, y), jnp.asarray(INSIDE)), found, atol=1e-15)


def test_hermite_is_scipys_and_linear_beyond_the_ends():
    x = curved_grid(0, 1, 7)
    y, slope = np.sin(3 * x), 3 * np.cos(3 * x)
    found = hermite(x, y, slope, INSIDE)
    np.testing.assert_allclose(found, CubicHermiteSpline(x, y, slope)(INSIDE), atol=1e-15)
    beyond = apply(CubicHermite(x, y, slope), jnp.array([-0.5, 1.5]))
    np.testing.assert_allclose(beyond, [y[0] - slope[0] / 2, y[-1] + slope[-1] / 2], atol=1e-14)


def test_the_spline_is_scipys_not_a_knot_spline():
    x, y = np.linspace(-1, 3, 9), np.linspace(0, 2, 12)
    coefficients = np.outer(spline_matrix(9) @ np.exp(x), spline_matrix(12) @ np.sin(y))
    spline = CubicSpline2D(coefficients, np.array([-1.0, 0.0]), np.array([3.0, 2.0]))
    at = np.linspace(-1.1, 3.1, 17), np.linspace(-0.1, 2.1, 17)
    expected = CubicSpline(x, np.exp(x), bc_type="not-a-knot")(at[0]) * CubicSpline(y, np.sin(y))(at[1])
    np.testing.assert_allclose(apply(spline, *map(jnp.asarray, at)), expected, atol=1e-12)
