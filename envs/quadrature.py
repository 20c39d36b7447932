"""Integration rules for independent standard normal shocks, in NumPy: nodes are constants of a compiled program.

A rule is a function `(d, order) -> (nodes [J, d], weights [J])`, weights summing to 1. "gauss_hermite" and "qmc" read
`order`; the monomial rules have as many nodes as the dimension asks for.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from ..errors import UserError

MAX_NODES = 4096
FINEST = 11
"""The largest order that `finest` takes of a Gauss rule."""
REPORT_NODES = 256
"""The most nodes that `finest` takes."""

LARGEST_ORDER = 370
"""Gauss rules of a higher one overflow."""

DEFAULT_ORDER = {"gauss_hermite": 5, "qmc": 256}
FIXED = ("exact", "monomial3", "monomial5")
"""Rules that take no order."""

Nodes = tuple[Float[np.ndarray, "J d"], Float[np.ndarray, " J"]]


def gauss_hermite(d: int, order: int) -> Nodes:
    """The product of Gauss rules, `order` nodes a dimension.

    Exact for polynomials of degree `2 order - 1` in each variable (Judd 1998, Numerical Methods in Economics, sections
    7.2 and 7.5).
    """
    x, w = np.polynomial.hermite_e.hermegauss(order)
    grid = np.stack(np.meshgrid(*[x] * d, indexing="ij"), axis=-1).reshape(-1, d)
    weights = np.prod(np.stack(np.meshgrid(*[w] * d, indexing="ij"), axis=-1), axis=-1).reshape(-1)
    return grid, weights / weights.sum()


def monomial3(d: int, order: int = 0) -> Nodes:
    """2d nodes `+-sqrt(d) e_i` of equal weight: exact up to total degree 3 (Judd 1998, section 7.5)."""
    axes = np.sqrt(d) * np.eye(d)
    return np.concatenate([axes, -axes]), np.full(2 * d, 1 / (2 * d))


def monomial5(d: int, order: int = 0) -> Nodes:
    """2d^2 + 1 nodes: exact up to total degree 5 (Stroud 1971, formula E_n^{r^2} 5-2; Judd 1998, section 7.5).

    The origin with weight 2 / (d + 2), `+-sqrt(d + 2) e_i` with (4 - d) / (2 (d + 2)^2), which is negative above four
    dimensions, and `(+-e_i +- e_j) sqrt((d + 2) / 2)` with 1 / (d + 2)^2.
    """
    axes = np.sqrt(d + 2) * np.eye(d)
    pairs = [
        np.sqrt((d + 2) / 2) * (first * np.eye(d)[i] + second * np.eye(d)[j])
        for i, j in itertools.combinations(range(d), 2)
        for first, second in itertools.product((1, -1), repeat=2)
    ]
    nodes = np.concatenate([np.zeros((1, d)), axes, -axes, np.reshape(pairs, (-1, d))])
    groups = ((2 / (d + 2), 1), ((4 - d) / (2 * (d + 2) ** 2), 2 * d), (1 / (d + 2) ** 2, len(pairs)))
    return nodes, np.concatenate([np.full(count, weight) for weight, count in groups])


def qmc(d: int, order: int) -> Nodes:
    """`order` equally weighted points of low discrepancy through the inverse normal distribution, always the same.

    The first coordinate is the midpoint rule; the others are a Kronecker sequence, multiples of powers of the inverse
    of the generalised golden ratio `x^d = x + 1` (Roberts 2018, "The unreasonable effectiveness of quasirandom
    sequences"). Indices lie symmetrically around zero, so points come in pairs of opposite sign and odd moments vanish.
    From 4d points up they are stretched until their covariance is the identity: exact up to total degree 3.
    """
    ratio = 2.0
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / d)
    steps = np.concatenate([[1 / order], ratio ** -np.arange(1.0, d)])
    index = np.arange(order) - (order - 1) / 2
    quantile = np.vectorize(statistics.NormalDist().inv_cdf, otypes=[float])
    nodes = quantile((0.5 + index[:, None] * steps) % 1.0)
    if order >= 4 * d:
        nodes = np.linalg.solve(np.linalg.cholesky(nodes.T @ nodes / order), nodes.T).T
    return nodes, np.full(order, 1 / order)


RULES: dict[str, Callable[[int, int], Nodes]] = {
    rule.__name__: rule for rule in (gauss_hermite, monomial3, monomial5, qmc)
}


def count(rule: str, d: int, order: int) -> int:
    """How many nodes `rule` has in `d` dimensions."""
    return {"gauss_hermite": order**d, "monomial3": 2 * d, "monomial5": 2 * d**2 + 1, "qmc": order}[rule]


@functools.lru_cache(maxsize=64)
def normal_nodes(rule: str, d: int, order: int) -> Nodes:
    """Nodes `[J, d]` and weights `[J]` of `rule`, a key of `RULES`, for `d` standard normal shocks.

    Raises:
        UserError: an order below 1, or more than 4096 nodes; the message names what would fit.
    """
    if rule not in FIXED and order < 1:
        raise UserError(f"quadrature needs an order of at least 1, got {order}")
    if count(rule, d, order) > MAX_NODES:
        how = "" if rule in FIXED else f" with order {order}"
        raise UserError(
            f"{rule}{how} in {d} dimensions needs {count(rule, d, order)} nodes, above the limit of {MAX_NODES}: use "
            f"{', '.join(_alternatives(rule, d))} or DEQN's expectation='all_in_one'"
        )
    with np.errstate(all="ignore"):
        found = RULES[rule](d, order)
    if not all(np.isfinite(array).all() for array in found):
        raise UserError(f"{rule} overflows at order {order}; use an order up to {LARGEST_ORDER}, or rule='qmc'")
    for array in found:
        array.flags.writeable = False  # the cache hands out the same arrays again
    return found


def finest(d: int) -> tuple[str, int]:
    """The most accurate rule that a report can afford in each of 20,000 states: at most 256 nodes.

    `gauss_hermite` of the largest odd order up to 11 that fits (11 up to two dimensions, 5 in three), else a monomial
    rule.
    """
    for order in range(FINEST, 1, -2):
        if count("gauss_hermite", d, order) <= REPORT_NODES:
            return "gauss_hermite", order
    fits = (rule for rule in ("monomial5", "monomial3") if count(rule, d, 0) <= REPORT_NODES)
    return next(fits, "qmc"), REPORT_NODES


def _alternatives(rule: str, d: int) -> list[str]:
    """What fits where `rule` does not, with its number of nodes."""
    largest = min(int(MAX_NODES ** (1 / d) + 1e-9), LARGEST_ORDER)
    found = [f"order {largest} ({largest**d} nodes)"] if rule == "gauss_hermite" and largest > 1 else []
    found += [
        f"rule={name!r} ({count(name, d, 0)})" for name in ("monomial3", "monomial5") if count(name, d, 0) <= MAX_NODES
    ]
    return [*found, f"rule='qmc' with order up to {MAX_NODES}"]
