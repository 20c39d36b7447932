"""Tissues: growing populations of cells as environments. The physics is jax_morph's.

An environment step writes the cells' actions into the fields that physics reads, then runs `substeps` macro-steps of
the simulator. Cells are agents: a slot of the simulator's capacity is an agent, `alive` is the mask.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax_morph
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt8, UInt32

from ..errors import UserError
from .environment import NON_NEGATIVE, POSITIVE, Domain, Environment, EnvParams, EnvState, canonical_params, parameter
from .pictures import OWN_STYLE, CellStyle
from .tissues._cells import by_age, picture
from .tissues._forces import stable_step
from .tissues._scores import division_log_prob, recorded_steps, replayed_log_prob
from .tissues._steps import Control

# The stiffest wave of springs between nearest neighbours has 6 k in a close-packed sheet and 8 k in close-packed space.
PACKED_IN_SPACE = 6 / 8


@struct.dataclass
class Events:
    """What happened to each slot in the last environment step.

    Attributes:
        trials: scored chances to divide of the cell that held the slot at the step's start, and of its descendants,
            whose rates are all its action.
        divisions: those of them that happened.
        births: daughters that this cell and its descendants were given, scored or not.
        deaths: of this cell and its descendants, by chance or by ablation.
        ancestor: the slot, at the step's start, of the ancestor of the cell that holds this slot now (its own, if old).
        kept: the cell that holds the slot now held it at the step's start.
        overflow: a division found no free slot.
    """

    trials: Int[Array, " A"]
    divisions: Int[Array, " A"]
    births: Int[Array, " A"]
    deaths: Int[Array, " A"]
    ancestor: Int[Array, " A"]
    kept: Bool[Array, " A"]
    overflow: Bool[Array, ""]


@struct.dataclass
class TissueState(EnvState):
    """The simulator's state, and the events of the step that led to it; `time` counts environment steps.

    Attributes:
        tissue: the simulator's.
        events: of the last step.
        key: that of the last step, as plain integers: with it and the action every macro-step can be rebuilt.
    """

    tissue: jax_morph.BaseState
    events: Events
    key: UInt32[Array, " 2"]


@struct.dataclass
class MechanicsParams(EnvParams):
    """Physics that every tissue has. Lengths are in cell diameters, energies in the repulsion's, drag is 1."""

    dt: float = parameter(0.1, POSITIVE, "length of a macro-step, in units of drag * diameter^2 / repulsion energy")
    kT: float = parameter(0.01, NON_NEGATIVE, "thermal energy of the cells' jitter")
    max_steps_in_episode: int = parameter(10, Domain(1, open_low=False), "decisions until the tissue is scored")


@struct.dataclass
class TissueParams(MechanicsParams):
    """Of a tissue that grows from a few founders."""

    growth_rate: float = parameter(2.0, NON_NEGATIVE, "speed at which a newborn's radius starts to regrow")
    founders: int = parameter(4, Domain(1, open_low=False), "cells at reset")
    founder_noise: float = parameter(0.05, NON_NEGATIVE, "standard deviation of the founders' positions")


@functools.lru_cache(maxsize=256)
def _simulator(environment: Tissue) -> tuple[jax_morph.Model, tuple, type]:
    """Physics, sensors and state class, built once for all equal environments.

    A model with array leaves cannot be hashed, so the environment is the key; nothing here may hold an array, because
    the first call can come from inside a trace.
    """
    physics, sensors = environment.build_physics(), tuple(environment.build_sensors())
    fields = jax_morph.Model([*physics.steps, *sensors])
    return physics, sensors, jax_morph.build_state_from_model(fields, type(environment).__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tissue(Environment):
    """An environment whose transition is `substeps` macro-steps of a `jax_morph.Model`.

    A subclass says what the tissue is made of (`build_physics`, `build_sensors`, `bind`, `initial_tissue`), how an
    action enters (`ports`, `write_action`), what a cell sees (`local_observation`) and what the task is worth
    (`potential`, `score`). The reward is the gain in `potential`, so that a return is the last value but for a
    constant; all cells that acted get it.

    Episodes are scored at their horizon, and terminate there, with discount 1; an `unending` task has a `task_reward`
    of its own, is truncated instead and discounts. All terminate when a division finds no free slot
    (`info["overflow"]`) or no cell is left.

    Attributes:
        capacity: slots for cells.
        substeps: macro-steps per environment step.
    """

    capacity: int = 64
    substeps: int = 5
    num_agents: int = dataclasses.field(init=False)
    concept: str = dataclasses.field(init=False, default="cooperative")

    agent_role: ClassVar[str] = "cell"
    exchangeable: ClassVar[bool] = True
    params_type: ClassVar[type[EnvParams]] = TissueParams
    ports: ClassVar[tuple[jax_morph.StateFieldSpec, ...]] = ()
    interaction: ClassVar[jax_morph.physics.PairwisePotential | None] = None
    smallest_diameter: ClassVar[float] = 1.0
    n_space_dim: ClassVar[int] = 2
    num_types: ClassVar[int] = 1
    unending: ClassVar[bool] = False
    scores_events: ClassVar[bool] = False
    no_events: ClassVar[str] = "no event here is sampled at a rate that an action sets; use score='actions'"
    categorical: ClassVar[bool] = False
    _supports_transition_gradients: ClassVar[bool] = False

    # -- the tissue -------------------------------------------------------------------------------------------------

    def build_physics(self) -> jax_morph.Model:
        """The simulator's model, its parameters plain numbers; the same on every call."""
        raise NotImplementedError

    def build_sensors(self) -> tuple:
        """Quasistatic steps that fill the fields that cells only sense: run once an environment step, not in each."""
        return ()

    def bind(self, physics: jax_morph.Model, params: EnvParams) -> jax_morph.Model:
        """`physics` with its swept parameters, as arrays."""
        raise NotImplementedError

    def bind_sensors(self, sensors: tuple, params: EnvParams) -> tuple:
        """`sensors` with their swept parameters, as arrays."""
        return sensors

    def initial_tissue(self, key: Array, empty: jax_morph.BaseState, params: EnvParams) -> jax_morph.BaseState:
        """The founders, placed in `empty`. Cheap: it runs at every step of a loop that resets without thinking."""
        raise NotImplementedError

    def write_action(self, tissue: jax_morph.BaseState, action: PyTree, params: EnvParams) -> jax_morph.BaseState:
        """`tissue` with every port written from the cells' legal actions; differentiable in them."""
        raise NotImplementedError

    def local_observation(self, tissue: jax_morph.BaseState, params: EnvParams) -> Float[Array, "A O"]:
        """What each cell sees; dead slots may hold anything finite."""
        raise NotImplementedError

    def potential(self, tissue: jax_morph.BaseState, params: EnvParams) -> Float[Array, ""]:
        """What the reward is the gain of; only where `task_reward` is not overridden."""
        raise NotImplementedError

    def task_reward(self, state: TissueState, next_state: TissueState, params: EnvParams) -> Float[Array, ""]:
        """What a step is worth to every cell that acted in it."""
        return self.potential(next_state.tissue, params) - self.potential(state.tissue, params)

    def report(self, state: TissueState, params: EnvParams) -> dict[str, Array]:
        """What `info` says of a task beyond its score."""
        return {}

    # -- derived ----------------------------------------------------------------------------------------------------

    def __post_init__(self):
        for name, least in (("capacity", 2), ("substeps", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{self.name}: {name} must be a whole number of at least {least}, got {value!r}")
        object.__setattr__(self, "num_agents", self.capacity)

    @property
    def default_params(self) -> EnvParams:
        """The default parameters, as arrays."""
        return canonical_params(self.params_type())

    @property
    def capabilities(self) -> frozenset[str]:
        """A "score", and "events" where the simulator samples divisions whose probability an action sets."""
        return super().capabilities | {"score"} | ({"events"} if self.scores_events else set())

    def check_params(self, params: EnvParams) -> None:
        """Raise `UserError` where there are more founders than slots, or dt is too long for explicit mechanics."""
        founders = np.asarray(getattr(params, "founders", 0))
        if np.any(founders > self.capacity):
            raise UserError(f"{self.name}: founders = {founders} must not exceed the capacity of {self.capacity}")
        if self.interaction is None:
            return
        dt, limit = float(np.max(params.dt)), stable_step(self.interaction, self.smallest_diameter)
        if self.n_space_dim == 3:
            limit *= PACKED_IN_SPACE
        if dt >= limit:
            raise UserError(
                f"{self.name}: dt = {dt:g} must be below {limit:.4g}, where explicit mechanics of cells of diameter "
                f"{self.smallest_diameter:.3g} becomes unstable"
            )

    def model(self, params: EnvParams) -> jax_morph.Model:
        """The simulator's model at `params`: `model(tissue, dt=params.dt, key=key)` is one macro-step."""
        return self.bind(_simulator(self)[0], params)

    def reset_env(self, key: Array, params: EnvParams) -> tuple[Float[Array, "A O"], TissueState]:
        """Founders and their first observation."""
        state_class = _simulator(self)[2]
        empty = state_class.init_empty(capacity=self.capacity, n_space_dim=self.n_space_dim, n_types=self.num_types)
        tissue = self.sense(self.initial_tissue(key, empty, params), params)
        slots = jnp.arange(self.capacity, dtype=jnp.int32)
        none = jnp.zeros(self.capacity, jnp.int32)
        events = Events(none, none, none, none, slots, tissue.alive, jnp.zeros((), bool))
        state = TissueState(time=jnp.int32(0), tissue=tissue, events=events, key=jax.random.key_data(key))
        return self.masked_observation(tissue, params), state

    def step_env(
        self, key: Array, state: TissueState, action: PyTree, params: EnvParams
    ) -> tuple[Float[Array, "A O"], TissueState, Float[Array, " A"], Bool[Array, ""], dict[str, Array]]:
        """Write the action, then run the macro-steps.

        With the key `k` of this call, the tissue is that of `jax_morph.simulate(model, written, substeps, dt, k)`.
        `info` has `overflow`, `action_clipped` (an action lay outside its bounds), `num_cells`, `score` and what
        `report` adds.
        """
        action, clipped = self.legal_action(action, params)
        tissue, events = self.advance(key, self.write_action(state.tissue, action, params), params)
        tissue = self.sense(tissue, params)
        next_state = TissueState(time=state.time + 1, tissue=tissue, events=events, key=jax.random.key_data(key))
        gain = self.task_reward(state, next_state, params)
        reward = jnp.where(state.tissue.alive, gain, jnp.zeros_like(gain))
        reward = jnp.where(_all_finite(action), reward, jnp.nan)  # physics would read a NaN as "do nothing"
        over = events.overflow | ~tissue.alive.any()
        if not self.unending:
            over = over | (next_state.time >= params.max_steps_in_episode)
        info = {
            "overflow": events.overflow,
            "action_clipped": clipped,
            "num_cells": jnp.sum(tissue.alive, dtype=jnp.int32),
            "score": self.score(next_state, params),
        }
        info |= self.report(next_state, params)
        return self.masked_observation(tissue, params), next_state, reward, over, info

    def advance(self, key: Array, tissue: jax_morph.BaseState, params: EnvParams) -> tuple[Any, Events]:
        """Run `substeps` macro-steps and reduce their events to one record a slot."""
        tissue, counts = recorded_steps(self.model(params), key, tissue, params.dt, self.substeps)
        return tissue, Events(**counts)

    def sense(self, tissue: jax_morph.BaseState, params: EnvParams) -> jax_morph.BaseState:
        """`tissue` with the sensed fields brought up to date."""
        for step in self.bind_sensors(_simulator(self)[1], params):
            tissue = step(tissue, dt=params.dt, key=None)
        return tissue

    def masked_observation(self, tissue: jax_morph.BaseState, params: EnvParams) -> Float[Array, "A O"]:
        """`local_observation` with dead slots at 0: the simulator leaves dead cells at the origin."""
        return jnp.where(tissue.alive[:, None], self.local_observation(tissue, params), 0.0)

    def observe(self, key: Array, state: TissueState, action: PyTree | None, params: EnvParams) -> Float[Array, "A O"]:
        """The observation of `state`; it needs no randomness."""
        return self.masked_observation(state.tissue, params)

    def remaining_time(self, tissue: jax_morph.BaseState, params: EnvParams) -> Float[Array, ""]:
        """Share of the episode that is left, from 1 to 0."""
        total = self.substeps * params.max_steps_in_episode
        return 1 - (tissue.macro_step / total).astype(jnp.result_type(float))

    def world_state(self, state: TissueState, params: EnvParams) -> Float[Array, " S"]:
        """The living cells' mean observation, the share of slots in use and, where the task ends, of time left."""
        alive = state.tissue.alive
        seen = self.masked_observation(state.tissue, params)
        mean = seen.sum(axis=0) / jnp.maximum(alive.sum(), 1).astype(seen.dtype)
        share = alive.mean(dtype=seen.dtype)
        rest = [share] if self.unending else [share, self.remaining_time(state.tissue, params)]
        return jnp.concatenate([mean, jnp.stack(rest)])

    def agent_mask(self, state: TissueState, params: EnvParams) -> Bool[Array, " A"]:
        """The living cells."""
        return state.tissue.alive

    def is_truncated(self, state: TissueState, params: EnvParams) -> Bool[Array, ""]:
        """At the time limit of an unending task; else never: the tissue is scored, and nothing comes after it."""
        return jnp.asarray(self.unending) & (state.time >= params.max_steps_in_episode)

    def discount_factor(self, params: EnvParams) -> Float[Array, ""]:
        """1, since only the final tissue counts; an unending task overrides it."""
        return jnp.ones((), jnp.result_type(float))

    def successor(self, state: TissueState, next_state: TissueState, params: EnvParams) -> Int[Array, " A"]:
        """A living cell keeps its slot, as mother too; -1 for empty slots and cells that died."""
        slots = jnp.arange(self.capacity, dtype=jnp.int32)
        return jnp.where(state.tissue.alive & next_state.events.kept, slots, -1)

    def inherits(self, state: TissueState, next_state: TissueState, params: EnvParams) -> Int[Array, " A"]:
        """A cell has its own memory, a newborn that of its mother (of the one alive at the step's start)."""
        return jnp.where(next_state.tissue.alive, next_state.events.ancestor, -1)

    # -- pictures ---------------------------------------------------------------------------------------------------

    def colours(self, state: TissueState, params: EnvParams) -> Float[np.ndarray, "A 3"]:
        """Of the cells, 0 to 255: blue, the lighter the longer ago a cell divided."""
        return by_age(state.tissue)

    def ground(self, params: EnvParams, size: int) -> UInt8[np.ndarray, "S S 3"] | None:
        """What lies under the cells, with the origin in its middle and 12 diameters across; None: nothing."""
        return None

    def render(
        self, state: TissueState, params: EnvParams, size: int = 256, style: CellStyle = OWN_STYLE
    ) -> UInt8[np.ndarray, "S S 3"]:
        """The tissue from above (in space, along z): cells as discs.

        Args:
            state: one state.
            params: the parameters.
            size: of the picture, in pixels.
            style: what goes before the environment's own colours and view.
        """
        colours = self.colours(state, params) if style.colours is None else style.colours
        return picture(state.tissue, colours, size, self.ground(params, size), style)

    # -- scores -----------------------------------------------------------------------------------------------------

    def event_log_prob(
        self, state: TissueState, action: PyTree, next_state: TissueState, params: EnvParams
    ) -> Float[Array, " A"]:
        """Log-probability of the divisions recorded in `next_state`, under the rates that `action` sets.

        A chance to divide at rate r over dt succeeds with p = 1 - exp(-r dt). Each agent answers for its own chances
        and for those of the daughters born during the step, whose rate is inherited. A cell for which no slot was left,
        because cells before it had filled them, could change nothing: its chance is left out, taken or not. Where one
        cell is drawn (`categorical`), the score log(d_i / sum d) stands at the cell that divided.

        Args:
            state: where the step began.
            action: `[A, ...]`, as for `step`; the result is differentiable in it.
            next_state: where the step ended.

        Raises:
            UserError: the environment has no events whose probability an action sets, and sets alone.
        """
        if not self.scores_events:
            raise UserError(f"{self.name}: {self.no_events}")
        return division_log_prob(self, state, self.legal_action(action, params)[0], next_state, params)

    def closed_loop(
        self, policy: Callable[[Float[Array, "A O"]], PyTree], params: EnvParams | None = None
    ) -> jax_morph.Model:
        """The simulator's model with a policy inside, for `jax_morph.simulate` and `jax_morph.trajectory_logp`.

        Args:
            policy: `(observation [A, O]) -> action [A, ...]`, as `reset` gives the one and `step` takes the other. An
                equinox module's arrays are leaves of the model: `equinox.filter_grad` reaches them.
            params: the environment's parameters, by default the default ones.

        Returns:
            A model for this environment's tissues; the policy acts once every `substeps` macro-steps.
        """
        params = self.default_params if params is None else params
        return jax_morph.Model([Control(self, policy, params), *self.model(params).steps])

    def trajectory_log_prob(
        self,
        policy: Callable[[Float[Array, "A O"]], PyTree],
        state: TissueState,
        action: PyTree,
        next_state: TissueState,
        happened: Bool[Array, " T"],
        params: EnvParams,
    ) -> Float[Array, " T"]:
        """The simulator's own log-probability of a recorded episode, replayed with a policy live inside it.

        Every macro-step is rebuilt from the state before its step, the action and the step's key; the replay then
        starts from the first state and carries what it computes, so that later observations depend on the policy.

        Args:
            policy: as for `closed_loop`; the result is differentiable in its arrays.
            state, next_state: before and after each step, leaves `[T, ...]`.
            action: as `step` took it, `[T, A, ...]`.
            happened: false for steps after the episode's end: nothing happens in them, and their score is 0.
            params: the environment's parameters.

        Returns:
            The score of each step, summed over its macro-steps.
        """
        return replayed_log_prob(self, policy, state, action, next_state, happened, params)


def _all_finite(action: PyTree) -> Bool[Array, ""]:
    """Whether no real number in an action is a NaN."""
    leaves = [leaf for leaf in jax.tree.leaves(action) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves])) if leaves else jnp.ones((), bool)
