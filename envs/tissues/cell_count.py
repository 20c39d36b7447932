"""Organ size control: a few founders, and cells that decide on dividing so that the tissue ends with n* of them.

The task is the cell-count control of jax_morph's examples, after Deshpande, Mottes et al. (2025), "Engineering
morphogenesis of cell clusters with differentiable programming", Nature Computational Science.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from ...errors import UserError, unknown
from .. import spaces
from ..environment import NON_NEGATIVE, POSITIVE, EnvParams, canonical_params, parameter
from ..tissue import Tissue, TissueParams, TissueState
from ..wrappers import Pooled
from ._cells import (
    CERTAIN,
    NEWBORN_RADIUS,
    RADIUS,
    count,
    crowding,
    found,
    own_state,
    real_numbers,
)
from ._forces import SoftRepulsion
from ._steps import (
    DIVISION_RATE,
    BaseState,
    BrownianDynamics,
    Division,
    DivisionClock,
    FreeScreenedDiffusion,
    Model,
    PairwisePotential,
    SaturatingCellGrowth,
    SpendDivision,
    StateFieldSpec,
)

MODES = ("decision", "hazard", "secretion")
# Field per cell and unit of secretion at the target size, so that the observed signal crosses 0 near the target.
FIELD_PER_CELL = 0.64


@struct.dataclass
class Params(TissueParams):
    """The task and its physics; `max_steps_in_episode` is 5 in decision mode and 10 in the others."""

    target: float = parameter(24.0, POSITIVE, "number of cells wanted, n*")
    rate_min: float = parameter(0.0, NON_NEGATIVE, "lowest division rate (not of decisions), per unit of time")
    rate_max: float = parameter(0.7, POSITIVE, "highest division rate (not of decisions), per unit of time")
    diffusion: float = parameter(1.0, POSITIVE, "diffusion coefficient of the secreted chemical")
    degradation: float = parameter(1e-4, POSITIVE, "decay rate of the chemical; it reaches sqrt(diffusion / decay)")
    half: float = parameter(0.1, POSITIVE, "concentration of half effect (secretion mode), of what n* cells can make")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellCount(Tissue):
    """Cells of a flat tissue divide or not; the tissue is worth -(n - n*)^2 / 10 when the episode ends.

    Three modes. "decision": Discrete(2) a cell, divide (1) or not (0), executed with certainty by the first macro-step.
    "hazard": Box(rate_min, rate_max), shape (1,), a division rate that holds for the step; the simulator samples
    divisions with p = 1 - exp(-rate dt) in every macro-step, and their score is `event_log_prob`. "secretion":
    Box(0, 1), shape (2,), how much a cell secretes of an activator and of an inhibitor of division. They spread at
    once, by the diffusion and decay of the chemical below; with a and b their concentrations at a cell, in units of
    what n* cells make of each at full secretion, the cell's rate for the step is

        rate_min + (rate_max - rate_min) a^2 / (half^2 + a^2) half^2 / (half^2 + b^2).

    `pooled(mode="secretion")` sets the two levels of all cells from a global view.

    Observation of a cell, all local, of order one: radius; time since its last division; density of its neighbours;
    concentration of a chemical that every cell secretes and that reaches far beyond the tissue, relative to what n*
    cells make of it: the cell's only knowledge of n; the share of time that is left. The global view adds
    (n - n*) / n*.

    Known (4 founders, n* = 24; from the exact law of n): without feedback no rate does better than a squared error of
    90.8, since a birth process spreads; the middle rate gives 94.4, and a fair coin in decision mode 107.4, with 30.4
    cells on average. A policy that sees n can get below 1.3 with hazards and below 0.5 with decisions.
    """

    mode: str = "decision"

    params_type: ClassVar[type[TissueParams]] = Params
    ports: ClassVar[tuple[StateFieldSpec, ...]] = (DIVISION_RATE,)
    interaction: ClassVar[PairwisePotential | None] = SoftRepulsion()
    smallest_diameter: ClassVar[float] = 2 * NEWBORN_RADIUS
    no_events: ClassVar[str] = "no event here is sampled at a rate that an action sets; use mode='hazard'"

    def __post_init__(self):
        super().__post_init__()
        if self.mode not in MODES:
            raise unknown(f"mode of {self.name}", str(self.mode), MODES)

    @property
    def scores_events(self) -> bool:
        """At a rate the simulator samples; a decision is executed with certainty."""
        return self.mode != "decision"

    @property
    def default_params(self) -> EnvParams:
        """As long an episode as leaves an untrained policy about 100 (squared) from the target."""
        return canonical_params(Params(max_steps_in_episode=5 if self.mode == "decision" else 10))

    def check_params(self, params: Params) -> None:
        """Refuse bounds and sizes that do not go together, besides what no tissue can take."""
        super().check_params(params)
        target = float(np.max(params.target))
        low, high = float(np.max(params.rate_min)), float(np.min(params.rate_max))
        if low >= high:
            raise UserError(f"{self.name}: rate_min = {low:g} must be below rate_max = {high:g}")
        if target > self.capacity:
            raise UserError(f"{self.name}: target = {target:g} must not exceed the capacity of {self.capacity}")
        if self.mode != "secretion" and np.any(np.asarray(params.half, np.float32) != np.float32(Params().half)):
            raise UserError(f"{self.name}: half applies to mode='secretion'; leave it out")

    # -- the tissue -------------------------------------------------------------------------------------------------

    def build_physics(self) -> Model:
        """Growth back to full size, jitter and repulsion, then division."""
        spend = [SpendDivision()] if self.mode == "decision" else []
        growth, motion = SaturatingCellGrowth(max_radius=RADIUS), BrownianDynamics(self.interaction, n_space_dim=2)
        return Model([growth, motion, Division(n_space_dim=2), DivisionClock(), *spend])

    def build_sensors(self) -> tuple:
        """The secreted chemical."""
        return (FreeScreenedDiffusion(n_field_species=1, n_space_dim=2),)

    def bind(self, physics: Model, params: Params) -> Model:
        """The jitter's thermal energy."""
        return eqx.tree_at(lambda model: model.steps[1].kT, physics, params.kT)

    def bind_sensors(self, sensors: tuple, params: Params) -> tuple:
        """The chemical's diffusion and decay."""
        return eqx.tree_at(
            lambda steps: (steps[0].diffusion, steps[0].degradation), sensors, (params.diffusion, params.degradation)
        )

    def initial_tissue(self, key: Array, empty: BaseState, params: Params) -> BaseState:
        """Full-grown founders, close-packed around the origin but for their noise."""
        return found(key, empty, params).set("secretion_rate", jnp.ones_like(empty.secretion_rate))

    def agent_action_space(self, params: Params) -> spaces.Space:
        """Divide or not; or a division rate; or two secretions."""
        if self.mode == "decision":
            return spaces.Discrete(2)
        if self.mode == "secretion":
            return spaces.Box(0.0, 1.0, (2,), jnp.result_type(float))
        return spaces.Box(params.rate_min, params.rate_max, (1,), jnp.result_type(float))

    def agent_observation_space(self, params: Params) -> spaces.Box:
        """Five real numbers."""
        return real_numbers(5)

    def write_action(self, tissue: BaseState, action: Array, params: Params) -> BaseState:
        """The division rate: the action itself, what the signals make of it, or one that makes the decision certain."""
        if self.mode == "secretion":
            rate = self.regulated_rate(tissue, action, params)
        else:
            rate = action[:, 0] if self.mode == "hazard" else jnp.where(action == 1, CERTAIN, 0.0)
        return tissue.set("division_rate", rate.astype(tissue.division_rate.dtype))

    def regulated_rate(self, tissue: BaseState, secretion: Float[Array, "A 2"], params: Params) -> Float[Array, " A"]:
        """Division rates under the activator and the inhibitor that living cells secrete; see the class."""
        (spread,) = self.bind_sensors(self.build_sensors(), params)

        def at_cells(source: Float[Array, " A"]) -> Float[Array, " A"]:
            return spread(tissue.set("secretion_rate", source[:, None]), dt=params.dt, key=None).chemical[:, 0]

        full = FIELD_PER_CELL * params.target
        activator, inhibitor = jax.vmap(at_cells, in_axes=1)(secretion.astype(tissue.radius.dtype)) / full
        half = params.half**2
        share = activator**2 / (half + activator**2) * half / (half + inhibitor**2)
        return params.rate_min + (params.rate_max - params.rate_min) * share

    def local_observation(self, tissue: BaseState, params: Params) -> Float[Array, "A 5"]:
        """Radius, time since division, density, chemical and remaining time; see the class."""
        density, _ = crowding(tissue)
        signal = tissue.chemical[:, 0] / (FIELD_PER_CELL * params.target) - 1
        remaining = 2 * self.remaining_time(tissue, params) - 1
        columns = [
            *own_state(tissue),
            density / 2 - 1,
            2 * signal,
            jnp.broadcast_to(remaining, density.shape),
        ]
        return jnp.stack(columns, axis=-1)

    def world_state(self, state: TissueState, params: Params) -> Float[Array, " 8"]:
        """The pooled view of every tissue, and (n - n*) / n*."""
        pooled = super().world_state(state, params)
        return jnp.append(pooled, count(state.tissue) / params.target - 1)

    # -- the task ---------------------------------------------------------------------------------------------------

    def potential(self, tissue: BaseState, params: Params) -> Float[Array, ""]:
        """-(n - n*)^2 / 10."""
        return -((count(tissue) - params.target) ** 2) / 10

    def score(self, state: TissueState, params: Params) -> Float[Array, ""]:
        """Squared error (n - n*)^2: lower is better. After an overflow n is the capacity."""
        return (count(state.tissue) - params.target) ** 2


def pooled(capacity: int = 64, substeps: int = 5, mode: str = "hazard") -> Pooled:
    """Organ size control from above: one action for all cells, by a controller that sees their number.

    With `mode="secretion"` it sets two secretion levels, of an activator and of an inhibitor, as in the control
    examples of jax_morph.
    """
    return Pooled(CellCount(mode=mode, capacity=capacity, substeps=substeps))
