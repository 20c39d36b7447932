"""The head of actions that are made of parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jaxtyping import Array, Float, PyTree

from ...errors import UserError, unknown
from .head import Head


class CompositeHead(Head):
    """Dict or Tuple: independent heads, each on its own slice of the outputs, so that log-probabilities add up.

    Actions, raw samples and spreads are built like the space: a dict by name, or a tuple. So are masks; a part without
    one is None there, or left out of a dict, and None in place of the whole stands for no mask at all. Slices follow
    the sorted names, the order in which JAX keeps a dict's leaves.

    Attributes:
        parts: a head for each part; they may be composite themselves.
    """

    parts: dict[str, Head] | tuple[Head, ...]

    @property
    def _named(self) -> list[tuple[Any, Head]]:
        return sorted(self.parts.items()) if isinstance(self.parts, dict) else list(enumerate(self.parts))

    @property
    def size(self) -> int:
        return sum(head.size for _, head in self._named)

    def spread(self) -> PyTree:
        parts = [head.spread() for _, head in self._named]
        return None if all(part is None for part in parts) else self._built(parts)

    def mode(self, output, mask=None) -> PyTree:
        return self._built([head.mode(out, legal) for _, head, out, legal in self._sliced(output, mask)])

    def sample(self, key, output, spread, mask=None):
        keys = jax.random.split(key, len(self.parts))
        pairs = [
            head.sample(key_part, out, _part(spread, name), legal)
            for key_part, (name, head, out, legal) in zip(keys, self._sliced(output, mask), strict=True)
        ]
        return self._built([action for action, _ in pairs]), self._built([raw for _, raw in pairs])

    def log_prob(self, raw, output, spread, mask=None) -> Float[Array, "..."]:
        parts = self._sliced(output, mask)
        return _total([head.log_prob(raw[name], out, _part(spread, name), legal) for name, head, out, legal in parts])

    def entropy(self, output, spread, mask=None) -> Float[Array, "..."]:
        parts = self._sliced(output, mask)
        return _total([head.entropy(out, _part(spread, name), legal) for name, head, out, legal in parts])

    def _sliced(self, output: Float[Array, "... size"], mask: PyTree) -> Iterator[tuple[Any, Head, Array, PyTree]]:
        """Each part's name, head, outputs and mask."""
        start, masks = 0, self._masks(mask)
        for name, head in self._named:
            yield name, head, output[..., start : start + head.size], masks.get(name)
            start += head.size

    def _masks(self, mask: PyTree) -> Mapping:
        """Masks by the names of their parts."""
        if mask is None:
            return {}
        names = [name for name, _ in self._named]
        if isinstance(self.parts, tuple):
            if not isinstance(mask, tuple) or len(mask) != len(names):
                raise UserError(f"the action mask of a Tuple of {len(names)} is a tuple of as many, got {_shown(mask)}")
            return dict(enumerate(mask))
        if not isinstance(mask, Mapping):
            raise UserError(f"the action mask of a Dict is a dict with masks of {', '.join(names)}, got {_shown(mask)}")
        for name in mask:
            if name not in names:
                raise unknown("part of an action in its mask", str(name), names)
        return mask

    def _built(self, values: list) -> PyTree:
        """One value a part, in the structure of the space."""
        if isinstance(self.parts, tuple):
            return tuple(values)
        return {name: value for (name, _), value in zip(self._named, values, strict=True)}


def _part(spread: PyTree, name: str | int) -> PyTree:
    return None if spread is None else spread[name]


def _total(parts: list[Float[Array, "..."]]) -> Float[Array, "..."]:
    return sum(parts[1:], start=parts[0])


def _shown(mask: PyTree) -> str:
    kind = getattr(mask, "dtype", None)
    if kind is not None:
        return f"{kind}{list(mask.shape)}"
    return f"a {type(mask).__name__} of {len(mask)}" if isinstance(mask, (tuple, list, dict)) else type(mask).__name__
