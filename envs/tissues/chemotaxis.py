"""Chemotaxis: active Brownian cells climb the gradient of a chemical to its source."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from ..environment import POSITIVE, parameter
from ..tissue import TissueState
from ._cells import crowding, living_mean
from ._motile import Motile, MotileParams
from ._sensing import in_own_frame
from ._steps import BaseState, SimulationStep, StateFieldSpec, StepType

SOURCE = StateFieldSpec("source", shape=(2,), scope="global", heritable=False)
PLUME_WIDTH = StateFieldSpec("plume_width", scope="global", heritable=False, default=1.0)
CHEMICAL = StateFieldSpec("chemical", heritable=False)
WORTH = 10.0  # of a mean concentration of 1, so that rewards are of order one


class Plume(SimulationStep):
    """The chemical at every cell: c = 1 / (1 + (|x - source| / width)^2)."""

    step_type: ClassVar[StepType] = StepType.QUASISTATIC

    def state_reads(self) -> tuple:
        """Where the source is, and how far it is smelt."""
        return (SOURCE, PLUME_WIDTH)

    def state_writes(self) -> tuple:
        """The chemical."""
        return (CHEMICAL,)

    def __call__(self, state: BaseState, *, dt, key) -> BaseState:
        """Write it, 0 for dead cells."""
        square = jnp.sum((state.position - state.source) ** 2, axis=1)
        return state.set("chemical", jnp.where(state.alive, 1 / (1 + square / state.plume_width**2), 0.0))


@struct.dataclass
class Params(MotileParams):
    """The task and its physics."""

    spread: float = parameter(1.5, POSITIVE, "standard deviation of each coordinate of the cells' first positions")
    distance: float = parameter(8.0, POSITIVE, "from the origin to the source, which lies in any direction")
    width: float = parameter(5.0, POSITIVE, "distance at which the chemical is half of what it is at the source")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chemotaxis(Motile):
    """Cells that swim to a source; they are worth 10 times the mean chemical c = 1 / (1 + (|x - source| / width)^2).

    The action is `Motile`'s, speed and turning. The reward is the gain.

    Observation of a cell, all local: log c; width times the gradient of log c, along the cell's heading and to its left
    (2), at most 1 in size; density of its neighbours; the share of time left.

    Known: a cell that heads for the source covers `max_speed` * dt * substeps a step, and c is at most 1.
    """

    params_type: ClassVar[type[MotileParams]] = Params

    def build_sensors(self) -> tuple:
        """The chemical."""
        return (Plume(),)

    def initial_tissue(self, key: Array, empty: BaseState, params: Params) -> BaseState:
        """Cells around the origin, and a source somewhere on a circle."""
        key_cells, key_source = jax.random.split(key)
        tissue = super().initial_tissue(key_cells, empty, params)
        angle = jax.random.uniform(key_source, (), empty.position.dtype, -jnp.pi, jnp.pi)
        source = params.distance * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        return tissue.update(source=source, plume_width=jnp.asarray(params.width, source.dtype))

    def local_observation(self, tissue: BaseState, params: Params) -> Float[Array, "A 5"]:
        """Chemical, its gradient in the own frame, density and remaining time; see the class."""
        towards = tissue.source - tissue.position
        gradient = 2 * params.width * towards / (params.width**2 + jnp.sum(towards**2, axis=1))[:, None]
        ahead, left = in_own_frame(tissue.active_heading, gradient).T
        density, _ = crowding(tissue)
        remaining = jnp.broadcast_to(2 * self.remaining_time(tissue, params) - 1, density.shape)
        smell = jnp.log(jnp.maximum(tissue.chemical, 1e-6))
        return jnp.stack([smell, ahead, left, density / 2 - 1, remaining], axis=-1)

    def potential(self, tissue: BaseState, params: Params) -> Float[Array, ""]:
        """10 times the mean chemical."""
        return WORTH * living_mean(tissue, tissue.chemical)

    def score(self, state: TissueState, params: Params) -> Float[Array, ""]:
        """Mean chemical over the cells, between 0 and 1: higher is better."""
        return living_mean(state.tissue, state.tissue.chemical)
