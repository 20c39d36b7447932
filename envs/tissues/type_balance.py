"""Two cell types kept equal: cells that smell how many there are of each kind decide on dividing.

The task of Deshpande, Mottes et al. (2025), "Engineering morphogenesis of cell clusters with differentiable
programming", Nature Computational Science.
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

from .. import spaces
from ..environment import POSITIVE, Domain, parameter
from ..tissue import Tissue, TissueParams, TissueState
from ._cells import NEWBORN_RADIUS, RADIUS, count, crowding, found, own_state, real_numbers
from ._forces import SoftRepulsion
from ._steps import (
    DIVISION_RATE,
    BaseState,
    BrownianDynamics,
    CategoricalDivision,
    DivisionClock,
    FreeScreenedDiffusion,
    Model,
    PairwisePotential,
    SaturatingCellGrowth,
    SpendDivision,
    StateFieldSpec,
)

SECRETION_RATE = StateFieldSpec("secretion_rate", shape=(2,))
LEAST_PROPENSITY = 0.01
# Field per cell and unit of secretion, so that what is observed of a tissue of some twenty cells is of order one.
FIELD_PER_CELL = 0.64


@struct.dataclass
class Params(TissueParams):
    """The task and its physics."""

    founders: int = parameter(8, Domain(1, open_low=False), "cells at reset, each of either type by a fair coin")
    diffusion: float = parameter(1.0, POSITIVE, "diffusion coefficient of the secreted chemicals")
    degradation: float = parameter(1e-4, POSITIVE, "decay rate of the chemicals; they reach sqrt(diffusion / decay)")
    max_steps_in_episode: int = parameter(24, Domain(1, open_low=False), "divisions until the tissue is scored")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypeBalance(Tissue):
    """One cell divides a step, and daughters are of their mother's type; the tissue is worth -|n_0 - n_1|.

    Cell i divides with probability d_i / sum d. The action is Box, shape (2,): the propensity d in (0.01, 1) and the
    secretion of the own type's chemical, in (0, 1). With `secreting=False` every cell secretes 1, the action is the
    propensity alone, shape (1,), and the division's score is `event_log_prob`.

    Observation of a cell: its type (-1 or 1); radius; time since its last division; density of its neighbours; the
    sum of the two chemicals, and its own type's less the other's over the sum, both at its place; the share of time
    left. A chemical reaches far beyond the tissue: with equal secretion the difference is about (n_own - n_other) / n.

    Known: equal propensities are Polya's urn, whose imbalance has an exact law: from 8 founders to 32 cells it is 11.8
    on average. It can be brought to 0, the number of cells being even.
    """

    capacity: int = 32
    secreting: bool = True

    params_type: ClassVar[type[TissueParams]] = Params
    interaction: ClassVar[PairwisePotential | None] = SoftRepulsion()
    smallest_diameter: ClassVar[float] = 2 * NEWBORN_RADIUS
    num_types: ClassVar[int] = 2
    categorical: ClassVar[bool] = True
    no_events: ClassVar[str] = "secretion moves what cells see without any event; use secreting=False"
    ports: ClassVar[tuple[StateFieldSpec, ...]] = (DIVISION_RATE, SECRETION_RATE)

    @property
    def scores_events(self) -> bool:
        """Where the action is the propensity alone."""
        return not self.secreting

    # -- the tissue -------------------------------------------------------------------------------------------------

    def build_physics(self) -> Model:
        """Growth back to full size, jitter and repulsion, then division."""
        growth, motion = SaturatingCellGrowth(max_radius=RADIUS), BrownianDynamics(self.interaction, n_space_dim=2)
        return Model([growth, motion, CategoricalDivision(n_space_dim=2), DivisionClock(), SpendDivision()])

    def build_sensors(self) -> tuple:
        """The secreted chemicals, one a type."""
        return (FreeScreenedDiffusion(n_field_species=2, n_space_dim=2),)

    def bind(self, physics: Model, params: Params) -> Model:
        """The jitter's thermal energy."""
        return eqx.tree_at(lambda model: model.steps[1].kT, physics, params.kT)

    def bind_sensors(self, sensors: tuple, params: Params) -> tuple:
        """The chemicals' diffusion and decay."""
        return eqx.tree_at(
            lambda steps: (steps[0].diffusion, steps[0].degradation), sensors, (params.diffusion, params.degradation)
        )

    def initial_tissue(self, key: Array, empty: BaseState, params: Params) -> BaseState:
        """Full-grown founders of either type, secreting 1."""
        key_place, key_type = jax.random.split(key)
        tissue = found(key_place, empty, params)
        second = jax.random.bernoulli(key_type, 0.5, (self.capacity,))
        kind = jax.nn.one_hot(second.astype(jnp.int32), 2, dtype=tissue.celltype.dtype)
        kind = jnp.where(tissue.alive[:, None], kind, 0.0)
        return tissue.update(celltype=kind, secretion_rate=kind)

    def agent_action_space(self, params: Params) -> spaces.Box:
        """A propensity, and a secretion."""
        dtype, size = jnp.result_type(float), 2 if self.secreting else 1
        return spaces.Box(jnp.array([LEAST_PROPENSITY, 0.0][:size], dtype), jnp.ones(size, dtype), (size,), dtype)

    def agent_observation_space(self, params: Params) -> spaces.Box:
        """Seven real numbers."""
        return real_numbers(7)

    def write_action(self, tissue: BaseState, action: Array, params: Params) -> BaseState:
        """The propensity, and the secretion of the own type's chemical."""
        secretion = tissue.celltype * action[:, 1:] if self.secreting else tissue.celltype
        dtype = tissue.division_rate.dtype
        return tissue.update(division_rate=action[:, 0].astype(dtype), secretion_rate=secretion.astype(dtype))

    def local_observation(self, tissue: BaseState, params: Params) -> Float[Array, "A 7"]:
        """Type, size, recency, density, chemicals and remaining time; see the class."""
        density, _ = crowding(tissue)
        first, second = tissue.chemical.T
        total, kind = first + second, tissue.celltype[:, 0] - tissue.celltype[:, 1]
        remaining = jnp.broadcast_to(2 * self.remaining_time(tissue, params) - 1, density.shape)
        columns = [
            kind,
            *own_state(tissue),
            density / 2 - 1,
            total / (FIELD_PER_CELL * 20) - 1,
            kind * (first - second) / jnp.maximum(total, 1e-6),
            remaining,
        ]
        return jnp.stack(columns, axis=-1)

    # -- the task ---------------------------------------------------------------------------------------------------

    def potential(self, tissue: BaseState, params: Params) -> Float[Array, ""]:
        """-|n_0 - n_1|."""
        return -imbalance(tissue)

    def score(self, state: TissueState, params: Params) -> Float[Array, ""]:
        """|n_0 - n_1|: lower is better."""
        return imbalance(state.tissue)

    def colours(self, state: TissueState, params: Params) -> Float[np.ndarray, "A 3"]:
        """Red and blue by type."""
        return np.asarray(state.tissue.celltype) @ np.array([[200.0, 80.0, 70.0], [70.0, 110.0, 200.0]])


def imbalance(tissue: BaseState) -> Float[Array, ""]:
    """|n_0 - n_1| over living cells."""
    first = jnp.sum(jnp.where(tissue.alive, tissue.celltype[:, 0], 0.0))
    return jnp.abs(2 * first - count(tissue))
