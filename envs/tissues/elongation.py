"""Axis extension: a cluster grows, one division at a time, and is to become long in one direction.

The task of Deshpande, Mottes et al. (2025), "Engineering morphogenesis of cell clusters with differentiable
programming", Nature Computational Science, in two dimensions.
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
    NEWBORN_RADIUS,
    RADIUS,
    by_age,
    crowding,
    found,
    living_mean,
    own_state,
    picture,
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

    Two modes. "categorical": exactly one cell divides a step, cell i with probability d_i / sum d; the action is
    Box, shape (3,): the propensity d in (0.01, 1) and the division axis in (-1, 1)^2, of which only the direction
    counts. With `oriented=False` it is the propensity alone, shape (1,), daughters lie anywhere, and the division's
    score is `event_log_prob`; with an axis there is none, since the daughters' places have no score. "decision": a Dict
    of `divide`, Discrete(2), executed with certainty by the first macro-step, and `axis`, as above.

    The reward is the gain in E / 10. E is in squared cell diameters: a round tissue of n cells has about 0.069 n^2, a
    straight row n (n^2 - 1) / 12.

    Observation of a cell, all local: radius; time since its last division; density of its neighbours; the scent of
    all cells within `reach` and its gradient, which points along x and y into the tissue; the share of time left.
    """

    capacity: int = 32
    mode: str = "categorical"
    oriented: bool = True

    params_type: ClassVar[type[TissueParams]] = Params
    interaction: ClassVar[PairwisePotential | None] = SoftRepulsion()
    smallest_diameter: ClassVar[float] = 2 * NEWBORN_RADIUS
    no_events: ClassVar[str] = (
        "the axis of a division has no score of its own; use mode='categorical' with oriented=False, or score='actions'"
    )
    ports: ClassVar[tuple[StateFieldSpec, ...]] = (DIVISION_RATE, DIVISION_AXIS)

    def __post_init__(self):
        super().__post_init__()
        if self.mode not in MODES:
            raise unknown(f"mode of {self.name}", str(self.mode), MODES)
        if self.mode == "decision" and not self.oriented:
            raise UserError(f"{self.name}: oriented=False applies to mode='categorical'; leave it out")

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
        growth, motion = SaturatingCellGrowth(max_radius=RADIUS), BrownianDynamics(self.interaction, n_space_dim=2)
        division = (CategoricalDivision if self.categorical else Division)(n_space_dim=2, orientation_snr=0.0)
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
        axis = spaces.Box(-1.0, 1.0, (2,), dtype)
        if not self.categorical:
            return spaces.Dict({"axis": axis, "divide": spaces.Discrete(2)})
        low = [LEAST_PROPENSITY, -1.0, -1.0][: 3 if self.oriented else 1]
        return spaces.Box(jnp.array(low, dtype), jnp.ones(len(low), dtype), (len(low),), dtype)

    def agent_observation_space(self, params: Params) -> spaces.Box:
        """Seven real numbers."""
        return real_numbers(7)

    def write_action(self, tissue: BaseState, action: PyTree, params: Params) -> BaseState:
        """The propensity, or a rate that makes the decision certain; and the axis."""
        if self.categorical:
            rate, axis = action[:, 0], action[:, 1:] if self.oriented else jnp.zeros_like(tissue.division_axis)
        else:
            rate, axis = jnp.where(action["divide"] == 1, CERTAIN, 0.0), action["axis"]
        dtype = tissue.division_rate.dtype
        return tissue.update(division_rate=rate.astype(dtype), division_axis=axis.astype(dtype))

    def local_observation(self, tissue: BaseState, params: Params) -> Float[Array, "A 7"]:
        """Size, recency, density, scent with its gradient, and remaining time; see the class."""
        density, _ = crowding(tissue)
        smell, gradient = scent(tissue, params.reach)
        remaining = jnp.broadcast_to(2 * self.remaining_time(tissue, params) - 1, density.shape)
        return jnp.stack([*own_state(tissue), density / 2 - 1, smell / 10 - 1, *gradient.T, remaining], axis=-1)

    # -- the task ---------------------------------------------------------------------------------------------------

    def potential(self, tissue: BaseState, params: Params) -> Float[Array, ""]:
        """E / 10."""
        return extension(tissue) / 10

    def score(self, state: TissueState, params: Params) -> Float[Array, ""]:
        """E = sum (y - mean y)^2, in squared cell diameters: higher is better."""
        return extension(state.tissue)

    def render(self, state: TissueState, params: Params, size: int = 256) -> np.ndarray:
        """The tissue from above, uint8[size, size, 3]: discs, the lighter the longer ago they divided."""
        return picture(state.tissue, by_age(state.tissue), size)


def extension(tissue: BaseState) -> Float[Array, ""]:
    """Sum over living cells of (y - mean y)^2."""
    y = tissue.position[:, 1]
    return jnp.sum(jnp.where(tissue.alive, (y - living_mean(tissue, y)) ** 2, 0.0))
