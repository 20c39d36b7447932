"""What tissue tasks are made of: the simulator's parts, and ours, added through its public extension points.

The simulator is young: it is imported here and in `tissue.py` only, so that a new version meets two files.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax_morph import (
    ALIVE,
    CELLTYPE,
    POSITION,
    BaseState,
    Model,
    SimulationStep,
    StateFieldSpec,
    StepType,
    StochasticStep,
    ad_utils,
    geometry,
    simulate,
    trajectory_logp,
)
from jax_morph.physics import (
    ACTIVE_HEADING,
    ACTIVE_SPEED,
    DEATH_RATE,
    DIVISION_RATE,
    ActiveBrownianDynamics2D,
    BrownianDynamics,
    Death,
    Division,
    FreeScreenedDiffusion,
    Morse,
    PairwisePotential,
    SaturatingCellGrowth,
    SoftSphere,
    VirialStress,
)
from jaxtyping import Array, Float

__all__ = [
    "ACTIVE_HEADING",
    "ACTIVE_SPEED",
    "DEATH_RATE",
    "DIVISION_AGE",
    "DIVISION_AXIS",
    "DIVISION_RATE",
    "FATE",
    "MACRO_STEP",
    "PUSH",
    "TURN_RATE",
    "Ablation",
    "ActiveBrownianDynamics2D",
    "BaseState",
    "BrownianDynamics",
    "CategoricalDivision",
    "Clock",
    "Control",
    "Death",
    "Division",
    "DivisionClock",
    "ExternalForce",
    "FreeScreenedDiffusion",
    "Model",
    "Morse",
    "PairwisePotential",
    "SaturatingCellGrowth",
    "SimulationStep",
    "SoftSphere",
    "SpendDivision",
    "StateFieldSpec",
    "StepType",
    "StochasticStep",
    "SwitchType",
    "Turning",
    "VirialStress",
    "ad_utils",
    "geometry",
    "simulate",
    "trajectory_logp",
]

DIVISION_AGE = StateFieldSpec("division_age", heritable=False)
DIVISION_AXIS = StateFieldSpec("division_axis", shape=(2,))
MACRO_STEP = StateFieldSpec("macro_step", dtype=int, scope="global", heritable=False, default=0)
PUSH = StateFieldSpec("push", shape=(2,))
TURN_RATE = StateFieldSpec("turn_rate")
FATE = StateFieldSpec("fate", shape=(3,))


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


class Clock(SimulationStep):
    """The number of macro-steps so far, for tissues without divisions."""

    step_type: ClassVar[StepType] = StepType.DISCRETE

    def state_writes(self) -> tuple:
        """The clock."""
        return (MACRO_STEP,)

    def __call__(self, state: BaseState, *, dt: Any, key: Any) -> BaseState:
        """Advance it."""
        return state.set("macro_step", state.macro_step + 1)


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


class CategoricalDivision(Division):
    """Exactly one cell divides a macro-step: cell i with probability p_i = d_i / sum of d over living cells.

    d is `division_rate`, here a propensity without a unit. Where all are 0 nobody divides. The score of a step is
    log p_i of the cell that divided (Deshpande, Mottes et al. 2025); placement and inheritance are `Division`'s.
    """

    def __init__(self, *, n_space_dim: int, orientation_snr: Any = 0.0):
        """As `Division`; it is scored by default."""
        super().__init__(n_space_dim=n_space_dim, orientation_snr=orientation_snr)

    def _dist(self, state: BaseState, dt: Any) -> Float[Array, " A"]:
        propensity = jnp.where(state.alive, jnp.clip(state.division_rate, 0.0, None), 0.0)
        return ad_utils.safe_divide(propensity, jnp.sum(propensity))

    def sample_trace(self, state: BaseState, *, dt: Any, key: Array) -> dict[str, Array]:
        """Draw the cell that divides, and the directions of placement as `Division` draws them."""
        key_cell, key_rest = jax.random.split(key)
        trace = super().sample_trace(state, dt=dt, key=key_rest)
        chance = self._dist(state, dt)
        chosen = jax.random.categorical(key_cell, ad_utils.safe_log(chance))
        hit = (jnp.arange(state.n_cells) == chosen) & (chance > 0)
        return trace | {"divided": hit.astype(chance.dtype)}

    def logp(self, state: BaseState, trace: dict[str, Array], dt: Any) -> Float[Array, ""]:
        """log p of the cell that divided; 0 where none did."""
        chance = jnp.where(trace["divided"] > 0.5, self._dist(state, dt), 1.0)
        return jnp.sum(ad_utils.safe_log(chance))


class Ablation(SimulationStep):
    """A disc of cells around the tissue's middle dies in one macro-step, recorded as deaths; place it after `Death`.

    Attributes:
        at: the macro-step, counted from 0.
        radius: of the disc; cells die whose centre it covers.
    """

    step_type: ClassVar[StepType] = StepType.DISCRETE
    at: Any
    radius: Any

    def state_reads(self) -> tuple:
        """The time."""
        return (MACRO_STEP,)

    def state_writes(self) -> tuple:
        """Who is alive, and the record of deaths."""
        return (ALIVE, StateFieldSpec("death", heritable=False))

    def __call__(self, state: BaseState, *, dt: Any, key: Any) -> BaseState:
        """Remove the disc when it is time; place it before the clock."""
        count = jnp.maximum(jnp.sum(state.alive), 1).astype(state.radius.dtype)
        middle = jnp.sum(jnp.where(state.alive[:, None], state.position, 0.0), axis=0) / count
        inside = jnp.sum((state.position - middle) ** 2, axis=1) < self.radius**2
        gone = state.alive & inside & (state.macro_step == self.at)
        return state.update(alive=state.alive & ~gone, death=jnp.where(gone, 1.0, state.death))


class SwitchType(SimulationStep):
    """Every cell takes the type of its largest `fate`; the derivative is that of a softmax (straight-through)."""

    step_type: ClassVar[StepType] = StepType.DISCRETE

    def state_reads(self) -> tuple:
        """The logits, three types."""
        return (FATE,)

    def state_writes(self) -> tuple:
        """The type."""
        return (CELLTYPE,)

    def __call__(self, state: BaseState, *, dt: Any, key: Any) -> BaseState:
        """Write the type of living cells."""
        chosen = ad_utils.argmax_st(state.fate).astype(state.celltype.dtype)
        return state.set("celltype", jnp.where(state.alive[:, None], chosen, state.celltype))


class ExternalForce(SimulationStep):
    """A force on each cell, `push`, moves it at drag 1, on top of what else moves it."""

    step_type: ClassVar[StepType] = StepType.DYNAMIC

    def state_reads(self) -> tuple:
        """The force."""
        return (PUSH,)

    def state_writes(self) -> tuple:
        """The position, as an increment."""
        return (POSITION,)

    def __call__(self, state: BaseState, *, dt: Any, key: Any) -> BaseState:
        """The displacement over dt."""
        return state.deltas(position=dt * state.push)


class Turning(SimulationStep):
    """A cell turns at its own `turn_rate`, on top of its heading's diffusion."""

    step_type: ClassVar[StepType] = StepType.DYNAMIC

    def state_reads(self) -> tuple:
        """The rate, radians per unit of time."""
        return (TURN_RATE,)

    def state_writes(self) -> tuple:
        """The heading, as an increment."""
        return (ACTIVE_HEADING,)

    def __call__(self, state: BaseState, *, dt: Any, key: Any) -> BaseState:
        """The heading's change over dt."""
        return state.deltas(active_heading=dt * state.turn_rate)


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
