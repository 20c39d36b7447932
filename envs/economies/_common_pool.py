"""One player's best policy in a common pool with log utility, against whatever the others do, on a grid.

The value is written as B log x + w(log x) with B = 1 / (1 - alpha beta). Against constant fractions w is a constant, so
that its piecewise linear interpolation is exact there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

SIZE, NODES = 121, 7
CANDIDATES, SECTIONS, IMPROVEMENTS = 49, 36, 10
GOLDEN = (np.sqrt(5) - 1) / 2


class Response(NamedTuple):
    """A best response on the pool's grid: the fractions asked for, and the value w; `[n]` each."""

    asked: Float[Array, " n"]
    value: Float[Array, " n"]


class CommonPool:
    """The stock of `FishWar` as one player sees it: x' = z' (x - c - others' c)^alpha, utility log c.

    Args:
        params: `alpha`, `beta`, `sigma` of the economy.
        most: the share of the stock that can be drawn in total; beyond it all are rationed.
        floor: the smallest fraction anyone asks for.
    """

    def __init__(self, params: Any, most: float, floor: float):
        self.alpha, self.beta, self.most, self.floor = params.alpha, params.beta, most, floor
        dtype = jnp.result_type(float)
        x, w = np.polynomial.hermite_e.hermegauss(NODES)
        self.noise = params.sigma * jnp.asarray(x, dtype)
        self.weights = jnp.asarray(w / w.sum(), dtype)
        spread = 6 * params.sigma / jnp.sqrt(1 - params.alpha**2)
        lowest = params.alpha * np.log(1 - most) / (1 - params.alpha)
        self.low, self.high = lowest - spread, spread

    @property
    def grid(self) -> Float[Array, " n"]:
        """Log stocks that players can come to."""
        return jnp.linspace(self.low, self.high, SIZE)

    @property
    def stocks(self) -> Float[Array, " n"]:
        """The stocks of the grid."""
        return jnp.exp(self.grid)

    def cell(self, log_x: Float[Array, "..."]) -> tuple[Array, Array]:
        """The grid's cell that a log stock is in, and its place there from 0 to 1; held at the ends."""
        place = jnp.clip((log_x - self.low) / (self.high - self.low) * (SIZE - 1), 0, SIZE - 1)
        index = jnp.minimum(place.astype(jnp.int32), SIZE - 2)
        return index, place - index

    def interpolate(self, value: Float[Array, " n"], log_x: Float[Array, "..."]) -> Float[Array, "..."]:
        """w between grid points."""
        index, place = self.cell(log_x)
        return value[index] * (1 - place) + value[index + 1] * place

    def at(self, value: Float[Array, " n"], log_x: Float[Array, ""]) -> Float[Array, ""]:
        """The whole value at a log stock."""
        return log_x / (1 - self.alpha * self.beta) + self.interpolate(value, log_x)

    def split(self, asked: Array, others: Array) -> tuple[Array, Array]:
        """The fraction a player gets, and what is left of the stock, given what it and the others ask for."""
        asked = jnp.maximum(asked, self.floor)
        total = asked + others
        scale = jnp.where(total > self.most, self.most / total, 1)
        return asked * scale, 1 - total * scale

    def flow(self, asked: Array, others: Array, log_x: Array) -> tuple[Array, Array]:
        """What this period adds to w, and next period's log stocks at each node of the shock, `[J]` in front."""
        got, left = self.split(asked, others)
        mean = self.alpha * (log_x + jnp.log(left))
        slope = 1 / (1 - self.alpha * self.beta)
        return jnp.log(got) + self.beta * slope * self.alpha * jnp.log(left), mean + self.noise[:, None]


def best_response(pool: CommonPool, others: Float[Array, " n"], *, rationing: bool = True) -> Response:
    """The policy that maximises one player's value while the others ask for `others` in total.

    Policy iteration: the best fractions against a value by search, then that policy's own value by a linear system.

    Args:
        pool: the common pool.
        others: what the others ask for, on the pool's grid.
        rationing: whether the player may ask for more than the others leave, so that all are rationed.
    """
    grid = pool.grid
    most = jnp.ones_like(grid) if rationing else jnp.maximum(pool.most - others, pool.floor)

    def improve(_, response: Response) -> Response:
        def worth(asked):
            flow, ahead = pool.flow(asked, others, grid)
            return flow + pool.beta * jnp.tensordot(pool.weights, pool.interpolate(response.value, ahead), axes=1)

        asked = most * _search(lambda share: worth(share * most), pool.floor, grid)
        return Response(asked, profile_value(pool, asked, others))

    asked = jnp.maximum((1 - pool.alpha * pool.beta) * (1 - others), pool.floor)
    start = Response(asked, profile_value(pool, asked, others))
    return jax.lax.fori_loop(0, IMPROVEMENTS, improve, start)


def profile_value(pool: CommonPool, asked: Float[Array, " n"], others: Float[Array, " n"]) -> Float[Array, " n"]:
    """w of asking for `asked` for ever while the others ask for `others`: a linear system on the grid."""
    flow, ahead = pool.flow(asked, others, pool.grid)
    index, place = pool.cell(ahead)
    rows = jnp.broadcast_to(jnp.arange(SIZE), index.shape)
    weights = jnp.broadcast_to(pool.weights[:, None], index.shape)
    moves = jnp.zeros((SIZE, SIZE), flow.dtype)
    moves = moves.at[rows, index].add(weights * (1 - place)).at[rows, index + 1].add(weights * place)
    return jnp.linalg.solve(jnp.eye(SIZE, dtype=flow.dtype) - pool.beta * moves, flow)


def _search(worth: Any, floor: float, grid: Float[Array, " n"]) -> Float[Array, " n"]:
    """The share in [floor, 1] that is worth most at each grid point: the best of many, then golden sections."""
    steps = np.linspace(0.0, 1.0, CANDIDATES)
    # Denser towards 0, where players of a large group are.
    tried = jnp.asarray(np.maximum(steps**2, floor), grid.dtype)
    values = jax.lax.map(lambda f: worth(jnp.full_like(grid, f)), tried)
    best = jnp.argmax(values, axis=0)
    low, high = tried[jnp.maximum(best - 1, 0)], tried[jnp.minimum(best + 1, CANDIDATES - 1)]

    def section(_, bracket):
        low, high = bracket
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        keep_low = worth(left) > worth(right)
        return jnp.where(keep_low, low, left), jnp.where(keep_low, right, high)

    low, high = jax.lax.fori_loop(0, SECTIONS, section, (low, high))
    middle = (low + high) / 2
    # The ends count: a player that is rationed asks for everything.
    choices = jnp.stack([middle, tried[best]])
    return jnp.where(worth(choices[0]) >= worth(choices[1]), choices[0], choices[1])
