"""What a simulator sampled: its record, and log-probabilities of a step's divisions and of a whole episode replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ..environment import EnvParams
from ._steps import BaseState, Model, ad_utils, simulate, trajectory_logp

if TYPE_CHECKING:
    from ..tissue import Tissue, TissueState


def scored_divisions(after: BaseState) -> tuple[Bool[Array, " A"], Bool[Array, " A"]]:
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


def recorded_steps(
    model: Model, key: Array, tissue: BaseState, dt: Array | float, substeps: int
) -> tuple[BaseState, dict[str, Array]]:
    """Run macro-steps of a simulator's model and reduce their events to one record a slot.

    Args:
        model: the simulator's.
        key: split over the macro-steps as `jax_morph.simulate` does.
        tissue: before the first.
        dt: length of each.
        substeps: how many.

    Returns:
        The tissue after the last, and the fields of `equimorph.envs.tissue.Events`.
    """
    slots = jnp.arange(tissue.alive.shape[0], dtype=jnp.int32)
    never = jnp.zeros(slots.shape, bool)

    def macro_step(carry, key):
        before, ancestor, kept = carry
        after = model(before, dt=dt, key=key)
        born = after.born > 0.5 if "born" in after.specs else never
        died = after.death > 0.5 if "death" in after.specs else never
        heir = jnp.where(born, ancestor[after.mother], ancestor) if "mother" in after.specs else ancestor
        trial, divided = scored_divisions(after) if "divided" in after.specs else (never, never)
        kept = kept & after.alive & ~born
        return (after, heir, kept), (trial, divided, ancestor, born, died, heir)

    keys = jax.random.split(key, substeps)
    carry = (tissue, slots, tissue.alive)
    (tissue, last, kept), (trial, divided, owner, born, died, heir) = jax.lax.scan(macro_step, carry, keys)

    def per_slot(owner, flag):
        return jnp.zeros_like(slots).at[owner].add(flag.astype(jnp.int32))

    overflow = tissue.division_overflow > 0.5 if "division_overflow" in tissue.specs else jnp.zeros((), bool)
    return tissue, {
        "trials": per_slot(owner, trial),
        "divisions": per_slot(owner, divided),
        "births": per_slot(heir, born),
        "deaths": per_slot(heir, died),
        "ancestor": last,
        "kept": kept,
        "overflow": overflow,
    }


def division_log_prob(
    env: Tissue, state: TissueState, action: PyTree, next_state: TissueState, params: EnvParams
) -> Float[Array, " A"]:
    """`Tissue.event_log_prob` of a legal action."""
    rate = jnp.maximum(env.write_action(state.tissue, action, params).division_rate, 0.0)
    happened = next_state.events.divisions
    if env.categorical:
        total = jnp.sum(jnp.where(state.tissue.alive, rate, 0.0))
        divided = happened > 0
        return ad_utils.safe_log(jnp.where(divided, rate / jnp.where(divided.any(), total, 1.0), 1.0))
    exposure = rate * params.dt
    divisions = happened.astype(rate.dtype)
    survivals = (next_state.events.trials - happened).astype(rate.dtype)
    # Slots without a cell were written too, and have neither divisions nor survivals.
    return divisions * ad_utils.safe_log(-jnp.expm1(-exposure)) - survivals * exposure


def replayed_log_prob(
    env: Tissue,
    policy: Callable[[Float[Array, "A O"]], PyTree],
    state: TissueState,
    action: PyTree,
    next_state: TissueState,
    happened: Bool[Array, " T"],
    params: EnvParams,
) -> Float[Array, " T"]:
    """`Tissue.trajectory_log_prob`."""
    model = env.model(params)

    def macro_steps(before: TissueState, action: PyTree, key: Array) -> BaseState:
        written = env.write_action(before.tissue, env.legal_action(action, params)[0], params)
        key = jax.random.wrap_key_data(key)
        frames = simulate(model, written, env.substeps, params.dt, key, history=True)
        return jax.tree.map(lambda x: x[1:], frames)

    def after_start(start: Array, frames: Array) -> Array:
        shown = happened.reshape(-1, *(1,) * (frames.ndim - 1))
        frames = jnp.where(shown, frames, jnp.zeros_like(frames))
        return jnp.concatenate([start[:1], frames.reshape(-1, *frames.shape[2:])])

    if env.substeps == 1:
        frames = jax.tree.map(lambda x: x[:, None], next_state.tissue)
    else:
        frames = jax.vmap(macro_steps)(state, action, next_state.key)
    frames = jax.lax.stop_gradient(frames)
    history = jax.tree.map(after_start, state.tissue, frames)
    terms = trajectory_logp(env.closed_loop(policy, params), history, params.dt, checkpoint=True)
    return terms.reshape(-1, env.substeps).sum(axis=1)
