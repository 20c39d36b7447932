"""Steps that see the gradient of each named loss by itself."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree, UInt32

from ...errors import UserError, unknown
from ..agent import check_applies
from .gradient import Gradient, GradientState, descended, limited
from .stepper import Objective, Stepper, Terms

PER_TERM = ("pcgrad", "mao")
SEED = 0


class PerTermState(NamedTuple):
    """The optimizer's state (for "mao" with an axis of terms), and the key data of the coming random orders."""

    inner: GradientState
    key: UInt32[Array, "..."]


class PerTerm(Stepper):
    """One gradient per named loss, combined so that no loss drowns another.

    "pcgrad" (Yu et al. 2020, "Gradient surgery for multi-task learning", algorithm 1): the gradient of each loss is
    projected, one after another in random order, onto the normal plane of every other loss's original gradient that it
    conflicts with (negative inner product); the optimizer follows the mean over losses.

    "mao" (multi-adaptive optimisation): every loss has Adam moments of its own, and the step is the mean of the
    preconditioned gradients, so that losses of any size weigh the same. A loss whose gradient is zero still counts in
    the mean.

    Args:
        method: "pcgrad" or "mao".
        optimizer: what follows the mean of "pcgrad": as in `Gradient`, without line searches; Adam unless set.
        max_norm: limit on the global norm of the mean of "pcgrad", or of each loss's gradient in "mao"; or None.
        weight_decay: as in `Gradient`.

    Raises:
        UserError: an unknown method, an optimizer with "mao" or with a line search, or what `Gradient` refuses.
    """

    method: str = eqx.field(static=True)
    inner: Gradient

    def __init__(
        self,
        method: str,
        optimizer: str | optax.GradientTransformation | None = None,
        max_norm: float | None = None,
        weight_decay: float | None = None,
    ):
        if method not in PER_TERM:
            raise unknown("stepper per term", str(method), PER_TERM)
        check_applies("optimizer", optimizer, method != "mao", "with 'mao', whose moments are Adam's; use 'pcgrad'")
        self.method = method
        self.inner = Gradient("adam" if optimizer is None else optimizer, max_norm, weight_decay)
        if self.inner.searches:
            raise UserError(
                f"optimizer {self.inner.name!r} does not apply with stepper {method!r}, whose step is not the gradient "
                "of any function to search along; use 'adam'"
            )

    @property
    def name(self) -> str:
        return self.method

    @property
    def needs_residuals(self) -> bool:
        return False

    @property
    def uses_rate(self) -> bool:
        return True

    @property
    def default_rate(self) -> float | None:
        return None

    def init(self, params: PyTree, num_terms: int | None = None) -> PerTermState:
        key = jax.random.key_data(jax.random.key(SEED))
        if self.method == "pcgrad":
            return PerTermState(self.inner.init(params), key)
        if num_terms is None:
            raise UserError(
                "stepper 'mao' has moments for each loss, and this agent does not say how many it has; "
                "use 'pcgrad', or pass num_terms to init"
            )
        per_term = jax.tree.map(lambda p: jnp.zeros((num_terms, *p.shape), p.dtype), params)
        return PerTermState(GradientState(jax.vmap(self.inner.tx.init)(per_term), jnp.int32(0)), key)

    def step(
        self, objective: Objective, params: PyTree, state: PerTermState, rate: Float[Array, ""]
    ) -> tuple[PyTree, PerTermState, Terms]:
        grads, terms = term_gradients(objective, params)
        gram = jnp.stack([jnp.tensordot(g, g, _all_but_first(g)) for g in jax.tree.leaves(grads)]).sum(axis=0)
        metrics = {"policy/conflicts": _conflicts(gram)}
        if self.method == "pcgrad":
            key, key_orders = jax.random.split(jax.random.wrap_key_data(state.key))
            shares = projected(gram, random_orders(key_orders, gram.shape[0])).mean(axis=0)
            mean = jax.tree.map(lambda g: jnp.tensordot(shares, g, 1), grads)
            metrics["loss/grad_norm"] = optax.tree.norm(mean)
            params, inner = self.inner.move(params, mean, state.inner, rate)
            state = PerTermState(inner, jax.random.key_data(key))
        else:
            metrics["loss/grad_norm"] = jnp.sqrt(gram.sum())
            params, inner = self._mean_of_steps(params, grads, state.inner, rate)
            state = state._replace(inner=inner)
        return params, state, terms._replace(aux={**terms.aux, **metrics})

    def _mean_of_steps(self, params: PyTree, grads: PyTree, state: GradientState, rate: Float[Array, ""]):
        """One step of "mao"; leaves of `grads` start with the axis of terms."""
        had = jax.tree.leaves(state.inner)[0].shape[0]
        if had != jax.tree.leaves(grads)[0].shape[0]:
            raise ValueError(f"the state is of {had} losses, the objective has {jax.tree.leaves(grads)[0].shape[0]}")
        if self.inner.max_norm is not None:
            grads = jax.vmap(limited, (0, None))(grads, self.inner.max_norm)
        updates, inner = jax.vmap(self.inner.tx.update)(grads, state.inner)
        mean = jax.tree.map(lambda u: u.mean(axis=0), updates)
        return descended(params, mean, rate, self.inner.weight_decay), GradientState(inner, state.count + 1)


def term_gradients(objective: Objective, params: PyTree) -> tuple[PyTree, Terms]:
    """The gradient of every loss, along a new first axis in the order of `Terms.losses`, by one vectorised pass."""

    def stacked(p):
        terms = objective(p)
        return jnp.stack(list(terms.losses.values())), terms

    losses, pull, terms = jax.vjp(stacked, params, has_aux=True)
    return jax.vmap(pull)(jnp.eye(losses.size, dtype=losses.dtype))[0], terms


def random_orders(key: Array, count: int) -> Int[Array, "K K"]:
    """For each of `count` losses, an order in which it meets all of them (itself included, which changes nothing)."""
    return jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(key, count))


def projected(gram: Float[Array, "K K"], orders: Int[Array, "K K"]) -> Float[Array, "K K"]:
    """The projected gradients of PCGrad in terms of the original ones: row i holds the weights of loss i's.

    Args:
        gram: inner products of the original gradients.
        orders: row i is the order in which loss i meets the others.
    """

    def one(own, order):
        def meet(weights, other):
            inner = weights @ gram[other]
            conflict = (inner < 0) & (other != own)
            # where it conflicts, the other gradient is not zero
            step = jnp.where(conflict, inner / jnp.where(conflict, gram[other, other], 1), 0)
            return weights.at[other].add(-step), None

        return jax.lax.scan(meet, jnp.zeros_like(gram[0]).at[own].set(1), order)[0]

    return jax.vmap(one)(jnp.arange(gram.shape[0]), orders)


def _conflicts(gram: Float[Array, "K K"]) -> Float[Array, ""]:
    """The share of pairs of losses whose gradients have a negative inner product; 0 where there is one loss."""
    count = gram.shape[0]
    return jnp.sum(gram < 0) / jnp.asarray(max(count * (count - 1), 1), gram.dtype)


def _all_but_first(g: Array) -> tuple[list[int], list[int]]:
    axes = list(range(1, g.ndim))
    return axes, axes
