"""What tissue tasks are made of: the simulator's parts, and ours, added through its public extension points.

The simulator is young: it is imported here and in `tissue.py` only, so that a new version meets two files.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax_morph import BaseState, Model, SimulationStep, StateFieldSpec, StepType, geometry
from jax_morph.physics import (
    DIVISION_RATE,
    BrownianDynamics,
    Division,
    FreeScreenedDiffusion,
    SaturatingCellGrowth,
    SoftSphere,
)
from jaxtyping import Array, Float

__all__ = [
    "DIVISION_AGE",
    "DIVISION_RATE",
    "MACRO_STEP",
    "BaseState",
    "BrownianDynamics",
    "Control",
    "Division",
    "DivisionClock",
    "FreeScreenedDiffusion",
    "Model",
    "SaturatingCellGrowth",
    "SoftRepulsion",
    "SpendDivision",
    "StateFieldSpec",
    "geometry",
    "pairs",
]

DIVISION_AGE = StateFieldSpec("division_age", heritable=False)
MACRO_STEP = StateFieldSpec("macro_step", dtype=int, scope="global", heritable=False, default=0)


class SoftRepulsion(SoftSphere):
    """`SoftSphere` with its force written out: the same numbers, without differentiating a sum over all pairs.

    For contact distance sigma = r_i + r_j the pair energy is (epsilon / 2) (1 - r / sigma)^2 inside contact, so the
    force on i is (epsilon / sigma) (1 - r / sigma) along the unit vector from j to i. `epsilon` must be a scalar.
    """

    def forces(self, state: BaseState) -> Float[Array, "A D"]:
        """Force on every cell; 0 for dead ones."""
        offsets, square = pairs(state)
        contact = state.radius[:, None] + state.radius[None, :]
        # At distance 0 (a cell and itself, or two coincident cells) there is no direction, and no force.
        near = (square > 0) & (square < contact**2) & state.alive[:, None] & state.alive[None, :]
        distance, sigma = jnp.sqrt(jnp.where(near, square, 1.0)), jnp.where(near, contact, 1.0)
        strength = jnp.where(near, jnp.asarray(self.epsilon) * (sigma - distance) / (sigma**2 * distance), 0.0)
        return jnp.stack([jnp.sum(strength * offset, axis=1) for offset in offsets], axis=-1)


def pairs(state: BaseState) -> tuple[list[Float[Array, "A A"]], Float[Array, "A A"]]:
    """Coordinates of the displacement from each cell to each, [i, j] = i - j, and its squared length.

    One array per coordinate: with a last axis of two XLA's CPU loops do not vectorise, at five times the cost.
    """
    displacement = geometry.pairwise_displacements(state.position, state.displacement)
    offsets = [displacement[..., k] for k in range(state.position.shape[1])]
    return offsets, functools.reduce(jnp.add, [offset**2 for offset in offsets])


class DivisionClock(SimulationStep):
    """Time since a cell's last division (0 for mother and daughter alike), and the number of macro-steps so far."""

    step_type: ClassVar[StepType] = StepType.DISCRETE

    def state_reads(self) -> tuple:
        """Who divided and who was born in this macro-step."""
        return (StateFieldSpec("divided", heritable=False), StateFieldSpec("born", heritable=False))

    def state_writes(self) -> tuple:
        """Both clocks."""
        return (DIVISION_AGE, MACRO_STEP)

    def __call__(self, state: BaseState, *, dt: Any, key: Any) -> BaseState:
        """Advance both; place it after `Division`."""
        fresh = (state.divided > 0.5) | (state.born > 0.5)
        age = jnp.where(fresh | ~state.alive, 0.0, state.division_age + dt)
        return state.update(division_age=age, macro_step=state.macro_step + 1)


class SpendDivision(SimulationStep):
    """A decision to divide is spent by the macro-step that executes it.

    The rate that executes it is heritable: without this a daughter would be born dividing, and so would hers.
    """

    step_type: ClassVar[StepType] = StepType.DISCRETE

    def state_writes(self) -> tuple:
        """The division rate."""
        return (DIVISION_RATE,)

    def __call__(self, state: BaseState, *, dt: Any, key: Any) -> BaseState:
        """Set every rate to 0; place it after `Division`."""
        return state.set("division_rate", jnp.zeros_like(state.division_rate))


class Control(SimulationStep):
    """A policy as a step of the model: it acts every `substeps` macro-steps, and its action holds in between.

    Attributes:
        environment: the `Tissue` whose observation, bounds and ports it uses.
        policy: `(observation [A, O]) -> action [A, ...]`; its arrays are leaves of the model, so they differentiate.
        params: the environment's parameters.
    """

    step_type: ClassVar[StepType] = StepType.QUASISTATIC
    environment: Any = eqx.field(static=True)
    policy: Any
    params: Any

    def state_writes(self) -> tuple:
        """The fields through which an action enters."""
        return tuple(self.environment.ports)

    def __call__(self, state: BaseState, *, dt: Any, key: Any) -> BaseState:
        """Write the action of this macro-step's state where one is due."""
        sensed = self.environment.sense(state, self.params)
        action = self.policy(self.environment.masked_observation(sensed, self.params))
        action, _ = self.environment.legal_action(action, self.params)
        written = self.environment.write_action(state, action, self.params)
        due = state.macro_step % self.environment.substeps == 0
        return state.update(
            **{port.name: jnp.where(due, written[port.name], state[port.name]) for port in self.environment.ports}
        )
