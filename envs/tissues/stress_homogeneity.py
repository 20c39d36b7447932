"""Even growth by stress: a morphogen drives the middle to divide, and cells answer to the pressure that they feel.

After Deshpande, Mottes et al. (2025), "Engineering morphogenesis of cell clusters with differentiable programming",
Nature Computational Science, and Shraiman (2005), "Mechanical feedback as a possible regulator of tissue growth", PNAS.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from .. import spaces
from ..environment import NON_NEGATIVE, POSITIVE, Domain, parameter
from ..tissue import Tissue, TissueParams, TissueState
from ._cells import NEWBORN_RADIUS, RADIUS, crowding, found, living_mean, own_state, real_numbers
from ._forces import SoftRepulsion
from ._steps import (
    DIVISION_RATE,
    BaseState,
    BrownianDynamics,
    Division,
    DivisionClock,
    Model,
    PairwisePotential,
    SaturatingCellGrowth,
    SimulationStep,
    StateFieldSpec,
    StepType,
    VirialStress,
)

PROPENSITY = StateFieldSpec("propensity")
DRIVE = StateFieldSpec("drive", heritable=False)
DRIVE_WIDTH = StateFieldSpec("drive_width", scope="global", heritable=False, default=1.0)
STRONGEST = 2.0  # a cell can multiply its drive by exp(2) either way


class Drive(SimulationStep):
    """A morphogen from the tissue's middle: m = exp(-|x - mean x| / width)."""

    step_type: ClassVar[StepType] = StepType.QUASISTATIC

    def state_reads(self) -> tuple:
        """How far it reaches; and the propensity, which nothing else asks for."""
        return (DRIVE_WIDTH, PROPENSITY)

    def state_writes(self) -> tuple:
        """The drive."""
        return (DRIVE,)

    def __call__(self, state: BaseState, *, dt, key) -> BaseState:
        """Write it, 0 for dead cells."""
        return driven(state)


def driven(state: BaseState) -> BaseState:
    """`state` with its drive."""
    away = state.position - living_mean(state, state.position)
    distance = jnp.sqrt(jnp.sum(away**2, axis=1) + 1e-12)
    return state.set("drive", jnp.where(state.alive, jnp.exp(-distance / state.drive_width), 0.0))


@struct.dataclass
class Params(TissueParams):
    """The task and its physics."""

    founders: int = parameter(19, Domain(1, open_low=False), "cells at reset")
    rate: float = parameter(0.2, POSITIVE, "division rate of a cell of propensity 1, per unit of time")
    drive_width: float = parameter(1.5, POSITIVE, "distance over which the morphogen falls by a factor e, in diameters")
    founder_noise: float = parameter(0.1, NON_NEGATIVE, "standard deviation of the founders' positions")
    max_steps_in_episode: int = parameter(12, Domain(1, open_low=False), "decisions until the tissue is scored")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StressHomogeneity(Tissue):
    """Cells temper the drive to divide; the tissue is worth -CV, the coefficient of variation of their propensities.

    A morphogen drives cell i by m_i = exp(-|x_i - mean x| / drive_width), which it does not see. Its action a,
    Box(-1, 1), shape (1,), makes the propensity d_i = m_i exp(2 a_i), and it divides at the rate `rate` * d_i. CV
    is the standard deviation of d over living cells over its mean. The reward is the gain in -CV.

    Observation of a cell, all local: radius; time since its last division; density of its neighbours; its pressure, by
    the virial (positive under compression); the share of time left. The middle grows faster and is pressed harder.

    Reward and next state are differentiable in the action: directly, and through divisions by the simulator's
    straight-through derivative. The same divisions therefore have no score here.

    Known: a cell that answers a = -log(m) / 2 evens the propensities, CV = 0; in the original (pathwise, by a gene
    network) CV went from 0.882 to 0.705.
    """

    capacity: int = 48

    params_type: ClassVar[type[TissueParams]] = Params
    interaction: ClassVar[PairwisePotential | None] = SoftRepulsion()
    smallest_diameter: ClassVar[float] = 2 * NEWBORN_RADIUS
    no_events: ClassVar[str] = "divisions are differentiated pathwise here, and have no score; use score='actions'"
    ports: ClassVar[tuple[StateFieldSpec, ...]] = (DIVISION_RATE, PROPENSITY)
    _supports_transition_gradients: ClassVar[bool] = True

    # -- the tissue -------------------------------------------------------------------------------------------------

    def build_physics(self) -> Model:
        """Growth back to full size, jitter and repulsion, then division."""
        growth, motion = SaturatingCellGrowth(max_radius=RADIUS), BrownianDynamics(self.interaction, n_space_dim=2)
        return Model([growth, motion, Division(n_space_dim=2), DivisionClock()])

    def build_sensors(self) -> tuple:
        """The drive, and the pressure."""
        return (Drive(), VirialStress(self.interaction))  # pyright: ignore[reportCallIssue]

    def bind(self, physics: Model, params: Params) -> Model:
        """The jitter's thermal energy."""
        return eqx.tree_at(lambda model: model.steps[1].kT, physics, params.kT)

    def initial_tissue(self, key: Array, empty: BaseState, params: Params) -> BaseState:
        """Full-grown founders, close-packed around the origin but for their noise, of the morphogen's propensity."""
        tissue = found(key, empty, params)
        tissue = tissue.set("drive_width", jnp.asarray(params.drive_width, tissue.radius.dtype))
        return tissue.set("propensity", driven(tissue).drive)

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The answer to the drive."""
        return spaces.Box(-1.0, 1.0, (1,), jnp.result_type(float))

    def agent_observation_space(self, params: Params) -> spaces.Box:
        """Five real numbers."""
        return real_numbers(5)

    def write_action(self, tissue: BaseState, action: Array, params: Params) -> BaseState:
        """The propensity, and the rate that goes with it."""
        propensity = tissue.drive * jnp.exp(STRONGEST * action[:, 0]).astype(tissue.drive.dtype)
        return tissue.update(propensity=propensity, division_rate=params.rate * propensity)

    def local_observation(self, tissue: BaseState, params: Params) -> Float[Array, "A 5"]:
        """Size, recency, density, pressure and remaining time; see the class."""
        density, _ = crowding(tissue)
        remaining = jnp.broadcast_to(2 * self.remaining_time(tissue, params) - 1, density.shape)
        return jnp.stack([*own_state(tissue), density / 2 - 1, 5 * tissue.stress, remaining], axis=-1)

    # -- the task ---------------------------------------------------------------------------------------------------

    def potential(self, tissue: BaseState, params: Params) -> Float[Array, ""]:
        """-CV."""
        return -variation(tissue)

    def score(self, state: TissueState, params: Params) -> Float[Array, ""]:
        """CV of the propensities: lower is better."""
        return variation(state.tissue)

    def colours(self, state: TissueState, params: Params) -> Float[np.ndarray, "A 3"]:
        """Redder with the cells' propensity."""
        propensity = np.asarray(state.tissue.propensity)[:, None]
        share = propensity / (1 + propensity)
        return np.array([70.0, 110.0, 200.0]) + share * np.array([170.0, -20.0, -140.0])


def variation(tissue: BaseState) -> Float[Array, ""]:
    """Standard deviation over mean of the propensities of living cells."""
    mean = living_mean(tissue, tissue.propensity)
    spread = jnp.sqrt(living_mean(tissue, (tissue.propensity - mean) ** 2) + 1e-12)
    return spread / jnp.maximum(mean, 1e-6)
