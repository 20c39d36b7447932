"""Heads of discrete actions."""

from __future__ import annotations

import abc

import distrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .head import Head, check_mask, event_sum

ILLEGAL = -1e9
ABSENT = 2 * ILLEGAL
"""Of choices that a position does not have: below ILLEGAL, so that they stay out even where nothing is legal."""


class _ChoiceHead(Head):
    """Choices whose outputs are logits; the raw sample is the choice itself."""

    @abc.abstractmethod
    def _distribution(self, output: Array, mask: Array | None) -> distrax.Categorical: ...

    def spread(self) -> None:
        return None

    def mode(self, output, mask=None) -> Int[Array, "..."]:
        return jnp.asarray(self._distribution(output, mask).mode(), jnp.int32)

    def sample(self, key, output, spread, mask=None):
        action = self._distribution(output, mask).sample(seed=key).astype(jnp.int32)
        return action, action


class CategoricalHead(_ChoiceHead):
    """Discrete(n): the outputs are logits. An all-illegal row is uniform, finite, with zero gradient.

    Masks are bool[..., n].
    """

    n: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.n

    def _distribution(self, output: Float[Array, "... n"], mask: Bool[Array, "... n"] | None):
        check_mask(mask, f"Discrete({self.n})", (self.n,))
        return distrax.Categorical(logits=output if mask is None else jnp.where(mask, output, ILLEGAL))

    def log_prob(self, raw, output, spread, mask=None):
        return self._distribution(output, mask).log_prob(raw)

    def entropy(self, output, spread, mask=None):
        return self._distribution(output, mask).entropy()


class MultiDiscreteHead(_ChoiceHead):
    """MultiDiscrete(nvec): independent choices, the outputs their logits, position after position.

    Masks are bool[..., *shape, n] with n the largest number of choices; what is beyond a position's own is not read. A
    position without a legal choice is uniform over its own, finite, with zero gradient.

    Attributes:
        nvec: number of choices of each position, in the order of the flattened array.
        shape: of the array of choices.
    """

    nvec: tuple[int, ...] = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)

    @property
    def size(self) -> int:
        return sum(self.nvec)

    def _distribution(self, output: Float[Array, "... size"], mask: Bool[Array, "..."] | None):
        counts, most = np.array(self.nvec), max(self.nvec)
        check_mask(mask, f"MultiDiscrete({counts.reshape(self.shape).tolist()})", (*self.shape, most))
        choice = np.arange(most)
        there = choice < counts[:, None]
        if not there.all():
            first = np.cumsum(counts) - counts
            output = output[..., np.where(there, first[:, None] + choice, 0)]
        logits = output.reshape(*output.shape[: output.ndim - (1 if there.all() else 2)], *self.shape, most)
        if mask is not None:
            logits = jnp.where(mask, logits, ILLEGAL)
        return distrax.Categorical(logits=jnp.where(there.reshape(*self.shape, most), logits, ABSENT))

    def log_prob(self, raw, output, spread, mask=None):
        return event_sum(jnp.asarray(self._distribution(output, mask).log_prob(raw)), len(self.shape))

    def entropy(self, output, spread, mask=None):
        return event_sum(jnp.asarray(self._distribution(output, mask).entropy()), len(self.shape))
