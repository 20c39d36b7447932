"""Shocks of many households: one aggregate state, and a state of its own for each."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..shocks import ShockLaw


class HouseholdShocks(ShockLaw):
    """The aggregate state's next index and each household's own, by inversion of uniform numbers `[1 + H]`.

    The first number inverts a row of `aggregate`, the others each household's own row. Samples are independent. Rule
    "exact" gives all households one common number, from every interval on which all of them stay in one state. A
    household's condition depends on its own next state and on aggregates that are known today but for z', so its own
    marginal law is all it needs, and the rule is exact for each of them; joint events of several are not integrated.

    Attributes:
        aggregate: `[Z, Z]`, rows summing to 1.
        own: `[z, z', s, s']`, the chance of s' for a household in s when the aggregate state goes from z to z'.
        households: H; 0 where all of them are integrated out.
    """

    aggregate: Float[Array, "Z Z"]
    own: Float[Array, "Z Z S S"]
    households: int = eqx.field(static=True)
    rules: ClassVar[tuple[str, ...]] = ("exact",)

    def sample(self, key: Array, state: Any) -> Float[Array, " H+1"]:
        return jax.random.uniform(key, (1 + self.households,), self.own.dtype)

    def nodes(self, rule: str, order: int, state: Any) -> tuple[Float[Array, "J H+1"], Float[Array, " J"]]:
        self.check_rule(rule)
        first, chance = _intervals(self.aggregate[state.z])
        if not self.households:
            return first[:, None], chance
        rows = self.own[state.z]
        rows = rows[:, state.own] if self.households == 1 else rows
        common, width = jax.vmap(_intervals)(rows.reshape(rows.shape[0], -1, rows.shape[-1]))
        first = jnp.broadcast_to(first[:, None], common.shape)
        nodes = jnp.stack([first] + [common] * self.households, axis=-1)
        return nodes.reshape(-1, nodes.shape[-1]), (chance[:, None] * width).ravel()

    def next_aggregate(self, state: Any, shock: Float[Array, " H+1"]) -> Int[Array, ""]:
        """z'."""
        return invert(self.aggregate[state.z], shock[0])

    def next_own(self, state: Any, z: Int[Array, ""], shock: Float[Array, " H+1"]) -> Int[Array, " H"]:
        """Each household's own next state, given z'."""
        return invert(self.own[state.z, z][state.own], shock[1:])


def invert(rows: Float[Array, "... S"], u: Float[Array, "..."]) -> Int[Array, "..."]:
    """The state that a uniform number picks from each row."""
    return (u[..., None] >= jnp.cumsum(rows, axis=-1)[..., :-1]).sum(axis=-1).astype(jnp.int32)


def _intervals(rows: Float[Array, "*R S"]) -> tuple[Float[Array, " J"], Float[Array, " J"]]:
    """Middles and widths of the intervals of [0, 1] on which every row picks one state."""
    cuts = jnp.sort(jnp.clip(jnp.cumsum(rows, axis=-1)[..., :-1].ravel(), 0, 1))
    edges = jnp.concatenate([jnp.zeros(1, cuts.dtype), cuts, jnp.ones(1, cuts.dtype)])
    return (edges[1:] + edges[:-1]) / 2, jnp.diff(edges)
