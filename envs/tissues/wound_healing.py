"""Homeostasis and repair: cells die by chance, a disc of them is ablated, and the tissue is to stay what it was."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PyTree

from ...errors import UserError
from .. import spaces
from ..environment import NON_NEGATIVE, POSITIVE, SHARE, Domain, EnvParams, parameter
from ..tissue import Tissue, TissueParams, TissueState
from ._cells import (
    CERTAIN,
    NEWBORN_RADIUS,
    RADIUS,
    count,
    crowding,
    found,
    living_mean,
    own_state,
    real_numbers,
)
from ._forces import SoftRepulsion
from ._sensing import inside, occupancy, raster_points, scent, soft_iou
from ._steps import (
    DEATH_RATE,
    DIVISION_RATE,
    PUSH,
    Ablation,
    BaseState,
    BrownianDynamics,
    Death,
    Division,
    DivisionClock,
    ExternalForce,
    Model,
    PairwisePotential,
    SaturatingCellGrowth,
    SpendDivision,
    StateFieldSpec,
)

AREA_PER_CELL = float(np.sqrt(3) / 2)  # of close-packed cells, in squared diameters


@struct.dataclass
class Params(TissueParams):
    """The task and its physics."""

    founders: int = parameter(32, Domain(1, open_low=False), "cells at reset")
    target: float = parameter(32.0, POSITIVE, "number of cells to keep, n*")
    death_rate: float = parameter(0.05, NON_NEGATIVE, "hazard of a cell's death, per unit of time")
    wound_step: int = parameter(20, Domain(0, open_low=False), "the decision after which a disc of cells is gone, t_w")
    wound_radius: float = parameter(1.8, NON_NEGATIVE, "radius of that disc, in diameters, around the tissue's middle")
    reach: float = parameter(6.0, POSITIVE, "distance over which cells smell each other, in diameters")
    max_push: float = parameter(0.5, NON_NEGATIVE, "largest force of a cell, in repulsion energies per diameter")
    discount: float = parameter(0.98, SHARE, "discount per step")
    max_steps_in_episode: int = parameter(60, Domain(1, open_low=False), "decisions until the episode is cut off")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WoundHealing(Tissue):
    """Cells divide and move so that n* of them cover a disc, while chance and, at t_w, a wound take some away.

    The disc D is that of n* close-packed cells around the tissue's middle. The action is a Dict: `divide`, Discrete(2),
    executed with certainty by the first macro-step, and `push`, Box(-1, 1), shape (2,), in units of `max_push`.

    A step is worth 1 - (|n - n*| / n* + gap) / 2 to every cell that acted, where the gap is the share of D that no cell
    covers. It is never negative up to n = 2 n*, so that dying out, which terminates, is never an escape. The task does
    not end: it is truncated, and discounts. `info` has `gap` and `iou`, the soft IoU of tissue and D; `recovery_time`
    reads the latter.

    Observation of a cell, all local: radius; time since its last division; density of its neighbours; the direction
    into the tissue (2); the scent of all cells within `reach`, and its gradient (2).

    Known: n stays at n* on average where E[births - deaths | n*] = 0, so where each cell divides in a step with the
    probability exp(death_rate * T) - 1, T = substeps * dt: a daughter faces the same hazard.
    """

    capacity: int = 64

    params_type: ClassVar[type[TissueParams]] = Params
    interaction: ClassVar[PairwisePotential | None] = SoftRepulsion()
    smallest_diameter: ClassVar[float] = 2 * NEWBORN_RADIUS
    unending: ClassVar[bool] = True
    ports: ClassVar[tuple[StateFieldSpec, ...]] = (DIVISION_RATE, PUSH)

    def check_params(self, params: Params) -> None:
        """Refuse more cells than there are slots, and a wound that never comes."""
        super().check_params(params)
        target = float(np.max(params.target))
        if target > self.capacity:
            raise UserError(f"{self.name}: target = {target:g} must not exceed the capacity of {self.capacity}")
        wound, last = int(np.max(params.wound_step)), int(np.min(params.max_steps_in_episode))
        if wound >= last and np.any(np.asarray(params.wound_radius) > 0):
            raise UserError(
                f"{self.name}: wound_step = {wound} must be below max_steps_in_episode = {last}; for no wound set "
                "wound_radius=0"
            )

    # -- the tissue -------------------------------------------------------------------------------------------------

    def build_physics(self) -> Model:
        """Growth, jitter, repulsion and the cells' own force; then division, death and the wound."""
        growth, motion = SaturatingCellGrowth(max_radius=RADIUS), BrownianDynamics(self.interaction, n_space_dim=2)
        # Deaths are no action's doing: they have no part in a score.
        events = [Division(n_space_dim=2), Death(score_by_default=False), Ablation(0, 0.0)]
        return Model([growth, motion, *events, DivisionClock(), SpendDivision(), ExternalForce()])

    def bind(self, physics: Model, params: Params) -> Model:
        """The jitter's thermal energy, and the wound."""
        wound = (params.wound_step * self.substeps, params.wound_radius)
        return eqx.tree_at(
            lambda model: (model.steps[1].kT, model.steps[4].at, model.steps[4].radius), physics, (params.kT, *wound)
        )

    def initial_tissue(self, key: Array, empty: BaseState, params: Params) -> BaseState:
        """Full-grown founders, close-packed around the origin but for their noise."""
        tissue = found(key, empty, params)
        return tissue.set(DEATH_RATE.name, jnp.where(tissue.alive, params.death_rate, 0.0))

    def agent_action_space(self, params: Params) -> spaces.Dict:
        """A decision and a force."""
        push = spaces.Box(-1.0, 1.0, (2,), jnp.result_type(float))
        return spaces.Dict({"divide": spaces.Discrete(2), "push": push})

    def agent_observation_space(self, params: Params) -> spaces.Box:
        """Eight real numbers."""
        return real_numbers(8)

    def write_action(self, tissue: BaseState, action: PyTree, params: Params) -> BaseState:
        """A rate that makes the decision certain, and the force."""
        dtype = tissue.division_rate.dtype
        return tissue.update(
            division_rate=jnp.where(action["divide"] == 1, CERTAIN, 0.0).astype(dtype),
            push=(params.max_push * action["push"]).astype(dtype),
        )

    def local_observation(self, tissue: BaseState, params: Params) -> Float[Array, "A 8"]:
        """Size, recency, density, the way inward, scent and its gradient; see the class."""
        density, inward = crowding(tissue)
        smell, gradient = scent(tissue, params.reach)
        smell = 2 * smell / params.target - 1
        return jnp.stack([*own_state(tissue), density / 2 - 1, *inward.T / 2, smell, *gradient.T], axis=-1)

    # -- the task ---------------------------------------------------------------------------------------------------

    def discount_factor(self, params: Params) -> Float[Array, ""]:
        """The task's own, since it does not end."""
        return jnp.asarray(params.discount)

    def covered(self, tissue: BaseState, params: Params) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Share of the disc that no cell covers, and soft IoU of tissue and disc."""
        middle = living_mean(tissue, tissue.position)
        taken = occupancy(tissue.set("position", tissue.position - middle))
        radius = jnp.sqrt(params.target * AREA_PER_CELL / jnp.pi)
        disc = inside(jnp.linalg.norm(raster_points(), axis=1) - radius)
        gap = 1 - jnp.sum(jnp.minimum(taken, disc)) / jnp.maximum(jnp.sum(disc), 1e-6)
        return gap, soft_iou(taken, disc)

    def task_reward(self, state: TissueState, next_state: TissueState, params: Params) -> Float[Array, ""]:
        """1 - (|n - n*| / n* + gap) / 2, of the tissue that a step leads to."""
        astray = jnp.abs(count(next_state.tissue) / params.target - 1)
        return 1 - (astray + self.covered(next_state.tissue, params)[0]) / 2

    def report(self, state: TissueState, params: EnvParams) -> dict[str, Array]:
        """Gap and overlap."""
        gap, iou = self.covered(state.tissue, params)  # pyright: ignore[reportArgumentType]
        return {"gap": gap, "iou": iou}

    def score(self, state: TissueState, params: Params) -> Float[Array, ""]:
        """Soft IoU of tissue and disc, between 0 and 1: higher is better; 0 where growth went out of hand (overflow).

        At the end it is what was regained.
        """
        overlap = self.covered(state.tissue, params)[1]
        return jnp.where(state.events.overflow, jnp.zeros_like(overlap), overlap)


def recovery_time(iou: Float[np.ndarray, " T"], wound_step: int, share: float = 0.95) -> float:
    """Steps from the wound until the overlap is back at a share of what it was; infinity where it never is.

    Args:
        iou: after each step, `info["iou"]`.
        wound_step: the step in which the wound was made.
        share: of the overlap before the wound.

    Raises:
        UserError: there is no step before the wound, or none after it.
    """
    overlap = np.asarray(iou)
    if not 0 < wound_step < len(overlap):
        raise UserError(f"recovery_time: wound_step = {wound_step} must lie within the {len(overlap)} steps of iou")
    back = np.flatnonzero(overlap[wound_step:] >= share * overlap[wound_step - 1])
    return float(back[0]) if back.size else float("inf")
