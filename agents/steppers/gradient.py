"""Steps along a gradient: any optax transformation, a global-norm limit and a traced learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from ...errors import UserError, unknown
from .lbfgs import lbfgs
from .stepper import Objective, Stepper, Terms, is_number


def _muon() -> optax.GradientTransformation:
    # Matrices move by 0.2 root mean square per unit of rate, which is about what Adam's other leaves move by (Liu et
    # al. 2025, arXiv:2502.16982), so that one learning rate serves both. The sign of descent is taken back off.
    return optax.chain(optax.contrib.muon(1.0, consistent_rms=0.2), optax.scale(-1.0))


OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "adam": lambda: optax.scale_by_adam(eps=1e-8),
    "adamw": lambda: optax.scale_by_adam(eps=1e-8),
    "nadam": lambda: optax.scale_by_adam(eps=1e-8, nesterov=True),
    "radam": lambda: optax.scale_by_radam(eps=1e-8),
    "adabelief": optax.scale_by_belief,
    "sgd": optax.identity,
    "momentum": lambda: optax.trace(0.9),
    "rmsprop": optax.scale_by_rms,
    "lion": optax.scale_by_lion,
    "muon": _muon,
}
"""Optimizers that take a learning rate."""

LINE_SEARCHES: dict[str, Callable[[], optax.GradientTransformation]] = {"lbfgs": lbfgs}
"""Those that choose the length of each step themselves."""


class GradientState(NamedTuple):
    """optax's state, and how many steps were taken."""

    inner: PyTree
    count: Int[Array, ""]


class Gradient(Stepper):
    """`params <- params - rate * tx(grad)`, the gradient first scaled down to `max_norm` where it is longer.

    "lbfgs" and transformations with a line search move by what the search finds instead, whatever the rate: each search
    is over the same minibatch that gave the gradient.

    Args:
        optimizer: a name in `OPTIMIZERS` or `LINE_SEARCHES`, or an optax transformation without its learning rate
            (`optax.scale_by_...`): the rate and the sign of descent are applied here, so that the rate can change
            without recompiling. A transformation with a line search descends by itself, as `optax.lbfgs()` does.
        max_norm: limit on the global norm of the gradient, or None. Not with a line search.
        weight_decay: decoupled weight decay per unit of learning rate (Loshchilov and Hutter 2019); "adamw" has 1e-4
            unless told. Not with a line search.

    Raises:
        UserError: an unknown name, a transformation that already descends, or a limit or decay on a line search.
    """

    name: str = eqx.field(static=True)
    tx: optax.GradientTransformation = eqx.field(static=True)
    searches: bool = eqx.field(static=True)
    max_norm: float | None = eqx.field(static=True)
    weight_decay: float = eqx.field(static=True)

    def __init__(
        self,
        optimizer: str | optax.GradientTransformation = "adam",
        max_norm: float | None = None,
        weight_decay: float | None = None,
    ):
        if isinstance(optimizer, str):
            if optimizer not in {**OPTIMIZERS, **LINE_SEARCHES}:
                raise unknown("optimizer", optimizer, (*OPTIMIZERS, *LINE_SEARCHES))
            self.name, self.tx, self.searches = optimizer, _named(optimizer), optimizer in LINE_SEARCHES
        else:
            self.name, self.tx, self.searches = "optax transformation", optimizer, _searches(optimizer)
        if max_norm is not None and not (is_number(max_norm) and max_norm > 0):
            raise UserError(f"max_norm = {max_norm!r} must be a number above 0, or None for no limit")
        if weight_decay is not None and not (is_number(weight_decay) and weight_decay >= 0):
            raise UserError(f"weight_decay = {weight_decay!r} must be a number of at least 0")
        for option, value in {"max_norm": max_norm, "weight_decay": weight_decay}.items():
            if self.searches and value is not None:
                raise UserError(
                    f"{option} = {value!r} does not apply with stepper {self.name!r}, whose line search would not see "
                    "it; leave it out, or use 'adam'"
                )
        self.max_norm = None if max_norm is None else float(max_norm)
        self.weight_decay = (1e-4 if optimizer == "adamw" else 0.0) if weight_decay is None else float(weight_decay)

    @property
    def needs_residuals(self) -> bool:
        return False

    @property
    def uses_rate(self) -> bool:
        return not self.searches

    @property
    def default_rate(self) -> float | None:
        return None

    def init(self, params: PyTree, num_terms: int | None = None) -> GradientState:
        return GradientState(self.tx.init(params), jnp.int32(0))

    def step(
        self, objective: Objective, params: PyTree, state: GradientState, rate: Float[Array, ""]
    ) -> tuple[PyTree, GradientState, Terms]:
        def total(p):
            terms = objective(p)
            return sum(terms.losses.values()), terms

        (value, terms), grads = jax.value_and_grad(total, has_aux=True)(params)
        norm = optax.tree.norm(grads)
        after, state = self.move(params, grads, state, rate, value=value, value_fn=lambda p: total(p)[0])
        return after, state, terms._replace(aux={**terms.aux, "loss/grad_norm": norm})

    def move(
        self, params: PyTree, grads: PyTree, state: GradientState, rate: Float[Array, ""], **search: Any
    ) -> tuple[PyTree, GradientState]:
        """New parameters and state, given the gradient to follow.

        Args:
            params, grads, state: as they are before the step.
            rate: learning rate.
            **search: `value` and `value_fn`, for transformations that look at the objective.
        """
        if self.max_norm is not None:
            grads = limited(grads, self.max_norm)
        tx = optax.with_extra_args_support(self.tx)
        updates, inner = tx.update(grads, state.inner, params, grad=grads, **search)
        if self.searches:
            params = optax.apply_updates(params, updates)
        else:
            params = descended(params, updates, rate, self.weight_decay)
        return params, GradientState(inner, state.count + 1)


def limited(grads: PyTree, max_norm: float) -> PyTree:
    """A gradient scaled down to global norm `max_norm` where it is longer."""
    norm = optax.tree.norm(grads)
    factor = jnp.minimum(1.0, max_norm / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    return jax.tree.map(lambda g: g * factor, grads)


def descended(params: PyTree, updates: PyTree, rate: Float[Array, ""], decay: float) -> PyTree:
    """`params - rate * (updates + decay * params)`."""
    return jax.tree.map(lambda p, u: p - rate.astype(p.dtype) * (u + decay * p), params, updates)


_CACHE: dict[str, optax.GradientTransformation] = {}


def _named(name: str) -> optax.GradientTransformation:
    """One transformation object per name: equal steppers then share one compilation."""
    return _CACHE.setdefault(name, {**OPTIMIZERS, **LINE_SEARCHES}[name]())


def _searches(tx: Any) -> bool:
    """Whether an optax transformation has a line search; one with the wrong sign is refused.

    It is tried at x = (1, 1) on half the square of x.
    """
    if not isinstance(tx, optax.GradientTransformation):
        raise UserError(f"optimizer must be a name or an optax transformation, got {type(tx).__name__}")
    evaluated = []

    def half_square(x):
        evaluated.append(x)
        return jnp.sum(x**2) / 2

    @jax.jit  # operation by operation, a line search takes seconds
    def first(one):
        update = optax.with_extra_args_support(tx).update
        return update(one, tx.init(one), one, value=jnp.ones_like(one[0]), grad=one, value_fn=half_square)[0]

    descends = bool(jnp.any(first(jnp.ones(2)) < 0))
    if evaluated and not descends:
        raise UserError("this optax line search goes uphill; put optax.scale(-1.0) before it, or use 'lbfgs'")
    if descends and not evaluated:
        raise UserError(
            "this optax transformation already contains a learning rate and the sign of descent; pass the form without "
            "them, such as optax.scale_by_adam() instead of optax.adam(1e-3), and set the agent's learning_rate"
        )
    return bool(evaluated)
