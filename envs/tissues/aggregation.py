"""Aggregation: active Brownian cells find each other by smell."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from ..environment import POSITIVE, parameter
from ..tissue import TissueState
from ._cells import crowding, living_mean
from ._motile import Motile, MotileParams
from ._sensing import in_own_frame, scent
from ._steps import BaseState


@struct.dataclass
class Params(MotileParams):
    """The task and its physics."""

    reach: float = parameter(4.0, POSITIVE, "distance over which cells smell each other, in diameters")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aggregation(Motile):
    """Cells that swim towards each other; they are worth -R, the radius of gyration, sqrt(mean |x - mean x|^2).

    Every cell gives off a scent c_i = sum_j exp(-r_ij^2 / (2 reach^2)). The action is `Motile`'s, speed and turning.

    Observation of a cell, all local: log c relative to that of all cells at one place; reach times the gradient of
    log c, along the cell's heading and to its left (2); density of its neighbours; the share of time left.

    Known: 16 close-packed cells have R = 1.48 diameters; repulsion is soft, and swimmers press each other closer.
    """

    params_type: ClassVar[type[MotileParams]] = Params

    def local_observation(self, tissue: BaseState, params: Params) -> Float[Array, "A 5"]:
        """Scent, its gradient in the own frame, density and remaining time; see the class."""
        smell, gradient = scent(tissue, params.reach)
        relative = jnp.log(jnp.maximum(smell, 1e-6) / params.founders)
        ahead, left = in_own_frame(tissue.active_heading, gradient).T
        density, _ = crowding(tissue)
        remaining = jnp.broadcast_to(2 * self.remaining_time(tissue, params) - 1, density.shape)
        return jnp.stack([relative, ahead, left, density / 2 - 1, remaining], axis=-1)

    def potential(self, tissue: BaseState, params: Params) -> Float[Array, ""]:
        """-R."""
        return -gyration_radius(tissue)

    def score(self, state: TissueState, params: Params) -> Float[Array, ""]:
        """R in diameters: lower is better."""
        return gyration_radius(state.tissue)


def gyration_radius(tissue: BaseState) -> Float[Array, ""]:
    """sqrt(mean over living cells of |x - mean x|^2)."""
    away = tissue.position - living_mean(tissue, tissue.position)
    return jnp.sqrt(living_mean(tissue, jnp.sum(away**2, axis=1)) + 1e-12)
