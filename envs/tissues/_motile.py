"""Cells that swim and neither divide nor die: what Chemotaxis and Aggregation have in common."""

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
from ..environment import NON_NEGATIVE, POSITIVE, Domain, parameter
from ..tissue import MechanicsParams, Tissue, TissueState
from ._cells import RADIUS, real_numbers
from ._forces import SoftRepulsion
from ._steps import (
    ACTIVE_SPEED,
    TURN_RATE,
    ActiveBrownianDynamics2D,
    BaseState,
    Clock,
    Model,
    PairwisePotential,
    StateFieldSpec,
    Turning,
)


@struct.dataclass
class MotileParams(MechanicsParams):
    """Swimmers: a cell moves at its speed along its heading, which it turns and which diffuses."""

    kT: float = parameter(0.001, NON_NEGATIVE, "thermal energy of the cells' jitter")
    founders: int = parameter(16, Domain(1, open_low=False), "cells")
    spread: float = parameter(3.0, NON_NEGATIVE, "standard deviation of each coordinate of their first positions")
    max_speed: float = parameter(1.0, POSITIVE, "highest speed, diameters per unit of time")
    max_turn: float = parameter(3.0, POSITIVE, "highest rate of turning, radians per unit of time")
    rot_diffusion: float = parameter(0.1, NON_NEGATIVE, "diffusion of the heading, radians^2 per unit of time")
    max_steps_in_episode: int = parameter(30, Domain(1, open_low=False), "decisions until the cells are scored")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Motile(Tissue):
    """Active Brownian cells; a subclass says what they smell and what they are to do.

    The action of a cell is Box, shape (2,): speed in (0, 1), in units of `max_speed`, and turning in (-1, 1), in units
    of `max_turn`; both hold for the step. Reward and next state are differentiable in it from end to end.
    """

    capacity: int = 16

    params_type: ClassVar[type[MechanicsParams]] = MotileParams
    interaction: ClassVar[PairwisePotential | None] = SoftRepulsion()
    ports: ClassVar[tuple[StateFieldSpec, ...]] = (ACTIVE_SPEED, TURN_RATE)
    _supports_transition_gradients: ClassVar[bool] = True

    def build_physics(self) -> Model:
        """Swimming, turning, jitter and repulsion."""
        return Model([ActiveBrownianDynamics2D(self.interaction, n_space_dim=2), Turning(), Clock()])

    def bind(self, physics: Model, params: MotileParams) -> Model:
        """The jitter of place and heading."""
        return eqx.tree_at(
            lambda model: (model.steps[0].kT, model.steps[0].rot_diffusion), physics, (params.kT, params.rot_diffusion)
        )

    def initial_tissue(self, key: Array, empty: BaseState, params: MotileParams) -> BaseState:
        """Cells around the origin, their headings anywhere."""
        key_place, key_heading = jax.random.split(key)
        alive = jnp.arange(self.capacity) < params.founders
        dtype = empty.position.dtype
        place = params.spread * jax.random.normal(key_place, empty.position.shape, dtype)
        heading = jax.random.uniform(key_heading, alive.shape, dtype, -jnp.pi, jnp.pi)
        return empty.update(
            alive=alive,
            position=jnp.where(alive[:, None], place, 0.0),
            radius=jnp.where(alive, RADIUS, empty.radius),
            celltype=empty.celltype.at[:, 0].set(jnp.where(alive, 1.0, 0.0)),
            active_heading=jnp.where(alive, heading, 0.0),
        )

    def agent_action_space(self, params: MotileParams) -> spaces.Box:
        """Speed and turning."""
        dtype = jnp.result_type(float)
        return spaces.Box(jnp.array([0.0, -1.0], dtype), jnp.ones(2, dtype), (2,), dtype)

    def agent_observation_space(self, params: MotileParams) -> spaces.Box:
        """Five real numbers."""
        return real_numbers(5)

    def write_action(self, tissue: BaseState, action: Float[Array, "A 2"], params: MotileParams) -> BaseState:
        """Speed and rate of turning."""
        dtype = tissue.radius.dtype
        return tissue.update(
            active_speed=(params.max_speed * action[:, 0]).astype(dtype),
            turn_rate=(params.max_turn * action[:, 1]).astype(dtype),
        )

    def colours(self, state: TissueState, params: MotileParams) -> Float[np.ndarray, "A 3"]:
        """By the cells' heading."""
        heading = np.asarray(state.tissue.active_heading)[:, None] + 2 * np.pi * np.arange(3) / 3
        return 150 + 80 * np.cos(heading)
