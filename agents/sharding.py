"""Environments over several devices: what jitted code may say about it, and nothing happens where there is one device.

Which devices there are is JAX's own setting (`jax.set_mesh`); the loop sets it. XLA moves the data and adds up.
"""

from __future__ import annotations

import jax
from jax.sharding import PartitionSpec
from jaxtyping import PyTree

ENV_AXIS = "env"
"""The mesh's axis along which environments lie."""


def device_count() -> int:
    """Over how many devices environments are spread in what is being traced; 1 where no mesh is set."""
    return dict(jax.sharding.get_abstract_mesh().shape).get(ENV_AXIS, 1)


def spread(tree: PyTree, axis: int = 0) -> PyTree:
    """The same arrays with one axis, of environments or of what comes from them, spread over the devices.

    Args:
        tree: arrays in jitted code.
        axis: which; the others are whole on every device.
    """
    if device_count() == 1:
        return tree
    spec = PartitionSpec(*[None] * axis, ENV_AXIS)
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, spec), tree)


def replicated(tree: PyTree) -> PyTree:
    """The same arrays, whole on every device."""
    if device_count() == 1:
        return tree
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec()), tree)
