"""What environments of other libraries need to be ours: strong types, and settings that compare by value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


def strong(tree: PyTree) -> PyTree:
    """The same leaves as strongly typed arrays."""
    return jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.asarray(x).dtype), tree)


def like(tree: PyTree, pattern: PyTree) -> PyTree:
    """The same leaves as strongly typed arrays of `pattern`'s types."""
    return jax.tree.map(lambda new, old: jnp.asarray(new).astype(old.dtype), tree, pattern)


def hashable(value: Any) -> Any:
    """Something that compares and hashes as `value` does: arrays by their contents, containers entry by entry.

    What cannot be hashed otherwise stands for itself by its text.
    """
    if isinstance(value, (jax.Array, np.ndarray)):
        array = np.asarray(value)
        return (array.shape, str(array.dtype), array.tobytes())
    if isinstance(value, Mapping):
        return ("mapping", *sorted((repr(name), hashable(entry)) for name, entry in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(hashable, value))
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


class ByConfiguration:
    """Equality and hash by what an environment was made from, so that equal ones share one compilation."""

    def _configuration(self) -> tuple:
        """Hashable: all that distinguishes it."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._configuration() == other._configuration()

    def __hash__(self) -> int:
        return hash((type(self), self._configuration()))
