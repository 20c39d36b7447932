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
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..errors import UserError
from .environment import NON_NEGATIVE, POSITIVE, Domain, Environment, EnvParams, EnvState, canonical_params, parameter
from .tissues._steps import Control


@struct.dataclass
class Events:
    """What happened to each slot in the last environment step.

    Attributes:
        trials: scored chances to divide of the cell that held the slot at the step's start, and of its descendants,
            whose rates are all its action.
        divisions: those of them that happened.
        ancestor: the slot, at the step's start, of the ancestor of the cell that holds this slot now (its own, if old).
        kept: the cell that holds the slot now held it at the step's start.
        overflow: a division found no free slot.
    """

    trials: Int[Array, " A"]
    divisions: Int[Array, " A"]
    ancestor: Int[Array, " A"]
    kept: Bool[Array, " A"]
    overflow: Bool[Array, ""]


@struct.dataclass
class TissueState(EnvState):
    """The simulator's state, and the events of the step that led to it; `time` counts environment steps."""

    tissue: jax_morph.BaseState
    events: Events


@struct.dataclass
class TissueParams(EnvParams):
    """Physics that every tissue has. Lengths are in cell diameters, energies in the repulsion's, drag is 1."""

    dt: float = parameter(0.1, POSITIVE, "length of a macro-step, in units of drag * diameter^2 / repulsion energy")
    kT: float = parameter(0.01, NON_NEGATIVE, "thermal energy of the cells' jitter")
    growth_rate: float = parameter(2.0, NON_NEGATIVE, "speed at which a newborn's radius starts to regrow")
    founders: int = parameter(4, Domain(1, open_low=False), "cells at reset")
    founder_noise: float = parameter(0.05, NON_NEGATIVE, "standard deviation of the founders' positions")
    max_steps_in_episode: int = parameter(10, Domain(1, open_low=False), "decisions until the tissue is scored")


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

    Episodes are scored at their horizon, and terminate there; they terminate too when a division finds no free slot
    (`info["overflow"]`) or no cell is left. The discount is 1.

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
    scores_events: ClassVar[bool] = False
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
        """What the reward is the gain of."""
        raise NotImplementedError

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
        """Raise `UserError` where there are more founders than slots."""
        if np.any(np.asarray(params.founders) > self.capacity):
            raise UserError(
                f"{self.name}: founders = {np.asarray(params.founders)} must not exceed the capacity of {self.capacity}"
            )

    def model(self, params: EnvParams) -> jax_morph.Model:
        """The simulator's model at `params`: `model(tissue, dt=params.dt, key=key)` is one macro-step."""
        return self.bind(_simulator(self)[0], params)

    def reset_env(self, key: Array, params: EnvParams) -> tuple[Float[Array, "A O"], TissueState]:
        """Founders and their first observation."""
        state_class = _simulator(self)[2]
        empty = state_class.init_empty(capacity=self.capacity, n_space_dim=2, n_types=1)
        tissue = self.sense(self.initial_tissue(key, empty, params), params)
        slots = jnp.arange(self.capacity, dtype=jnp.int32)
        none = jnp.zeros(self.capacity, jnp.int32)
        events = Events(none, none, slots, tissue.alive, jnp.zeros((), bool))
        state = TissueState(time=jnp.int32(0), tissue=tissue, events=events)
        return self.masked_observation(tissue, params), state

    def step_env(
        self, key: Array, state: TissueState, action: PyTree, params: EnvParams
    ) -> tuple[Float[Array, "A O"], TissueState, Float[Array, " A"], Bool[Array, ""], dict[str, Array]]:
        """Write the action, then run the macro-steps.

        With the key `k` of this call, the tissue is that of `jax_morph.simulate(model, written, substeps, dt, k)`.
        `info` has `overflow`, `action_clipped` (an action lay outside its bounds) and `num_cells`.
        """
        action, clipped = self.legal_action(action, params)
        tissue, events = self.advance(key, self.write_action(state.tissue, action, params), params)
        tissue = self.sense(tissue, params)
        next_state = TissueState(time=state.time + 1, tissue=tissue, events=events)
        gain = self.potential(tissue, params) - self.potential(state.tissue, params)
        reward = jnp.where(state.tissue.alive, gain, jnp.zeros_like(gain))
        if jnp.issubdtype(jnp.result_type(action), jnp.floating):  # physics would read a NaN as "do nothing"
            reward = jnp.where(jnp.isfinite(action).all(), reward, jnp.nan)
        over = events.overflow | (next_state.time >= params.max_steps_in_episode) | ~tissue.alive.any()
        info = {
            "overflow": events.overflow,
            "action_clipped": clipped,
            "num_cells": jnp.sum(tissue.alive, dtype=jnp.int32),
        }
        return self.masked_observation(tissue, params), next_state, reward, over, info

    def advance(self, key: Array, tissue: jax_morph.BaseState, params: EnvParams) -> tuple[Any, Events]:
        """Run `substeps` macro-steps and reduce their events to one record a slot."""
        model = self.model(params)
        slots = jnp.arange(self.capacity, dtype=jnp.int32)

        def macro_step(carry, key):
            before, ancestor, kept = carry
            after = model(before, dt=params.dt, key=key)
            born = after.born > 0.5
            kept = kept & after.alive & ~born
            trial, divided = scored_divisions(after)
            heir = jnp.where(born, ancestor[after.mother], ancestor)
            return (after, heir, kept), (trial, divided, ancestor)

        keys = jax.random.split(key, self.substeps)
        (tissue, heir, kept), (trial, divided, owner) = jax.lax.scan(macro_step, (tissue, slots, tissue.alive), keys)
        trials, divisions = (jnp.zeros_like(slots).at[owner].add(flag.astype(jnp.int32)) for flag in (trial, divided))
        return tissue, Events(trials, divisions, heir, kept, tissue.division_overflow > 0.5)

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
        """The living cells' mean observation, the share of slots in use and the share of time that is left."""
        alive = state.tissue.alive
        seen = self.masked_observation(state.tissue, params)
        mean = seen.sum(axis=0) / jnp.maximum(alive.sum(), 1).astype(seen.dtype)
        share = alive.mean(dtype=seen.dtype)
        return jnp.concatenate([mean, jnp.stack([share, self.remaining_time(state.tissue, params)])])

    def agent_mask(self, state: TissueState, params: EnvParams) -> Bool[Array, " A"]:
        """The living cells."""
        return state.tissue.alive

    def is_truncated(self, state: TissueState, params: EnvParams) -> Bool[Array, ""]:
        """Never: at the horizon the tissue is scored, and nothing comes after it."""
        return jnp.zeros((), bool)

    def discount_factor(self, params: EnvParams) -> Float[Array, ""]:
        """1: only the final tissue counts."""
        return jnp.ones((), jnp.result_type(float))

    def successor(self, state: TissueState, next_state: TissueState, params: EnvParams) -> Int[Array, " A"]:
        """A living cell keeps its slot, as mother too; -1 for empty slots and cells that died."""
        slots = jnp.arange(self.capacity, dtype=jnp.int32)
        return jnp.where(state.tissue.alive & next_state.events.kept, slots, -1)

    def inherits(self, state: TissueState, next_state: TissueState, params: EnvParams) -> Int[Array, " A"]:
        """A cell has its own memory, a newborn that of its mother (of the one alive at the step's start)."""
        return jnp.where(next_state.tissue.alive, next_state.events.ancestor, -1)

    # -- scores -----------------------------------------------------------------------------------------------------

    def event_log_prob(
        self, state: TissueState, action: PyTree, next_state: TissueState, params: EnvParams
    ) -> Float[Array, " A"]:
        """Log-probability of the divisions recorded in `next_state`, under the hazards that `action` sets.

        A chance to divide at rate r over dt succeeds with p = 1 - exp(-r dt). Each agent answers for its own chances
        and for those of the daughters born during the step, whose rate is inherited. A cell for which no slot was left,
        because cells before it had filled them, could change nothing: its chance is left out, taken or not.

        Args:
            state: where the step began.
            action: `[A, ...]`, as for `step`; the result is differentiable in it.
            next_state: where the step ended.

        Raises:
            UserError: the environment has no events whose probability an action sets.
        """
        if not self.scores_events:
            raise UserError(f"{self.name}: no event here is sampled at a rate that an action sets; use mode='hazard'")
        action, _ = self.legal_action(action, params)
        rate = self.write_action(state.tissue, action, params).division_rate
        exposure = jnp.maximum(rate, 0.0) * params.dt
        divisions = next_state.events.divisions.astype(rate.dtype)
        survivals = (next_state.events.trials - next_state.events.divisions).astype(rate.dtype)
        # Slots without a cell were written too, and have neither divisions nor survivals.
        return divisions * jax_morph.ad_utils.safe_log(-jnp.expm1(-exposure)) - survivals * exposure

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


def scored_divisions(after: jax_morph.BaseState) -> tuple[Bool[Array, " A"], Bool[Array, " A"]]:
    """The cells whose chance to divide in a macro-step could make a difference, and those of them that divided.

    The simulator serves dividing cells in the order of their slots until no slot is free. Whether a cell had one is
    decided before it draws, so leaving out those that had none does not bias the score.
    """
    eligible = after.divide_eligible > 0.5
    divided = after.divided > 0.5
    served_before = jnp.cumsum(divided) - divided
    free = after.n_cells - jnp.sum(eligible)
    scored = eligible & (served_before < free)
    return scored, divided & scored
