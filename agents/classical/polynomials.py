"""Chebyshev polynomials of several variables on a box."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

REACH = 1.25
"""How far beyond the box, in half-widths, the polynomial itself is used."""


class Polynomial(eqx.Module):
    """A sum of products of Chebyshev polynomials on a box, linear beyond it.

    Attributes:
        centre, half: `[n]`, the box.
        coefficients: `[K, m]`.
        slopes: `[m, n]`, used beyond `reach` half-widths.
        exponents: K tuples of n degrees.
        reach: in half-widths.
    """

    centre: np.ndarray
    half: np.ndarray
    coefficients: np.ndarray
    slopes: np.ndarray
    exponents: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    reach: float = eqx.field(static=True, default=REACH)

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " m"]:
        half = jnp.asarray(self.half, x.dtype)
        place = (x - jnp.asarray(self.centre, x.dtype)) / half
        inside = jnp.clip(place, -self.reach, self.reach)
        beyond = jnp.asarray(self.slopes, x.dtype) @ ((place - inside) * half)
        return basis(inside, self.exponents) @ jnp.asarray(self.coefficients, x.dtype) + beyond


def basis(place: Float[Array, " n"], exponents: Sequence[tuple[int, ...]]) -> Float[Array, " K"]:
    """Products of Chebyshev polynomials at one point of `[-1, 1]^n`."""
    degrees = np.asarray(exponents)
    columns = [jnp.ones_like(place), place]
    for _ in range(2, int(degrees.max()) + 1):
        columns.append(2 * place * columns[-1] - columns[-2])
    table = jnp.stack(columns)
    return jnp.prod(jnp.stack([table[degrees[:, i], i] for i in range(degrees.shape[1])]), axis=0)


def basis_table(points: np.ndarray, exponents: Sequence[tuple[int, ...]]) -> np.ndarray:
    """`basis` at many points `[P, n]`, `[P, K]`."""
    degrees = np.asarray(exponents)
    values = np.polynomial.chebyshev.chebvander(points, int(degrees.max()))
    return np.prod([values[:, i, degrees[:, i]] for i in range(degrees.shape[1])], axis=0)


def exponents_of(degrees: Sequence[int], complete: bool) -> tuple[tuple[int, ...], ...]:
    """All products up to `degrees`; with `complete`, those whose shares of the degrees sum to at most 1."""
    every = itertools.product(*[range(degree + 1) for degree in degrees])
    if not complete:
        return tuple(every)
    return tuple(each for each in every if sum(e / max(d, 1) for e, d in zip(each, degrees, strict=True)) <= 1 + 1e-12)


def chebyshev_nodes(degrees: Sequence[int]) -> np.ndarray:
    """The product of the roots of the polynomials of one degree more, `[P, n]`."""
    lines = [-np.cos((2 * np.arange(d + 1) + 1) * np.pi / (2 * (d + 1))) for d in degrees]
    return np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, len(degrees))
