"""Laws of exogenous shocks: how to sample them and how to integrate over them."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..errors import UserError, unknown

MAX_NODES = 4096


class ShockLaw(eqx.Module):
    """A distribution that can be sampled and integrated against.

    `sample` and `nodes` see the state because a Markov chain's row depends on it. `rules` names the integration rules
    that apply; asking for another one is an error that lists them.
    """

    rules: ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def sample(self, key: Array, state: Any) -> Array:
        """One draw."""

    def draws(self, key: Array, count: int, state: Any) -> Array:
        """`count` independent draws, `[count, ...]`."""
        return jax.vmap(lambda k: self.sample(k, state))(jax.random.split(key, count))

    @abc.abstractmethod
    def nodes(self, rule: str, order: int, state: Any) -> tuple[Array, Float[Array, " J"]]:
        """Nodes `[J, ...]` and weights `[J]`, summing to 1, for an expectation given `state`."""

    def check_rule(self, rule: str) -> None:
        """Raise `UserError` when `rule` is none of this law's."""
        if rule not in self.rules:
            raise unknown(f"integration rule for {type(self).__name__} shocks", rule, self.rules)


class Normal(ShockLaw):
    """`d` independent standard normal draws; an economy scales them itself.

    Rule "gauss_hermite": the product rule with `order` nodes a dimension, exact for polynomials of degree
    `2 order - 1` in each (Judd 1998, Numerical Methods in Economics, section 7.2 and 7.5).
    """

    d: int = eqx.field(static=True)
    rules: ClassVar[tuple[str, ...]] = ("gauss_hermite",)

    def sample(self, key: Array, state: Any) -> Float[Array, " d"]:
        return jax.random.normal(key, (self.d,), jnp.result_type(float))

    def draws(self, key: Array, count: int, state: Any) -> Float[Array, "count d"]:
        return jax.random.normal(key, (count, self.d), jnp.result_type(float))

    def nodes(self, rule: str, order: int, state: Any) -> tuple[Float[Array, "J d"], Float[Array, " J"]]:
        self.check_rule(rule)
        if order < 1:
            raise UserError(f"quadrature needs an order of at least 1, got {order}")
        if order**self.d > MAX_NODES:
            raise UserError(
                f"gauss_hermite with order {order} in {self.d} dimensions needs {order**self.d} nodes, above the limit "
                f"of {MAX_NODES}: lower the order, or use expectation='all_in_one'"
            )
        x, w = np.polynomial.hermite_e.hermegauss(order)
        grid = np.stack(np.meshgrid(*[x] * self.d, indexing="ij"), axis=-1).reshape(-1, self.d)
        weights = np.prod(np.stack(np.meshgrid(*[w] * self.d, indexing="ij"), axis=-1), axis=-1).reshape(-1)
        dtype = jnp.result_type(float)
        return jnp.asarray(grid, dtype), jnp.asarray(weights / weights.sum(), dtype)


class Discrete(ShockLaw):
    """Independent draws from finitely many values.

    Attributes:
        values: `[J, ...]`.
        probabilities: `[J]`, summing to 1.
    """

    values: Array
    probabilities: Float[Array, " J"]
    rules: ClassVar[tuple[str, ...]] = ("exact",)

    def sample(self, key: Array, state: Any) -> Array:
        return self.values[_draw(key, self.probabilities)]

    def nodes(self, rule: str, order: int, state: Any) -> tuple[Array, Float[Array, " J"]]:
        self.check_rule(rule)
        return self.values, self.probabilities


class Chain(ShockLaw):
    """A Markov chain; the shock is next period's index.

    Attributes:
        transition: `[S, S]`, rows summing to 1.
        index: reads this period's index, an integer scalar, from the state.
    """

    transition: Float[Array, "S S"]
    index: Callable[[Any], Array] = eqx.field(static=True)
    rules: ClassVar[tuple[str, ...]] = ("exact",)

    def sample(self, key: Array, state: Any) -> Array:
        return _draw(key, self.transition[self.index(state)])

    def nodes(self, rule: str, order: int, state: Any) -> tuple[Array, Float[Array, " S"]]:
        self.check_rule(rule)
        return jnp.arange(self.transition.shape[0], dtype=jnp.int32), self.transition[self.index(state)]


def _draw(key: Array, probabilities: Float[Array, " J"]) -> Array:
    """An index drawn by inversion: one uniform number, no logarithms."""
    u = jax.random.uniform(key, dtype=probabilities.dtype)
    index = jnp.searchsorted(jnp.cumsum(probabilities), u, side="right")
    return jnp.minimum(index, probabilities.shape[0] - 1).astype(jnp.int32)
