"""One run on several devices and hosts: environments spread over them, everything that learns whole on each.

JAX's mesh has one axis, `ENV_AXIS`. XLA partitions the compiled loop along it and adds up what devices have found, so
agents and environments know nothing of it; every random number and every minibatch is the one that a single device
has, and results differ by the order of sums alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from ..agents.sharding import ENV_AXIS, replicated, spread
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.environment import Environment
from ..errors import UserError

SPREAD = ("env_state", "observation", "memory", "running_return", "running_length")
"""Fields of a train state whose leaves have an axis of environments, after the seeds' where there are several."""


def make_mesh(num_devices: int | None = None) -> Mesh:
    """The devices that environments are spread over.

    Args:
        num_devices: how many; None takes all of all processes.

    Raises:
        UserError: there are not so many, or some of a process would be left out.
    """
    devices = jax.devices()
    count = len(devices) if num_devices is None else num_devices
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= len(devices):
        more = ""
        if jax.default_backend() == "cpu":
            more = "; a processor counts as n with XLA_FLAGS=--xla_force_host_platform_device_count=n"
        raise UserError(f"there are {len(devices)} devices here: devices.count can be 1 to that, got {count!r}{more}")
    if jax.process_count() > 1 and count != len(devices):
        raise UserError(
            f"devices.count = {count} leaves out some of the {len(devices)} devices of {jax.process_count()} "
            f"processes; with several processes it must be {len(devices)}, or null"
        )
    return jax.make_mesh((count,), (ENV_AXIS,), (jax.sharding.AxisType.Auto,), devices=devices[:count])


def check_mesh(mesh: Mesh, env: Environment, num_envs: int) -> None:
    """Raise `UserError` unless so many of these environments can be spread over a mesh evenly."""
    count = mesh.size
    if count > 1 and isinstance(env, HostEnvironment):
        raise UserError(f"{env.name} is stepped on the host, which several devices do not make faster; use one device")
    if num_envs % count:
        lower, upper = num_envs // count * count, -(-num_envs // count) * count
        near = f"{lower} or {upper}" if lower else f"{upper}"
        fits = max(n for n in range(1, count) if num_envs % n == 0)
        raise UserError(
            f"num_envs = {num_envs} environments do not divide over {count} devices; num_envs can be {near}, or the "
            f"devices {fits}"
        )


def shard(state: Any, mesh: Mesh) -> Any:
    """A train state on a mesh: environments spread over it, everything else whole on each device.

    Args:
        state: a `TrainState`, the same in every process; what is on the mesh already stays there.
        mesh: of `make_mesh`.

    Raises:
        UserError: its environments do not divide over the devices.
    """
    if mesh.size == 1:
        return state
    num_envs, axis = state.running_return.shape[-1], state.running_return.ndim - 1
    if num_envs % mesh.size:
        raise UserError(
            f"the state's {num_envs} environments do not divide over {mesh.size} devices; make it for "
            f"{-(-num_envs // mesh.size) * mesh.size}"
        )
    return by_field(state, lambda tree: put(tree, _over(mesh, axis)), lambda tree: replicate(tree, mesh))


def check_laid_out(state: Any, mesh: Mesh) -> None:
    """Raise `UserError` unless `shard` has laid a train state out over a mesh."""
    counted = state.running_return
    there = getattr(counted, "sharding", None)
    if there is None or not there.is_equivalent_to(_over(mesh, counted.ndim - 1), counted.ndim):
        raise UserError(
            f"this train state is not laid out over the {mesh.size} devices that make_train_step was given; call the "
            "step with parallel.shard(state, mesh)"
        )


def _over(mesh: Mesh, axis: int) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, ENV_AXIS))


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Arrays that are the same in every process, whole on each device of a mesh."""
    return put(tree, NamedSharding(mesh, PartitionSpec()))


def put(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """Arrays that are the same in every process, laid out over a mesh, of which this process sees its own devices."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        here = np.asarray(leaf)
        return jax.make_array_from_callback(here.shape, sharding, lambda index: here[index])

    return jax.tree.map(one, tree)


def keep_in_place(state: Any) -> Any:
    """In jitted code: what `shard` has laid out is laid out so still."""
    axis = state.running_return.ndim - 1
    return by_field(state, lambda tree: spread(tree, axis), replicated)


def by_field(state: Any, environments: Callable[[PyTree], PyTree], others: Callable[[PyTree], PyTree]) -> Any:
    """A train state with one function applied to what belongs to environments and another to everything else."""
    changed = {name: (environments if name in SPREAD else others)(tree) for name, tree in state._asdict().items()}
    return state._replace(**changed)


def to_host(tree: PyTree) -> PyTree:
    """Whole arrays as NumPy's, in every process, however they were laid out; all processes call it together.

    Keys of random numbers stay keys, on this process's own device.
    """

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        if not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            assert isinstance(leaf.sharding, NamedSharding)
            leaf = jax.jit(lambda x: x, out_shardings=NamedSharding(leaf.sharding.mesh, PartitionSpec()))(leaf)
        return np.array(leaf)

    return jax.tree.map(one, tree)
