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
from . import quadrature

DRAWS_TRIED = 16


class ShockLaw(eqx.Module):
    """A distribution that can be sampled and integrated against.

    `sample` and `nodes` see the state because a Markov chain's row depends on it. `rules` names the integration rules
    that apply, the usual one first; asking for another one is an error that lists them.
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
        """Nodes `[J, ...]` and weights `[J]`, summing to 1, for an expectation given `state`.

        Args:
            rule: one that `check_rule` accepts.
            order: nodes a dimension of "gauss_hermite", points of "qmc"; rules for which `takes_order` is false do not
                read it.
            state: this period's.
        """

    def check_rule(self, rule: str) -> None:
        """Raise `UserError` when `rule` is none of this law's."""
        if rule not in self.rules:
            raise unknown(f"integration rule for {type(self).__name__} shocks", rule, self.rules)

    def takes_order(self, rule: str) -> bool:
        """Whether the number of nodes of `rule` can be chosen."""
        return rule not in quadrature.FIXED

    def finest(self) -> tuple[str, int]:
        """The rule and order for a report: the most accurate within the limit on nodes."""
        return self.rules[0], quadrature.FINEST

    @property
    def normals(self) -> int | None:
        """How many standard normal draws a shock is made of; None where it is made of something else."""
        return None

    def from_normal(self, normal: Float[Array, "... d"], size: Float[Array, " d"]) -> Array:
        """The shocks that standard normal draws make, at a share of their own size, their mean kept.

        Args:
            normal: `[..., normals]`.
            size: `[normals]`; 1 is the law itself, 0 its mean for certain.

        Raises:
            UserError: the law is not made of normal draws.
        """
        raise UserError(f"{type(self).__name__} shocks are not made of normal draws")


class Normal(ShockLaw):
    """`d` independent standard normal draws; an economy scales them itself.

    Rules, from `quadrature`: "gauss_hermite", the product rule; "monomial3" and "monomial5", with 2d and 2d^2 + 1
    nodes; "qmc", `order` quasi-random points.
    """

    d: int = eqx.field(static=True)
    rules: ClassVar[tuple[str, ...]] = tuple(quadrature.RULES)

    def sample(self, key: Array, state: Any) -> Float[Array, " d"]:
        return jax.random.normal(key, (self.d,), jnp.result_type(float))

    def draws(self, key: Array, count: int, state: Any) -> Float[Array, "count d"]:
        return jax.random.normal(key, (count, self.d), jnp.result_type(float))

    def nodes(self, rule: str, order: int, state: Any) -> tuple[Float[Array, "J d"], Float[Array, " J"]]:
        self.check_rule(rule)
        nodes, weights = quadrature.normal_nodes(rule, self.d, order)
        return jnp.asarray(nodes, jnp.result_type(float)), jnp.asarray(weights, jnp.result_type(float))

    def finest(self) -> tuple[str, int]:
        return quadrature.finest(self.d)

    @property
    def normals(self) -> int:
        return self.d

    def from_normal(self, normal: Float[Array, "... d"], size: Float[Array, " d"]) -> Float[Array, "... d"]:
        return size * normal


class Lognormal(ShockLaw):
    """`d` independent lognormal draws, `exp(mu + sigma eps)`; an entry with `sigma` 0 is the constant `exp(mu)`.

    Attributes:
        mu: `[d]`, means of the logs; -sigma^2 / 2 makes the mean 1.
        sigma: `[d]`, standard deviations of the logs.
    """

    mu: Float[Array, " d"]
    sigma: Float[Array, " d"]
    rules: ClassVar[tuple[str, ...]] = Normal.rules

    def sample(self, key: Array, state: Any) -> Float[Array, " d"]:
        return jnp.exp(self.mu + self.sigma * self._normal().sample(key, state))

    def nodes(self, rule: str, order: int, state: Any) -> tuple[Float[Array, "J d"], Float[Array, " J"]]:
        self.check_rule(rule)
        nodes, weights = self._normal().nodes(rule, order, state)
        return jnp.exp(self.mu + self.sigma * nodes), weights

    def finest(self) -> tuple[str, int]:
        return self._normal().finest()

    @property
    def normals(self) -> int:
        return self.mu.shape[0]

    def from_normal(self, normal: Float[Array, "... d"], size: Float[Array, " d"]) -> Float[Array, "... d"]:
        return jnp.exp(self.mu + self.sigma**2 * (1 - size**2) / 2 + size * self.sigma * normal)

    def _normal(self) -> Normal:
        return Normal(self.mu.shape[0])


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


class Mixture(ShockLaw):
    """One of several laws, chosen at random: a point mass and a lognormal, say.

    Rule "components": each component by the first of its own rules, weighted by its probability. Any rule of a
    component's works too: components without it take their first.

    Attributes:
        components: laws whose draws have one shape.
        probabilities: `[M]`, summing to 1.
    """

    components: tuple[ShockLaw, ...]
    probabilities: Float[Array, " M"]
    rules: ClassVar[tuple[str, ...]] = ("components",)

    def __check_init__(self):
        if not self.components or jnp.shape(self.probabilities) != (len(self.components),):
            raise UserError(
                f"a Mixture of {len(self.components)} components needs one probability each, got probabilities of "
                f"shape {jnp.shape(self.probabilities)}"
            )

    def sample(self, key: Array, state: Any) -> Array:
        key_which, *keys = jax.random.split(key, 1 + len(self.components))
        draws = [law.sample(k, state) for law, k in zip(self.components, keys, strict=True)]
        self._check_shapes(draws)
        return jnp.stack(draws)[_draw(key_which, self.probabilities)]

    def nodes(self, rule: str, order: int, state: Any) -> tuple[Array, Float[Array, " J"]]:
        self.check_rule(rule)
        parts = [law.nodes(self._rule_of(law, rule), order, state) for law in self.components]
        self._check_shapes([nodes[0] for nodes, _ in parts])
        weights = [self.probabilities[i] * weights for i, (_, weights) in enumerate(parts)]
        return jnp.concatenate([nodes for nodes, _ in parts]), jnp.concatenate(weights)

    def check_rule(self, rule: str) -> None:
        known = dict.fromkeys([*self.rules, *(name for law in self.components for name in law.rules)])
        if rule not in known:
            raise unknown("integration rule for Mixture shocks", rule, known)

    def takes_order(self, rule: str) -> bool:
        return any(law.takes_order(self._rule_of(law, rule)) for law in self.components)

    def finest(self) -> tuple[str, int]:
        """The first component's with an order or a choice of rules: all that have one are of one dimension."""
        return next((law.finest() for law in self.components if law.finest()[0] != "exact"), super().finest())

    def _rule_of(self, law: ShockLaw, rule: str) -> str:
        try:
            law.check_rule(rule)
        except UserError:
            return law.rules[0]
        return rule

    def _check_shapes(self, draws: list[Array]) -> None:
        shapes = [jnp.shape(draw) for draw in draws]
        if len(set(shapes)) > 1:
            raise UserError(f"the components of a Mixture must draw shocks of one shape, they draw {shapes}")


def directions(moved: Callable[[Float[Array, " d"]], Float[Array, " n"]], d: int) -> Float[np.ndarray, "d r"]:
    """The combinations of `d` standard normal draws that a smooth function depends on, as orthonormal columns.

    With U the columns, `moved(e) = moved(U U' e)`, and U' e are r standard normal draws: expectations of what depends
    on `moved` need nodes in r dimensions only, `nodes @ U.T`. U spans the function's derivatives at random draws; where
    the equation fails at one of them, or no direction can be left out, it is the identity.

    Example:
        >>> directions(lambda e: e[:1] + e[1:], 2).shape
        (2, 1)
    """
    draws = jnp.asarray(np.random.default_rng(0).standard_normal((DRAWS_TRIED, d)), jnp.result_type(float))
    slopes = np.asarray(jax.jit(jax.vmap(jax.jacfwd(moved)))(draws)).reshape(-1, d)
    if not np.all(np.isfinite(slopes)):
        return np.eye(d)
    _, sizes, rows = np.linalg.svd(slopes, full_matrices=False)
    rounding = 1e3 * float(jnp.finfo(draws.dtype).eps)
    found = rows[sizes > rounding * sizes.max()].T
    if found.shape[1] in (0, d):
        return np.eye(d)
    both = jnp.stack([draws, draws @ (found @ found.T).astype(draws.dtype)])
    whole, part = (np.asarray(x) for x in jax.jit(jax.vmap(jax.vmap(moved)))(both))
    return found if np.allclose(whole, part, rtol=rounding, atol=rounding * np.abs(whole).max()) else np.eye(d)


def no_shock() -> Discrete:
    """The law of an economy without chance: one value, 0."""
    return Discrete(jnp.zeros(1, jnp.result_type(float)), jnp.ones(1, jnp.result_type(float)))


def _draw(key: Array, probabilities: Float[Array, " J"]) -> Array:
    """An index drawn by inversion: one uniform number, no logarithms."""
    u = jax.random.uniform(key, dtype=probabilities.dtype)
    index = jnp.searchsorted(jnp.cumsum(probabilities), u, side="right")
    return jnp.minimum(index, probabilities.shape[0] - 1).astype(jnp.int32)
