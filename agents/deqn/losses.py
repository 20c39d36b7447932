"""What a residual learner minimises: named terms, their shape and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ...errors import UserError, unknown
from ..agent import check_applies, check_range
from ..steppers import Terms

if TYPE_CHECKING:
    from .agent import DEQN

LOSSES = ("square", "huber")
ADAPTIVE = ("annealing", "relobralo")
ANCHORS = ("value", "slope")


class Balance(NamedTuple):
    """The state of adaptive weights, one entry a term.

    Attributes:
        weights: what each term counts.
        first, last: losses of the first iteration and of the one before.
        started: whether there was one.
    """

    weights: Float[Array, " E"]
    first: Float[Array, " E"]
    last: Float[Array, " E"]
    started: Array


def pairs(value: Any, what: str, width: int) -> tuple[tuple[Any, ...], ...]:
    """A mapping as sorted, hashable pairs `(name, number, ...)`.

    Args:
        value: a mapping from names to `width` numbers; None is empty; pairs stay as they are.
        what: the option, for messages.
        width: numbers a name.

    Raises:
        UserError: something else.
    """
    if value is None:
        return ()
    if isinstance(value, tuple):
        return value
    shape = "a number" if width == 1 else f"{width} numbers"
    if not isinstance(value, Mapping):
        raise UserError(f"{what} must map names to {shape}, got {value!r}")
    found = []
    for name, entry in sorted(value.items()):
        numbers = (entry,) if width == 1 else entry
        try:
            found.append((str(name), *(float(number) for number in numbers)))
        except (TypeError, ValueError):
            raise UserError(f"{what}[{name!r}] must be {shape}, got {entry!r}") from None
        if len(found[-1]) != width + 1 or not all(jnp.isfinite(jnp.asarray(found[-1][1:]))):
            raise UserError(f"{what}[{name!r}] must be {shape}, got {entry!r}")
    return tuple(found)


def check_loss(agent: DEQN) -> None:
    """Refuse what does not go together, whatever the environment."""
    if agent.loss not in LOSSES:
        raise unknown("loss", str(agent.loss), LOSSES)
    check_applies("huber_delta", agent.huber_delta, agent.loss == "huber", "with loss='square'; use loss='huber'")
    check_range("huber_delta", agent.huber_delta, 1e-12)
    if agent.adaptive is not None and agent.adaptive not in ADAPTIVE:
        raise unknown("adaptive weights", str(agent.adaptive), ADAPTIVE)
    given = "without adaptive weights; set adaptive='annealing' or 'relobralo'"
    check_applies("adaptive_decay", agent.adaptive_decay, agent.adaptive is not None, given)
    for name in ("temperature", "lookback"):
        check_applies(name, getattr(agent, name), agent.adaptive == "relobralo", "without adaptive='relobralo'")
    check_range("adaptive_decay", agent.adaptive_decay, 0, 1)
    check_range("temperature", agent.temperature, 1e-12)
    check_range("lookback", agent.lookback, 0, 1)
    for name in agent.anchor:
        if name not in ANCHORS:
            raise unknown("anchor", str(name), ANCHORS)
    if len(set(agent.anchor)) < len(agent.anchor):
        raise UserError(f"anchor = {agent.anchor!r} names a term twice; to count one more, set its weight in weights")
    for name, low, high in agent.bounds:
        if not low < high:
            raise UserError(f"bounds[{name!r}] = [{low:g}, {high:g}] must have its lower end first")
    for name, weight in agent.weights:
        if weight < 0:
            raise UserError(f"weights[{name!r}] = {weight:g} must be at least 0")
    product = agent.expectation == "all_in_one"
    check_applies("loss", "huber" if agent.loss == "huber" else None, not product, _PRODUCT)
    if product and agent.stepper.needs_residuals:
        raise UserError(f"stepper {agent.stepper.name!r} does not apply {_PRODUCT}")


_PRODUCT = "with expectation='all_in_one', whose loss is a product of two estimates and no square; use 'quadrature'"


def assemble(
    agent: DEQN,
    names: tuple[str, ...],
    first: Mapping[str, Array],
    second: Mapping[str, Array] | None,
    importance: Float[Array, " B"] | None,
    weights: Float[Array, " E"],
) -> Terms:
    """Named losses, and the residuals whose mean squares they are.

    Args:
        agent: the options.
        names: of the terms, in the order of `weights`.
        first: residuals `[B, ...]` of each term; `[1]` where a term is of the batch as a whole.
        second: of an independent group of draws, for a product; None squares `first`.
        importance: weight of each state; None is 1.
        weights: of each term.
    """
    losses, residuals = {}, {}
    for i, name in enumerate(names):
        g, weight = first[name], weights[i].astype(first[name].dtype)
        if importance is not None and g.shape[:1] == importance.shape:
            weight = weight * importance.reshape(-1, *(1,) * (g.ndim - 1)).astype(g.dtype)
        if second is not None:
            losses[f"loss/{name}"] = jnp.mean(weight * g * second[name])
            continue
        if agent.loss == "huber":
            g = _huber_root(g, agent.huber_delta)
        residuals[name] = jnp.sqrt(weight) * g
        losses[f"loss/{name}"] = jnp.mean(weight * g**2)
    return Terms(losses, None if second is not None else residuals, {})


def _huber_root(g: Array, delta: Float[Array, ""] | None) -> Array:
    """The signed root of Huber's function g^2 within delta, 2 delta |g| - delta^2 beyond (Huber 1964)."""
    delta = jnp.asarray(1.0 if delta is None else delta, g.dtype)
    size = jnp.abs(g)
    outside = size > delta
    beyond = jnp.sqrt(2 * delta * jnp.where(outside, size, delta) - delta**2)
    return jnp.where(outside, jnp.sign(g) * beyond, g)


def first_balance(count: int) -> Balance:
    """Every one of `count` terms counts 1 at first."""
    one = jnp.ones(count, jnp.result_type(float))
    return Balance(one, one, one, jnp.zeros((), bool))


def fixed_weights(agent: DEQN, names: tuple[str, ...]) -> Float[Array, " E"]:
    """What `weights` says, 1 for the others."""
    given = dict(agent.weights)
    return jnp.asarray([given.get(name, 1.0) for name in names], jnp.result_type(float))


def rebalance(
    agent: DEQN, balance: Balance, losses: Float[Array, " E"], gradients: PyTree | None, key: Array
) -> Balance:
    """New adaptive weights.

    "annealing": learning-rate annealing by gradient statistics (Wang, Teng and Perdikaris 2021, SIAM J. Sci. Comput.
    43, algorithm 1): each term's weight moves towards max |grad L_1| / mean |grad L_i|, where L_1 is the first term,
    whose weight stays 1. "relobralo": relative loss balancing with random look-back (Bischof and Kraus 2021,
    arXiv:2110.09813, eq. 10-13).

    Args:
        agent: the options.
        balance: the weights so far.
        losses: unweighted, of each term.
        gradients: of each unweighted loss, leaves `[E, ...]`; only "annealing" reads them.
        key: for the look-back.
    """
    tiny = jnp.finfo(losses.dtype).tiny
    if agent.adaptive == "annealing":
        leaves = [jnp.abs(leaf).reshape(losses.shape[0], -1) for leaf in jax.tree.leaves(gradients)]
        size = sum(leaf.shape[1] for leaf in leaves)
        mean = sum(leaf.sum(1) for leaf in leaves) / size
        largest = jnp.max(jnp.stack([leaf[0].max() for leaf in leaves]))
        decay = 0.1 if agent.adaptive_decay is None else agent.adaptive_decay
        wanted = jnp.where(mean > 0, largest / jnp.maximum(mean, tiny), balance.weights).at[0].set(1.0)
        weights = decay * balance.weights + (1 - decay) * wanted
    else:
        decay = 0.999 if agent.adaptive_decay is None else agent.adaptive_decay
        first = jnp.where(balance.started, balance.first, losses)
        last = jnp.where(balance.started, balance.last, losses)
        kept = jax.random.bernoulli(key, 0.999 if agent.lookback is None else agent.lookback)
        history = jnp.where(kept, balance.weights, _relative(agent, losses, first))
        weights = decay * history + (1 - decay) * _relative(agent, losses, last)
    first = jnp.where(balance.started, balance.first, losses)
    return Balance(weights.astype(balance.weights.dtype), first, losses, jnp.ones((), bool))


def _relative(agent: DEQN, losses: Float[Array, " E"], before: Float[Array, " E"]) -> Float[Array, " E"]:
    """E softmax(L_i(t) / (T L_i(t'))): terms that fell less count more."""
    temperature = 0.1 if agent.temperature is None else agent.temperature
    # a term that was at zero has fallen no further, whatever it is now: the ratio stays finite
    ratio = jnp.minimum(losses / jnp.maximum(temperature * before, jnp.finfo(losses.dtype).tiny), 1e6)
    return losses.shape[0] * jax.nn.softmax(ratio)
