"""Households with uninsurable labour income: precautionary saving, at given prices or in general equilibrium.

Aiyagari (1994), "Uninsured idiosyncratic risk and aggregate saving", QJE 109. The chain of labour efficiency is part of
the economy: another discretisation of the same AR(1) has another equilibrium.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, ArrayLike, Float

from ...errors import UserError, unknown
from ..environment import POSITIVE, SHARE, Domain, EnvParams, parameter
from ._cross_section import State
from ._households import NON_POSITIVE, Budget, HouseholdEconomy, Means

EQUILIBRIA = ("partial", "general")
DISCRETISATIONS = ("tauchen", "rouwenhorst")
WIDTH = 3.0
SQUARINGS = 24  # the chain after 2^24 periods


@struct.dataclass
class Params(EnvParams):
    """Calibration; the defaults are annual, and the prices those of its equilibrium."""

    alpha: float = parameter(0.36, SHARE, "capital's share of output")
    beta: float = parameter(0.96, SHARE, "discount factor per period")
    delta: float = parameter(0.08, Domain(0.0, 1.0, open_high=False), "depreciation per period")
    mu: float = parameter(3.0, POSITIVE, "relative risk aversion; log utility at 1")
    rho: float = parameter(0.6, Domain(-1.0, 1.0), "autocorrelation of log labour efficiency")
    sigma: float = parameter(0.2, POSITIVE, "unconditional standard deviation of log labour efficiency")
    amin: float = parameter(0.0, NON_POSITIVE, "borrowing limit")
    amax: float = parameter(60.0, POSITIVE, "largest assets of the histogram's grid and the solver's")
    r: float = parameter(0.038784, Domain(-1.0), "interest rate per period, where it is given (equilibrium 'partial')")
    w: float = parameter(1.194121, POSITIVE, "wage of mean labour efficiency, where it is given ('partial')")
    max_steps_in_episode: int = parameter(200, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class Aiyagari(HouseholdEconomy):
    """Save a share of cash: c + a' = (1 + r) a + w l, a' >= amin, utility c^(1-mu) / (1-mu).

    log l is a chain with autocorrelation rho and unconditional standard deviation sigma, scaled to a mean l of 1.
    "partial": one household at given prices, a Markov decision process. "general": the cross-section is the state, and
    r = alpha K^(alpha-1) - delta, w = (1-alpha) K^alpha with K the mean of assets and labour 1 by the law of large
    numbers.

    Action: Box(0, 1), shape (1,): the saved share of cash - amin. Observation: log cash and log l; with general
    equilibrium log K too.

    Attributes:
        concept: left empty, the one that goes with `equilibrium`: "planner" for one household that moves no price,
            "competitive" for many.
        equilibrium: "partial" or "general".
        discretisation: "tauchen" (evenly spaced up to 3 standard deviations) or "rouwenhorst".
        labor_states: of the chain; at least 2.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    concepts: ClassVar[tuple[str, ...]] = ("planner", "competitive")
    solver: ClassVar[str | None] = "aiyagari"

    concept: str = ""
    equilibrium: str = "partial"
    discretisation: str = "tauchen"
    labor_states: int = 7

    def __post_init__(self):
        for name, known in (("equilibrium", EQUILIBRIA), ("discretisation", DISCRETISATIONS)):
            if getattr(self, name) not in known:
                raise unknown(f"option {name} of {self.name}", str(getattr(self, name)), known)
        goes = "competitive" if self.prices_move else "planner"
        if not self.concept:
            object.__setattr__(self, "concept", goes)
        super().__post_init__()
        if self.concept != goes:
            raise UserError(
                f"{self.name}: concept={self.concept!r} does not go with equilibrium={self.equilibrium!r}; leave it out"
            )
        if self.labor_states < 2:
            raise UserError(f"{self.name}: labor_states = {self.labor_states} must be at least 2")
        given = [f"{name}={getattr(self, name)!r}" for name in ("num_households", "grid_size") if getattr(self, name)]
        given += ["households='histogram'"] if self.households == "histogram" else []
        if given and not self.prices_move:
            raise UserError(
                f"{self.name}: {given[0]} does not apply to equilibrium='partial', which has one household; "
                "set equilibrium='general'"
            )

    @property
    def prices_move(self) -> bool:
        """In general equilibrium."""
        return self.equilibrium == "general"

    @property
    def num_agents(self) -> int:
        """One household at given prices; else households, or points of the grid."""
        return super().num_agents if self.prices_move else 1

    @property
    def num_own(self) -> int:
        """States of labour efficiency."""
        return self.labor_states

    def check_params(self, params: Params) -> None:
        """Interest on the largest debt can be paid; prices that are not given are not set."""
        if self.prices_move:
            for name in ("r", "w"):
                if not np.allclose(getattr(params, name), getattr(self.default_params, name), rtol=1e-6):
                    raise UserError(
                        f"{self.name}: {name} follows from the capital of equilibrium='general'; leave it out, or set "
                        "equilibrium='partial'"
                    )
            self.check_grid(params)
        r, w = self.prices(self.least_capital(params), params) if self.prices_move else (params.r, params.w)
        self.check_debt(r * params.amin + w * self.efficiency(params)[..., 0], params)

    def chain(self, params: Params) -> tuple[Float[Array, " S"], Float[Array, "S S"]]:
        """Log labour efficiency before scaling, and its transition matrix."""
        discretise = tauchen if self.discretisation == "tauchen" else rouwenhorst
        return discretise(params.rho, params.sigma, self.labor_states)

    def efficiency(self, params: Params) -> Float[Array, " S"]:
        """Labour efficiency l, with mean 1."""
        log_l, matrix = self.chain(params)
        labor = jnp.exp(log_l)
        return labor / jnp.sum(stationary(matrix) * labor)

    def chances(self, params: Params) -> tuple[Float[Array, "1 1"], Float[Array, "1 1 S S"]]:
        """The chain of each household; no aggregate risk."""
        matrix = self.chain(params)[1]
        return jnp.ones((1, 1), matrix.dtype), matrix[None, None]

    def shares(self, params: Params) -> tuple[Float[Array, " 1"], Float[Array, "1 S"]]:
        """The chain's stationary distribution."""
        pi = stationary(self.chain(params)[1])
        return jnp.ones(1, pi.dtype), pi[None]

    def prices(self, capital: Float[Array, "..."], params: Params) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Interest rate and wage at a capital stock, labour 1."""
        r = params.alpha * capital ** (params.alpha - 1) - params.delta
        return r, (1 - params.alpha) * capital**params.alpha

    def budget(self, state: State, params: Params) -> Budget:
        """Prices, given or of the capital stock, and w l."""
        r, w = jnp.asarray(params.r), jnp.asarray(params.w)
        if self.prices_move:
            r, w = self.prices(self.priced_capital(state, params), params)
        return Budget(1 + r, w, w * self.efficiency(params)[state.own])

    def means(self, params: Params) -> Means:
        """Under full insurance, where the return is 1 / beta."""
        assets = ((1 / params.beta - 1 + params.delta) / params.alpha) ** (1 / (params.alpha - 1))
        return Means(assets, assets / params.beta + self.prices(assets, params)[1])

    def own_signal(self, params: Params) -> Float[Array, " S"]:
        """log l in standard deviations."""
        return self.chain(params)[0] / params.sigma


def tauchen(rho: ArrayLike, sigma: ArrayLike, size: int) -> tuple[Float[Array, " S"], Float[Array, "S S"]]:
    """An AR(1) on evenly spaced points up to 3 unconditional standard deviations (Tauchen 1986, Econ. Letters 20).

    Args:
        rho: autocorrelation.
        sigma: unconditional standard deviation.
        size: number of points.
    """
    x = WIDTH * jnp.asarray(sigma) * jnp.linspace(-1.0, 1.0, size, dtype=jnp.result_type(float))
    edges = (x[1:] + x[:-1]) / 2
    below = jax.scipy.special.ndtr((edges[None] - rho * x[:, None]) / (sigma * jnp.sqrt(1 - rho**2)))
    ends = jnp.zeros((size, 1), x.dtype), jnp.ones((size, 1), x.dtype)
    return x, jnp.diff(jnp.concatenate([ends[0], below, ends[1]], axis=1), axis=1)


def rouwenhorst(rho: ArrayLike, sigma: ArrayLike, size: int) -> tuple[Float[Array, " S"], Float[Array, "S S"]]:
    """An AR(1) whose chain has its autocorrelation and variance exactly (Kopecky and Suen 2010, RED 13).

    Args:
        rho: autocorrelation.
        sigma: unconditional standard deviation.
        size: number of points.
    """
    dtype = jnp.result_type(float)
    stay = jnp.asarray((1 + rho) / 2, dtype)
    matrix = jnp.ones((1, 1), dtype)
    for _ in range(size - 1):
        up, left = jnp.pad(matrix, ((0, 1), (0, 1))), jnp.pad(matrix, ((1, 0), (0, 1)))
        right, down = jnp.pad(matrix, ((0, 1), (1, 0))), jnp.pad(matrix, ((1, 0), (1, 0)))
        matrix = stay * (up + down) + (1 - stay) * (left + right)
        matrix = matrix / matrix.sum(axis=1, keepdims=True)
    x = jnp.sqrt(size - 1.0) * jnp.asarray(sigma) * jnp.linspace(-1.0, 1.0, size, dtype=dtype)
    return x, matrix


def stationary(matrix: Float[Array, "S S"]) -> Float[Array, " S"]:
    """The distribution that a chain keeps: any row of a high power, by repeated squaring."""

    def square(_: int, power: Array) -> Array:
        power = jnp.matmul(power, power, precision="highest")
        return power / power.sum(axis=1, keepdims=True)

    return jax.lax.fori_loop(0, SQUARINGS, square, matrix)[0]
