"""Axis extension: a cluster grows, one division at a time, and is to become long in one direction.

The task of Deshpande, Mottes et al. (2025), "Engineering morphogenesis of cell clusters with differentiable
programming", Nature Computational Science: in two dimensions, or three as there.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PyTree

from ...errors import UserError, unknown
from .. import spaces
from ..environment import NON_NEGATIVE, POSITIVE, Domain, EnvParams, canonical_params, parameter
from ..tissue import Tissue, TissueParams, TissueState
from ._cells import (
    CERTAIN,
    RADIUS,
    crowding,
    found,
    living_mean,
    newborn_radius,
    own_state,
    real_numbers,
)
from ._forces import SoftRepulsion
from ._sensing import scent
from ._steps import (
    DIVISION_AXIS,
    DIVISION_RATE,
    BaseState,
    BrownianDynamics,
    CategoricalDivision,
    Division,
    DivisionClock,
    Model,
    PairwisePotential,
    SaturatingCellGrowth,
    SpendDivision,
    StateFieldSpec,
)

MODES = ("categorical", "decision")
LEAST_PROPENSITY = 0.01
# Density of neighbours and scent inside a tissue of usual size, by its dimensions: what is seen is of order one.
DENSITY, SCENT = {2: 2.0, 3: 5.0}, {2: 10.0, 3: 40.0}


@struct.dataclass
class Params(TissueParams):
    """The task and its physics."""

    founders: int = parameter(7, Domain(1, open_low=False), "cells at reset")
    orientation: float = parameter(3.0, NON_NEGATIVE, "how much a chosen axis outweighs chance in a daughter's place")
    reach: float = parameter(3.0, POSITIVE, "distance over which cells smell each other, in diameters")
    max_steps_in_episode: int = parameter(24, Domain(1, open_low=False), "decisions until the tissue is scored")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elongation(Tissue):
    """Cells choose who divides and along which axis; the tissue is worth E = sum over cells of (y - mean y)^2.

    Two modes. "categorical": exactly one cell divides a step, cell i with probability d_i / sum d; the action is Box,
    shape (1 + D,): the propensity d in (0.01, 1) and the division axis in (-1, 1)^D, of which only the direction
    counts; D is `dimensions`, 2 or 3. With `oriented=False` it is the propensity alone, shape (1,), daughters lie
    anywhere, and the division's score is `event_log_prob`; with an axis there is none, since the daughters' places have
    no score. "decision": a Dict of `divide`, Discrete(2), executed with certainty by the first macro-step, and `axis`,
    as above.

    The reward is the gain in E / 10. E is in squared cell diameters: a round tissue of n cells has about 0.069 n^2, a
    straight row n (n^2 - 1) / 12; a ball of them about 0.05 n^(5/3).

    `calibration="deshpande"` is the paper's setting: from 15 to 150 cells in space, one division a step, of which the
    propensity alone is chosen. Cells here are soft balls, and see what is listed below; there they adhere, are relaxed
    fully after each division, and sense one chemical that cells of a second kind, in the lower half of the tissue,
    make without dividing themselves.

    Observation of a cell, all local: radius; time since its last division; density of its neighbours; the scent of
    all cells within `reach` and its gradient, which points along x, y (and z) into the tissue; the share of time left.

    Known: random actions come to 68 by default and 331 in the paper's setting. Where the cell with the steepest scent
    along y divides, the most protruding, it is 229 with daughters anywhere, 356 with the axis along y, and 5313.
    """

    capacity: int = 32
    mode: str = "categorical"
    oriented: bool = True
    dimensions: int = 2

    params_type: ClassVar[type[TissueParams]] = Params
    interaction: ClassVar[PairwisePotential | None] = SoftRepulsion()
    no_events: ClassVar[str] = (
        "the axis of a division has no score of its own; use mode='categorical' with oriented=False, or score='actions'"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.mode not in MODES:
            raise unknown(f"mode of {self.name}", str(self.mode), MODES)
        if self.dimensions not in DENSITY:
            raise UserError(f"{self.name}: dimensions must be 2 or 3, got {self.dimensions!r}")
        if self.mode == "decision" and not self.oriented:
            raise UserError(f"{self.name}: oriented=False applies to mode='categorical'; leave it out")

    @property
    def n_space_dim(self) -> int:
        """That of positions and axes."""
        return self.dimensions

    @property
    def smallest_diameter(self) -> float:
        """A newborn's."""
        return 2 * newborn_radius(self.dimensions)

    @property
    def ports(self) -> tuple[StateFieldSpec, ...]:
        """The rate, and an axis of as many parts as there are dimensions."""
        return (DIVISION_RATE, StateFieldSpec(DIVISION_AXIS.name, shape=(self.dimensions,)))

    @property
    def categorical(self) -> bool:
        """One cell is drawn a step."""
        return self.mode == "categorical"

    @property
    def scores_events(self) -> bool:
        """Where the action is the propensity alone."""
        return self.categorical and not self.oriented

    @property
    def default_params(self) -> EnvParams:
        """From 7 to 31 cells, one a step; in decision mode four rounds of division."""
        return canonical_params(Params() if self.categorical else Params(max_steps_in_episode=4, founders=4))

    def check_params(self, params: Params) -> None:
        """Refuse an orientation that nothing would read, besides what no tissue can take."""
        super().check_params(params)
        if not self.oriented and np.any(np.asarray(params.orientation) != Params().orientation):
            raise UserError(f"{self.name}: orientation does not apply with oriented=False; leave it out")

    # -- the tissue -------------------------------------------------------------------------------------------------

    def build_physics(self) -> Model:
        """Growth back to full size, jitter and repulsion, then division."""
        growth = SaturatingCellGrowth(max_radius=RADIUS)
        motion = BrownianDynamics(self.interaction, n_space_dim=self.dimensions)
        kind = CategoricalDivision if self.categorical else Division
        division = kind(n_space_dim=self.dimensions, orientation_snr=0.0)
        return Model([growth, motion, division, DivisionClock(), SpendDivision()])

    def bind(self, physics: Model, params: Params) -> Model:
        """The jitter's thermal energy, and how strictly an axis is followed."""
        return eqx.tree_at(
            lambda model: (model.steps[1].kT, model.steps[2].orientation_snr), physics, (params.kT, params.orientation)
        )

    def initial_tissue(self, key: Array, empty: BaseState, params: Params) -> BaseState:
        """Full-grown founders, close-packed around the origin but for their noise."""
        return found(key, empty, params)

    def agent_action_space(self, params: Params) -> spaces.Space:
        """A propensity and an axis, or a decision and an axis."""
        dtype = jnp.result_type(float)
        axis = spaces.Box(-1.0, 1.0, (self.dimensions,), dtype)
        if not self.categorical:
            return spaces.Dict({"axis": axis, "divide": spaces.Discrete(2)})
        low = [LEAST_PROPENSITY, *([-1.0] * self.dimensions if self.oriented else [])]
        return spaces.Box(jnp.array(low, dtype), jnp.ones(len(low), dtype), (len(low),), dtype)

    def agent_observation_space(self, params: Params) -> spaces.Box:
        """Five real numbers and the scent's gradient."""
        return real_numbers(5 + self.dimensions)

    def write_action(self, tissue: BaseState, action: PyTree, params: Params) -> BaseState:
        """The propensity, or a rate that makes the decision certain; and the axis."""
        if self.categorical:
            rate, axis = action[:, 0], action[:, 1:] if self.oriented else jnp.zeros_like(tissue.division_axis)
        else:
            rate, axis = jnp.where(action["divide"] == 1, CERTAIN, 0.0), action["axis"]
        dtype = tissue.division_rate.dtype
        return tissue.update(division_rate=rate.astype(dtype), division_axis=axis.astype(dtype))

    def local_observation(self, tissue: BaseState, params: Params) -> Float[Array, "A O"]:
        """Size, recency, density, scent with its gradient, and remaining time; see the class."""
        density, _ = crowding(tissue)
        smell, gradient = scent(tissue, params.reach)
        remaining = jnp.broadcast_to(2 * self.remaining_time(tissue, params) - 1, density.shape)
        density, smell = density / DENSITY[self.dimensions] - 1, smell / SCENT[self.dimensions] - 1
        return jnp.stack([*own_state(tissue), density, smell, *gradient.T, remaining], axis=-1)

    # -- the task ---------------------------------------------------------------------------------------------------

    def potential(self, tissue: BaseState, params: Params) -> Float[Array, ""]:
        """E / 10."""
        return extension(tissue) / 10

    def score(self, state: TissueState, params: Params) -> Float[Array, ""]:
        """E = sum (y - mean y)^2, in squared cell diameters: higher is better."""
        return extension(state.tissue)


def extension(tissue: BaseState) -> Float[Array, ""]:
    """Sum over living cells of (y - mean y)^2."""
    y = tissue.position[:, 1]
    return jnp.sum(jnp.where(tissue.alive, (y - living_mean(tissue, y)) ** 2, 0.0))
