"""Positional information: cells read two morphogens and take the fate of the stripe that they lie in.

After Wolpert (1969), "Positional information and the spatial pattern of cellular differentiation", Journal of
Theoretical Biology 25: the French flag problem.
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
from ..environment import NON_NEGATIVE, POSITIVE, PROBABILITY, Domain, EnvParams, parameter
from ..tissue import MechanicsParams, Tissue, TissueState
from ._cells import RADIUS, living_mean, real_numbers
from ._forces import SoftRepulsion, pairs
from ._steps import (
    FATE,
    BaseState,
    BrownianDynamics,
    Clock,
    Model,
    PairwisePotential,
    SimulationStep,
    StateFieldSpec,
    StepType,
    StochasticStep,
    SwitchType,
)

MODES = ("decision", "logits")
ROWS, STRIPES = 4, 3
LENGTH = StateFieldSpec("length", scope="global", heritable=False, default=1.0)
DECAY = StateFieldSpec("decay", scope="global", heritable=False, default=1.0)
MORPHOGEN = StateFieldSpec("morphogen", shape=(2,), heritable=False)
READING_NOISE = StateFieldSpec("reading_noise", shape=(2,), heritable=False)
LARGEST_LOGIT = 5.0
WORTH = 10.0  # of a whole flag, so that rewards are of order one


class Morphogens(SimulationStep):
    """log c of two morphogens, from the left and from the right end: -x / decay and -(L - x) / decay."""

    step_type: ClassVar[StepType] = StepType.QUASISTATIC

    def state_reads(self) -> tuple:
        """The tissue's length, and the morphogens'."""
        return (LENGTH, DECAY)

    def state_writes(self) -> tuple:
        """Both, for every cell."""
        return (MORPHOGEN,)

    def __call__(self, state: BaseState, *, dt, key) -> BaseState:
        """Write them, 0 for dead cells."""
        x = state.position[:, 0] + state.length / 2
        level = -jnp.stack([x, state.length - x], axis=-1) / state.decay
        return state.set("morphogen", jnp.where(state.alive[:, None], level, 0.0))


class ReadingNoise(StochasticStep):
    """Standard normal noise of every cell's two readings, new in each macro-step; no action sets its law."""

    step_type: ClassVar[StepType] = StepType.DISCRETE

    def __init__(self):
        """It is never scored."""
        self.score_by_default = False

    def trace_writes(self) -> tuple:
        """The noise."""
        return (READING_NOISE,)

    def sample_trace(self, state: BaseState, *, dt, key) -> dict[str, Array]:
        """Draw it."""
        return {"reading_noise": jax.random.normal(key, state.reading_noise.shape, state.reading_noise.dtype)}

    def replay(self, state: BaseState, trace: dict[str, Array], *, dt, pathwise: bool) -> BaseState:
        """Write it."""
        return state.set("reading_noise", trace["reading_noise"])

    def logp(self, state: BaseState, trace: dict[str, Array], dt) -> Float[Array, ""]:
        """0, whatever it was."""
        return jnp.zeros((), trace["reading_noise"].dtype)


@struct.dataclass
class Params(MechanicsParams):
    """The task and its physics."""

    kT: float = parameter(0.0005, NON_NEGATIVE, "thermal energy of the cells' jitter")
    length: float = parameter(9.0, POSITIVE, "columns of cells on average, four cells each")
    scaling: float = parameter(0.34, PROBABILITY, "largest deviation of an episode's length from it, as a share")
    decay_length: float = parameter(3.0, POSITIVE, "distance over which a morphogen falls by a factor e, in diameters")
    reading_noise: float = parameter(0.2, NON_NEGATIVE, "standard deviation of a reading of log c")
    max_steps_in_episode: int = parameter(6, Domain(1, open_low=False), "decisions until the flag is scored")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrenchFlag(Tissue):
    """Cells of a sheet of varying length choose one of three fates; it is worth the share that is right, times 10.

    A cell at distance x from the left end of a sheet of length L is right where its fate is floor(3 x / L). Two
    morphogens fall off from either end, c_0 = exp(-x / decay_length) and c_1 = exp(-(L - x) / decay_length), and are
    read with noise, which is new at each reading. The reward is the gain; at reset all cells are of the first fate.

    Two modes. "decision": Discrete(3), the fate. "logits": Box(-5, 5), shape (3,): the fate is the largest, and the
    derivative is that of their softmax (straight-through), so that reward and next state can be differentiated.

    Observation of a cell, all local: both readings of log c (2); the own fate (3); the mean fate of its neighbours
    within two diameters (3); the share of time left.

    Known: without noise x / L = log c_0 / (log c_0 + log c_1) at any length, so that the flag is perfect; the borders
    are lines in the plane of the two readings.
    """

    capacity: int = 48
    mode: str = "decision"

    params_type: ClassVar[type[MechanicsParams]] = Params
    interaction: ClassVar[PairwisePotential | None] = SoftRepulsion()
    num_types: ClassVar[int] = STRIPES
    ports: ClassVar[tuple[StateFieldSpec, ...]] = (FATE,)

    def __post_init__(self):
        super().__post_init__()
        if self.mode not in MODES:
            raise unknown(f"mode of {self.name}", str(self.mode), MODES)

    @property
    def _supports_transition_gradients(self) -> bool:
        return self.mode == "logits"

    def check_params(self, params: Params) -> None:
        """Refuse sheets that do not fit."""
        super().check_params(params)
        longest = int(np.max(np.round(params.length * (1 + np.asarray(params.scaling)))))
        shortest = int(np.min(np.round(params.length * (1 - np.asarray(params.scaling)))))
        if longest * ROWS > self.capacity:
            raise UserError(
                f"{self.name}: {longest} columns of {ROWS} cells, as length and scaling allow, must not exceed the "
                f"capacity of {self.capacity}"
            )
        if shortest < STRIPES:
            raise UserError(
                f"{self.name}: {shortest} columns, as length and scaling allow, must be at least {STRIPES}: one a "
                "stripe"
            )

    # -- the tissue -------------------------------------------------------------------------------------------------

    def build_physics(self) -> Model:
        """Jitter and repulsion, then fates and new readings."""
        motion = BrownianDynamics(self.interaction, n_space_dim=2)
        return Model([motion, SwitchType(), ReadingNoise(), Clock()])

    def build_sensors(self) -> tuple:
        """The morphogens."""
        return (Morphogens(),)

    def bind(self, physics: Model, params: Params) -> Model:
        """The jitter's thermal energy."""
        return eqx.tree_at(lambda model: model.steps[0].kT, physics, params.kT)

    def initial_tissue(self, key: Array, empty: BaseState, params: Params) -> BaseState:
        """A sheet of four rows, as long as chance has it, of cells at rest."""
        key_length, key_noise = jax.random.split(key)
        dtype = empty.position.dtype
        share = jax.random.uniform(key_length, (), dtype, -1.0, 1.0)
        columns = jnp.round(params.length * (1 + params.scaling * share))
        slots = jnp.arange(self.capacity)
        alive = slots // ROWS < columns
        x = (slots // ROWS).astype(dtype) + 0.5 - columns / 2
        y = (slots % ROWS).astype(dtype) - (ROWS - 1) / 2
        first = jnp.where(alive, 1.0, 0.0)
        return empty.update(
            alive=alive,
            position=jnp.where(alive[:, None], jnp.stack([x, y], axis=-1), 0.0),
            radius=jnp.where(alive, RADIUS, empty.radius),
            celltype=empty.celltype.at[:, 0].set(first.astype(dtype)),
            length=columns.astype(dtype),
            decay=jnp.asarray(params.decay_length, dtype),
            reading_noise=jax.random.normal(key_noise, empty.reading_noise.shape, dtype),
        )

    def agent_action_space(self, params: Params) -> spaces.Space:
        """A fate, or its logits."""
        if self.mode == "decision":
            return spaces.Discrete(STRIPES)
        return spaces.Box(-LARGEST_LOGIT, LARGEST_LOGIT, (STRIPES,), jnp.result_type(float))

    def agent_observation_space(self, params: Params) -> spaces.Box:
        """Nine real numbers."""
        return real_numbers(9)

    def write_action(self, tissue: BaseState, action: Array, params: Params) -> BaseState:
        """The logits; of a decision, 1 for the fate and 0 for the others."""
        fate = jax.nn.one_hot(action, STRIPES) if self.mode == "decision" else action
        return tissue.set("fate", fate.astype(tissue.fate.dtype))

    def local_observation(self, tissue: BaseState, params: Params) -> Float[Array, "A 9"]:
        """Readings, fates and remaining time; see the class."""
        reading = tissue.morphogen + params.reading_noise * tissue.reading_noise
        around = pairs(tissue)
        near = (around.apart & (around.square < 4)).astype(tissue.radius.dtype)
        fates = near @ tissue.celltype / jnp.maximum(jnp.sum(near, axis=1), 1.0)[:, None]
        remaining = jnp.broadcast_to(2 * self.remaining_time(tissue, params) - 1, tissue.radius.shape)
        return jnp.concatenate([reading, tissue.celltype, fates, remaining[:, None]], axis=1)

    # -- the task ---------------------------------------------------------------------------------------------------

    def potential(self, tissue: BaseState, params: Params) -> Float[Array, ""]:
        """10 times the share of cells whose fate is right."""
        return WORTH * accuracy(tissue)

    def score(self, state: TissueState, params: EnvParams) -> Float[Array, ""]:
        """Share of cells whose fate is that of their stripe, between 0 and 1: higher is better."""
        return accuracy(state.tissue)

    def colours(self, state: TissueState, params: Params) -> Float[np.ndarray, "A 3"]:
        """Blue, white and red by fate."""
        flag = np.array([[60.0, 90.0, 190.0], [240.0, 240.0, 240.0], [210.0, 60.0, 60.0]])
        return np.asarray(state.tissue.celltype) @ flag


def accuracy(tissue: BaseState) -> Float[Array, ""]:
    """Mean over living cells of their weight on the fate of the stripe that they lie in."""
    x = tissue.position[:, 0] + tissue.length / 2
    stripe = jnp.clip(jnp.floor(STRIPES * x / tissue.length), 0, STRIPES - 1).astype(jnp.int32)
    right = jnp.take_along_axis(tissue.celltype, stripe[:, None], axis=1)[:, 0]
    return living_mean(tissue, right)
