"""The head of two choices of which the second follows from the first."""

from __future__ import annotations

import distrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .discrete import CategoricalHead
from .head import Head


class ConditionalHead(Head):
    """A Dict of two Discrete actions, the second drawn given the first: p(a, b) = p(a) p(b | a).

    The outputs are the first one's logits, and then the second one's for each choice of the first. Raw samples are the
    action itself; a mask is a dict, None for a part without one. The second one's mask is the same whatever the first.
    `mode` is the likeliest first choice, and the likeliest second one given it.

    Attributes:
        first, second: their names in the action.
        first_size, second_size: number of choices, n and m.
    """

    first: str = eqx.field(static=True)
    second: str = eqx.field(static=True)
    first_size: int = eqx.field(static=True)
    second_size: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.first_size * (1 + self.second_size)

    def spread(self) -> None:
        return None

    def mode(self, output, mask=None) -> dict[str, Int[Array, "..."]]:
        leading = jnp.asarray(self._first(output, mask).mode(), jnp.int32)
        following = jnp.asarray(self._second(output, leading, mask).mode(), jnp.int32)
        return {self.first: leading, self.second: following}

    def sample(self, key, output, spread, mask=None):
        key_first, key_second = jax.random.split(key)
        leading = self._first(output, mask).sample(seed=key_first).astype(jnp.int32)
        following = self._second(output, leading, mask).sample(seed=key_second).astype(jnp.int32)
        action = {self.first: leading, self.second: following}
        return action, action

    def log_prob(self, raw, output, spread, mask=None) -> Float[Array, "..."]:
        leading, following = raw[self.first], raw[self.second]
        given = jnp.asarray(self._second(output, leading, mask).log_prob(following))
        return jnp.asarray(self._first(output, mask).log_prob(leading)) + given

    def entropy(self, output, spread, mask=None) -> Float[Array, "..."]:
        """H(a) + sum_a p(a) H(b | a)."""
        first, legal = self._first(output, mask), self._legal(mask, self.second)
        every = CategoricalHead(self.second_size).entropy(
            self._tables(output), None, None if legal is None else legal[..., None, :]
        )
        return jnp.asarray(first.entropy()) + jnp.sum(jnp.asarray(first.probs) * every, axis=-1)

    def _first(self, output: Float[Array, "... size"], mask: PyTree) -> distrax.Categorical:
        head = CategoricalHead(self.first_size)
        return head._distribution(output[..., : self.first_size], self._legal(mask, self.first))

    def _second(self, output: Float[Array, "... size"], leading: Int[Array, "..."], mask: PyTree):
        chosen = jnp.take_along_axis(self._tables(output), leading[..., None, None], axis=-2)[..., 0, :]
        return CategoricalHead(self.second_size)._distribution(chosen, self._legal(mask, self.second))

    def _tables(self, output: Float[Array, "... size"]) -> Float[Array, "... n m"]:
        rest = output[..., self.first_size :]
        return rest.reshape(*rest.shape[:-1], self.first_size, self.second_size)

    def _legal(self, mask: PyTree, name: str) -> Array | None:
        return None if mask is None else mask.get(name)
