"""First-order steps: any optax transformation, a global-norm limit and a traced learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from ...errors import UserError, unknown
from .stepper import Objective, Stepper, Terms

OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "adam": lambda: optax.scale_by_adam(eps=1e-8),
    "adamw": lambda: optax.scale_by_adam(eps=1e-8),
    "sgd": optax.identity,
    "momentum": lambda: optax.trace(0.9),
    "rmsprop": optax.scale_by_rms,
    "lion": optax.scale_by_lion,
}


class GradientState(NamedTuple):
    """optax's state, and how many steps were taken."""

    inner: PyTree
    count: Int[Array, ""]


class Gradient(Stepper):
    """`params <- params - rate * tx(grad)`, the gradient first scaled down to `max_norm` where it is longer.

    Args:
        optimizer: a name in `OPTIMIZERS`, or an optax transformation without its learning rate (`optax.scale_by_...`):
            the rate and the sign of descent are applied here, so that the rate can change without recompiling.
        max_norm: limit on the global norm of the gradient, or None.
        weight_decay: decoupled weight decay per unit of learning rate (Loshchilov and Hutter 2019); "adamw" has 1e-4
            unless told.

    Raises:
        UserError: an unknown name, or a transformation that already descends.
    """

    tx: optax.GradientTransformation = eqx.field(static=True)
    max_norm: float | None = eqx.field(static=True)
    weight_decay: float = eqx.field(static=True)

    def __init__(
        self,
        optimizer: str | optax.GradientTransformation = "adam",
        max_norm: float | None = None,
        weight_decay: float | None = None,
    ):
        if isinstance(optimizer, str):
            if optimizer not in OPTIMIZERS:
                raise unknown("optimizer", optimizer, OPTIMIZERS)
            self.tx = _named(optimizer)
        else:
            _check_ascends(optimizer)
            self.tx = optimizer
        if max_norm is not None and not (_is_number(max_norm) and max_norm > 0):
            raise UserError(f"max_norm = {max_norm!r} must be a number above 0, or None for no limit")
        if weight_decay is not None and not (_is_number(weight_decay) and weight_decay >= 0):
            raise UserError(f"weight_decay = {weight_decay!r} must be a number of at least 0")
        self.max_norm = None if max_norm is None else float(max_norm)
        self.weight_decay = (1e-4 if optimizer == "adamw" else 0.0) if weight_decay is None else float(weight_decay)

    def init(self, params: PyTree) -> GradientState:
        return GradientState(self.tx.init(params), jnp.int32(0))

    def step(
        self, objective: Objective, params: PyTree, state: GradientState, rate: Float[Array, ""]
    ) -> tuple[PyTree, GradientState, Terms]:
        def total(p):
            terms = objective(p)
            return sum(terms.losses.values()), terms

        grads, terms = jax.grad(total, has_aux=True)(params)
        norm = optax.tree.norm(grads)
        if self.max_norm is not None:
            factor = jnp.minimum(1.0, self.max_norm / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
            grads = jax.tree.map(lambda g: g * factor, grads)
        updates, inner = self.tx.update(grads, state.inner, params)
        decay = self.weight_decay
        params = jax.tree.map(lambda p, u: p - rate.astype(p.dtype) * (u + decay * p), params, updates)
        return params, GradientState(inner, state.count + 1), terms._replace(aux={**terms.aux, "loss/grad_norm": norm})


_CACHE: dict[str, optax.GradientTransformation] = {}


def _named(name: str) -> optax.GradientTransformation:
    """One transformation object per name: equal steppers then share one compilation."""
    return _CACHE.setdefault(name, OPTIMIZERS[name]())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_ascends(tx: Any) -> None:
    if not isinstance(tx, optax.GradientTransformation):
        raise UserError(f"optimizer must be a name or an optax transformation, got {type(tx).__name__}")
    one = jnp.ones(2)
    update, _ = tx.update(one, tx.init(one), one)
    if bool(jnp.any(jnp.asarray(update) < 0)):
        raise UserError(
            "this optax transformation already contains a learning rate and the sign of descent; pass the form without "
            "them, such as optax.scale_by_adam() instead of optax.adam(1e-3), and set the agent's learning_rate"
        )
