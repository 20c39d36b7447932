"""L-BFGS whose curvature pairs come from one minibatch each, and whose failed searches leave everything in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, PyTree

MEMORY = 10
SEARCH_STEPS = 20
FLAT = 1e-6
"""A relative rise of the objective that counts as none: below it the search goes by slopes (Hager and Zhang 2006)."""


class LBFGSState(NamedTuple):
    """The pairs of differences, and where the last search ended (its gradient there belongs to its minibatch)."""

    memory: Any
    search: Any


def lbfgs() -> optax.GradientTransformationExtraArgs:
    """L-BFGS with a zoom line search (Nocedal and Wright 2006, algorithms 7.4, 7.5, 3.5, 3.6), both optax's.

    On a fixed objective it is `optax.lbfgs()`. Where every step has its own minibatch, the difference of two steps'
    gradients mixes the change of parameters with the change of minibatch and is no curvature; here a pair is the
    difference along one search, on that search's minibatch, and only a pair of positive curvature is kept. A search
    that ends higher, not finite or where it began moves nothing and starts the memory afresh.
    """
    direction = optax.scale_by_lbfgs(MEMORY)
    line = optax.scale_by_zoom_linesearch(SEARCH_STEPS, initial_guess_strategy="one")

    def init(params: PyTree) -> LBFGSState:
        return LBFGSState(direction.init(params), line.init(params))

    def update(updates: PyTree, state: Any, params: PyTree = None, **search: Any) -> tuple[PyTree, LBFGSState]:
        memory = _one_batch(state, updates, params)
        step, memory = direction.update(updates, memory, params)
        down = jax.tree.map(jnp.negative, step)
        step, end = line.update(down, state.search, params, **search)
        worked = _any(lambda p, s: p + s != p, params, step) & ~_any(lambda x: ~jnp.isfinite(x), (step, end.grad))
        worked &= end.value <= search["value"] + FLAT * jnp.abs(search["value"])  # and is a number
        found = LBFGSState(memory, end)
        kept = jax.tree.map(lambda new, old: jnp.where(worked, new, old), found, init(params))
        return jax.tree.map(lambda x: jnp.where(worked, x, 0), step), kept

    return optax.GradientTransformationExtraArgs(init, update)


def _one_batch(state: LBFGSState, grads: PyTree, params: PyTree) -> PyTree:
    """The memory, its last point moved so that optax's differences are those of the last search's own minibatch."""
    memory, search = state.memory, state.search
    shifted = jax.tree.map(lambda old, new, end: old + (new - end), memory.updates, grads, search.grad)
    moved = optax.tree.sub(params, memory.params)
    curves = jnp.asarray(optax.tree.vdot(optax.tree.sub(search.grad, memory.updates), moved)) > 0
    keep = lambda old, new: jax.tree.map(lambda x, y: jnp.where(curves, x, y), old, new)  # noqa: E731
    return memory._replace(params=keep(memory.params, params), updates=keep(shifted, grads))


def _any(test: Callable[..., Bool[Array, "..."]], *trees: PyTree) -> Bool[Array, ""]:
    """Whether `test` is true anywhere."""
    return jnp.any(jnp.stack([jnp.any(x) for x in jax.tree.leaves(jax.tree.map(test, *trees))]))
