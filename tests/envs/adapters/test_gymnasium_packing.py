"""Packing keeps every bit of every type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equimorph.envs.adapters._gymnasium_packing import Packing
from equimorph.errors import UserError


@pytest.mark.parametrize("rows", [1, 3, 300])
def test_packing_keeps_every_bit(rows):
    rng = np.random.default_rng(0)
    tree = {
        "flags": rng.random((rows, 3)) < 0.5,
        "bytes": rng.integers(0, 256, (rows, 5), np.uint8),
        "short": rng.integers(-9, 9, rows, np.int16),
        "half": rng.random((rows, 3)).astype(np.float16),
        "brain": jnp.asarray(rng.random((rows, 3)), jnp.bfloat16),
        "float": np.array([np.nan, -0.0, np.inf] * rows, np.float32).reshape(rows, 3),
        "whole": (rng.integers(-9, 9, rows, np.int32), np.zeros((rows, 0), np.int32)),
        "key": jax.random.split(jax.random.key(1), rows),
        "one": np.int32(-7),
    }
    packing = Packing(jax.tree.map(jnp.asarray, tree))
    words = jax.jit(packing.pack)(tree)
    assert words.shape == (packing.num_words,)
    bits = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    on_the_host = packing.read(np.array(words))
    for back in (on_the_host, jax.jit(packing.unpack)(words)):
        for mine, leaf in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True):
            mine, leaf = np.asarray(bits(mine)), np.asarray(bits(jnp.asarray(leaf)))
            assert (mine.shape, mine.dtype) == (leaf.shape, leaf.dtype)
            assert mine.tobytes() == leaf.tobytes()
    assert all(leaf.flags.writeable and leaf.flags.aligned for leaf in jax.tree.leaves(on_the_host))
    assert packing.write(tree).tobytes() == np.asarray(words).tobytes()
    with pytest.raises(UserError, match="expected an array"):
        packing.pack({**tree, "one": jnp.float32(0)})
