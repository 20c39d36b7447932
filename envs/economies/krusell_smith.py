"""Households with unemployment risk in an economy with booms and slumps: the distribution of wealth moves prices.

Krusell and Smith (1998), "Income and wealth heterogeneity in the macroeconomy", JPE 106, in the version that solvers
are compared on: Den Haan, Judd and Juillard (2010), "Computational suite of models with heterogeneous agents", JEDC 34.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, ArrayLike, Float

from ...errors import UserError
from ..environment import POSITIVE, SHARE, Domain, EnvParams, parameter
from ._cross_section import State
from ._households import NON_POSITIVE, Budget, HouseholdEconomy, Means

# Chances of staying unemployed into a new aggregate state, relative to those of staying in it (Krusell, Smith 1998).
INTO_BAD, INTO_GOOD = 1.25, 0.75


@struct.dataclass
class Params(EnvParams):
    """Calibration; the defaults are quarterly."""

    alpha: float = parameter(0.36, SHARE, "capital's share of output")
    beta: float = parameter(0.99, SHARE, "discount factor per period")
    delta: float = parameter(0.025, Domain(0.0, 1.0, open_high=False), "depreciation per period")
    mu: float = parameter(1.0, POSITIVE, "relative risk aversion; log utility at 1")
    labor: float = parameter(1 / 0.9, POSITIVE, "hours of an employed household")
    benefit: float = parameter(0.15, Domain(0.0, 1.0, open_low=False), "of the unemployed, as a share of the wage")
    spread: float = parameter(0.01, Domain(0.0, 1.0, open_low=False), "productivity is 1 - spread or 1 + spread")
    unemployment_bad: float = parameter(0.1, SHARE, "share of households, in bad times")
    unemployment_good: float = parameter(0.04, SHARE, "share of households, in good times")
    duration: float = parameter(8.0, Domain(1.0), "expected periods of good and of bad times")
    spell_bad: float = parameter(2.5, Domain(1.0), "expected periods of an unemployment spell, in bad times")
    spell_good: float = parameter(1.5, Domain(1.0), "expected periods of an unemployment spell, in good times")
    amin: float = parameter(0.0, NON_POSITIVE, "borrowing limit")
    amax: float = parameter(300.0, POSITIVE, "largest assets of the histogram's grid and the solver's")
    max_steps_in_episode: int = parameter(200, Domain(1, open_low=False), "periods before truncation")


@dataclasses.dataclass(frozen=True)
class KrusellSmith(HouseholdEconomy):
    """Save a share of cash: c + k' = (1 + r - delta) k + income, k' >= amin, at prices of K and the aggregate state z.

    Output is z K^alpha (labour (1 - u(z)))^(1-alpha). The employed earn w labour less the tax that pays the benefits,
    the unemployed `benefit` w. Own states: 0 unemployed, 1 employed; aggregate states: 0 bad, 1 good. Unemployment is
    u(z) by the law of large numbers.

    Households know the mean of capital and no more of its distribution (restricted perceptions): the competitive
    equilibrium is the one of Krusell and Smith with one moment.

    Action: Box(0, 1), shape (1,): the saved share of cash - amin. Observation: log cash, employment (-1 or 1), log K
    and z (-1 or 1).
    """

    params_type: ClassVar[type[EnvParams]] = Params
    solver: ClassVar[str | None] = "krusell_smith"
    num_aggregate: ClassVar[int] = 2

    @property
    def num_own(self) -> int:
        """Unemployed and employed."""
        return 2

    def check_params(self, params: Params) -> None:
        """Chances are chances; the lowest income pays the interest on the largest debt."""
        own = np.asarray(self.chances(params)[1])
        if own.min() < 0 or own.max() > 1:
            raise UserError(
                f"{self.name}: these spells and unemployment rates need chances of {own.min():.3g} to {own.max():.3g}; "
                "narrow the gap between unemployment_bad and unemployment_good, or change the spells"
            )
        self.check_grid(params)
        if float(np.min(params.amin)) == 0:
            return
        productivity, hours = self.productivity(params), self.hours(params)
        for z in (0, 1):
            gross_return, wage = self.prices(self.least_capital(params), productivity[z], hours[z], params)
            least = (gross_return - 1) * params.amin + self.incomes(wage, z, params).min(0)
            self.check_debt(least, params, ", or raise benefit")

    def chances(self, params: Params) -> tuple[Float[Array, "2 2"], Float[Array, "2 2 2 2"]]:
        """Of z', and of employment given z and z': spells last as given, and unemployment is u(z) in every period."""
        stay = 1 - 1 / params.duration
        aggregate = jnp.stack([jnp.stack([stay, 1 - stay]), jnp.stack([1 - stay, stay])])
        bad, good = 1 - 1 / params.spell_bad, 1 - 1 / params.spell_good
        # [z, z']: the chance of staying unemployed, then the one of losing a job that keeps unemployment at u(z').
        remain = jnp.stack([jnp.stack([bad, INTO_GOOD * good]), jnp.stack([INTO_BAD * bad, good])])
        u = self.unemployment(params)
        lose = (u[None] - u[:, None] * remain) / (1 - u[:, None])
        own = jnp.stack([jnp.stack([remain, 1 - remain], -1), jnp.stack([lose, 1 - lose], -1)], -2)
        return aggregate, own

    def shares(self, params: Params) -> tuple[Float[Array, " 2"], Float[Array, "2 2"]]:
        """Good and bad times are as frequent; u(z) households are unemployed."""
        u = self.unemployment(params)
        return jnp.full(2, 0.5, u.dtype), jnp.stack([u, 1 - u], axis=-1)

    def unemployment(self, params: Params) -> Float[Array, " 2"]:
        """u(z)."""
        return jnp.stack([params.unemployment_bad, params.unemployment_good])

    def hours(self, params: Params) -> Float[Array, " 2"]:
        """Aggregate labour in each aggregate state."""
        return params.labor * (1 - self.unemployment(params))

    def prices(
        self, capital: ArrayLike, productivity: Array, hours: Array, params: Params
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Gross return on capital, and the wage."""
        ratio = jnp.asarray(capital) / hours
        gross_return = 1 - params.delta + params.alpha * productivity * ratio ** (params.alpha - 1)
        return gross_return, (1 - params.alpha) * productivity * ratio**params.alpha

    def incomes(self, wage: Float[Array, "..."], z: ArrayLike, params: Params) -> Float[Array, "2 ..."]:
        """Of the unemployed and the employed; the tax on wages pays the benefits."""
        u = self.unemployment(params)[z]
        tax = params.benefit * u / self.hours(params)[z]
        return jnp.stack([params.benefit * wage, (1 - tax) * params.labor * wage])

    def productivity(self, params: Params) -> Float[Array, " 2"]:
        """In bad and in good times."""
        return jnp.stack([1 - params.spread, 1 + params.spread])

    def budget(self, state: State, params: Params) -> Budget:
        """Prices at K and z."""
        z = state.z
        capital = self.priced_capital(state, params)
        gross_return, wage = self.prices(capital, self.productivity(params)[z], self.hours(params)[z], params)
        return Budget(gross_return, wage, self.incomes(wage, z, params)[state.own])

    def means(self, params: Params) -> Means:
        """Under full insurance and without booms, where the return is 1 / beta."""
        hours = self.hours(params).mean()
        ratio = ((1 / params.beta - 1 + params.delta) / params.alpha) ** (1 / (params.alpha - 1))
        assets = ratio * hours
        wage = self.prices(assets, jnp.ones_like(hours), hours, params)[1]
        return Means(assets, assets / params.beta + wage * hours)

    def own_signal(self, params: Params) -> Float[Array, " 2"]:
        """-1 unemployed, 1 employed."""
        return jnp.array([-1.0, 1.0], jnp.result_type(float))
