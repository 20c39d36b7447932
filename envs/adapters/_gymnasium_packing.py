"""Many small arrays as one: leaving the device costs by the array, not by the byte."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, UInt32

from ...errors import UserError

# Words up to which one kernel that does everything is the cheapest.
_FUSED = 256


def join(parts: list[UInt32[Array, " part"]]) -> UInt32[Array, " words"]:
    """One behind the other, inside a compiled function."""
    size = sum(part.size for part in parts)
    if not parts:
        return jnp.zeros(0, jnp.uint32)
    if size <= _FUSED:
        return jnp.concatenate(parts)
    if jax.default_backend() != "cpu":
        # Fused with what computes them, every word would first look for the part that it belongs to.
        return jnp.concatenate(jax.lax.optimization_barrier(parts))
    # XLA hands independent work to other threads on the CPU, and for arrays of this size that costs more than the work
    # does. Updates, each in place of the one before, have an order.
    words, start = jnp.zeros(size, jnp.uint32), 0
    for part in parts:
        words = jax.lax.dynamic_update_slice(words, part, (start,))
        start += part.size
    return words


class _Place(NamedTuple):
    """Where a leaf lies among the words, and what it is."""

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: np.dtype
    key_type: Any  # the kind of random key that the bits are of, or None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Packing:
    """A pytree of arrays side by side in one array of 32-bit words, bit by bit.

    Args:
        tree: arrays, or their shapes and types.
    """

    def __init__(self, tree: PyTree):
        leaves, self.treedef = jax.tree.flatten(tree)
        self.types = [(leaf.shape, leaf.dtype) for leaf in leaves]
        bits = [jax.eval_shape(_bits, leaf) for leaf in leaves]
        places: dict[int, _Place] = {}
        start = 0
        # The widest first, so that on the host each leaf is aligned to its own type.
        for index in sorted(range(len(leaves)), key=lambda i: -bits[i].dtype.itemsize):
            dtype = np.dtype(bits[index].dtype)
            stop = start + -(-bits[index].size * dtype.itemsize // 4)
            key_type = None if bits[index].dtype == leaves[index].dtype else leaves[index].dtype
            places[index] = _Place(start, stop, bits[index].shape, dtype, key_type)
            start = stop
        self.num_words = start
        self._order = list(places)
        self._places = [places[index] for index in range(len(leaves))]
        self._views = [(4 * place.start, place.shape, place.dtype) for place in self._places]

    def pack(self, tree: PyTree) -> UInt32[Array, " words"]:
        """The words of `tree`, inside a compiled function.

        Raises:
            UserError: its structure, shapes or types are not those of the constructor's tree.
        """
        return join(self.parts(tree))

    def parts(self, tree: PyTree) -> list[UInt32[Array, " part"]]:
        """What `pack` joins."""
        leaves, treedef = jax.tree.flatten(tree)
        if treedef != self.treedef:
            raise UserError(f"expected the structure {self.treedef}, got {treedef}")
        for leaf, (shape, dtype) in zip(leaves, self.types, strict=True):
            if (leaf.shape, leaf.dtype) != (shape, dtype):
                raise UserError(f"expected an array {dtype}{list(shape)}, got {leaf.dtype}{list(leaf.shape)}")
        return [_to_words(_bits(leaves[index])) for index in self._order]

    def unpack(self, words: UInt32[Array, " words"]) -> PyTree:
        """The tree whose words these are, inside a compiled function."""
        leaves = []
        for place in self._places:
            leaf = _from_words(words[place.start : place.stop], place)
            if place.key_type is not None:
                leaf = jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(jnp.empty(0, place.key_type)))
            leaves.append(leaf)
        return jax.tree.unflatten(self.treedef, leaves)

    def read(self, words: np.ndarray, *, scalars: bool = False) -> Any:
        """The tree whose words these are, on the host: views of `words`, which stay writable if it is.

        Args:
            words: uint32[words].
            scalars: arrays without axes become Python numbers.
        """
        leaves = []
        for offset, shape, dtype in self._views:
            leaf = np.ndarray(shape, dtype, words, offset)
            leaves.append(leaf if shape or not scalars else leaf.item())
        return self.treedef.unflatten(leaves)

    def write(self, tree: PyTree) -> np.ndarray:
        """The words of `tree` as `pack` makes them, on the host. Other types than the constructor's are converted."""
        words = np.zeros(self.num_words, np.uint32)
        leaves = self.treedef.flatten_up_to(tree)
        for (offset, shape, dtype), place, leaf in zip(self._views, self._places, leaves, strict=True):
            bits = leaf if place.key_type is None else jax.random.key_data(leaf)
            np.ndarray(shape, dtype, words, offset)[...] = bits
        return words


def _bits(leaf: Array) -> Array:
    """A random key's data; any other array as it is."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.asarray(leaf)


def _to_words(leaf: Array) -> UInt32[Array, " words"]:
    itemsize = leaf.dtype.itemsize
    if itemsize >= 4:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32).ravel()
    unsigned = jnp.uint8 if itemsize == 1 else jnp.uint16
    flat = (leaf.astype(unsigned) if leaf.dtype == bool else jax.lax.bitcast_convert_type(leaf, unsigned)).ravel()
    a_word = 4 // itemsize
    flat = jnp.pad(flat, (0, -flat.size % a_word))
    return jax.lax.bitcast_convert_type(flat.reshape(-1, a_word), jnp.uint32)


def _from_words(words: UInt32[Array, " words"], place: _Place) -> Array:
    itemsize = place.dtype.itemsize
    if itemsize == 4:
        return jax.lax.bitcast_convert_type(words, place.dtype).reshape(place.shape)
    if itemsize > 4:
        return jax.lax.bitcast_convert_type(words.reshape(-1, itemsize // 4), place.dtype).reshape(place.shape)
    unsigned = jnp.uint8 if itemsize == 1 else jnp.uint16
    flat = jax.lax.bitcast_convert_type(words, unsigned).ravel()[: place.size].reshape(place.shape)
    return flat.astype(bool) if place.dtype == bool else jax.lax.bitcast_convert_type(flat, place.dtype)
