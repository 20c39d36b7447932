"""Spaces: gymnax's own, the ones it lacks, and their stacking over agents."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces as gymnax_spaces
from gymnax.environments.spaces import Box, Discrete, Space, Tuple
from jaxtyping import Array, Bool, PyTree

from ..errors import UserError

__all__ = [
    "Box",
    "Dict",
    "Discrete",
    "MultiDiscrete",
    "Space",
    "Tuple",
    "clip_to",
    "flat_size",
    "middle",
    "stack_space",
]


class MultiDiscrete(Space):
    """An array of independent discrete choices, with gymnax's space interface.

    Args:
        nvec: number of choices at each position; any shape.
        dtype: an integer type.
    """

    def __init__(self, nvec: Any, dtype: Any = jnp.int32):
        self.nvec = np.asarray(nvec, dtype=int)
        if self.nvec.size == 0 or np.any(self.nvec < 1):
            raise UserError(f"MultiDiscrete needs at least one choice at every position, got nvec = {nvec}")
        self.shape = self.nvec.shape
        self.dtype = jnp.dtype(dtype)

    def __repr__(self) -> str:
        return f"MultiDiscrete({self.nvec.tolist()}, dtype={self.dtype.name})"

    def sample(self, key: jax.Array) -> jax.Array:
        """A uniform draw at every position."""
        return jax.random.randint(key, self.shape, 0, jnp.asarray(self.nvec), self.dtype)

    def contains(self, x: jax.Array) -> jax.Array:
        """Whether every entry is a choice of its position."""
        x = jnp.asarray(x)
        return jnp.all((x >= 0) & (x < jnp.asarray(self.nvec)))


class Dict(gymnax_spaces.Dict):
    """A dictionary of spaces, with gymnax's space interface; its elements are plain dicts, as learners' actions are.

    JAX orders a dict by its keys and gymnax's own sample, an OrderedDict, as it was made: the two are different trees.
    """

    def sample(self, key: jax.Array) -> dict[str, PyTree]:
        """A draw of every part."""
        keys = jax.random.split(key, self.num_spaces)
        return {name: part.sample(k) for k, (name, part) in zip(keys, self.spaces.items(), strict=True)}

    def contains(self, x: dict[str, PyTree]) -> jax.Array:
        """Whether every part is in its space."""
        return jnp.all(jnp.stack([jnp.asarray(part.contains(x[name])) for name, part in self.spaces.items()]))


def stack_space(space: Space, num_agents: int) -> Space:
    """`num_agents` copies of one agent's space along a new first axis; the space itself when there is one agent.

    Raises:
        UserError: the space's type cannot be stacked.
    """
    if num_agents == 1:
        return space
    if isinstance(space, Discrete):
        return MultiDiscrete(np.full(num_agents, space.n), space.dtype)
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(np.broadcast_to(space.nvec, (num_agents, *space.shape)), space.dtype)
    if isinstance(space, Box):
        shape = (num_agents, *space.shape)
        low, high = (jnp.broadcast_to(jnp.asarray(bound), shape) for bound in (space.low, space.high))
        return Box(low, high, shape, space.dtype)
    if isinstance(space, gymnax_spaces.Dict):
        return Dict({name: stack_space(inner, num_agents) for name, inner in space.spaces.items()})
    if isinstance(space, Tuple):
        return Tuple([stack_space(inner, num_agents) for inner in space.spaces])
    raise UserError(f"a space of type {type(space).__name__} cannot be stacked over agents")


def clip_to(space: Space, action: PyTree) -> tuple[PyTree, Bool[Array, ""]]:
    """The nearest element of `space`, and whether `action` lay outside.

    A NaN stays a NaN and counts as outside: it is not turned into a legal action.

    Raises:
        UserError: the action is of another shape.
    """
    if isinstance(space, gymnax_spaces.Dict):
        parts = {name: clip_to(inner, action[name]) for name, inner in space.spaces.items()}
        return {name: part[0] for name, part in parts.items()}, _any([part[1] for part in parts.values()])
    if isinstance(space, Tuple):
        pairs = [clip_to(inner, part) for inner, part in zip(space.spaces, action, strict=True)]
        return tuple(pair[0] for pair in pairs), _any([pair[1] for pair in pairs])
    if isinstance(space, Box):
        low, high = jnp.asarray(space.low), jnp.asarray(space.high)
    else:
        low, high = jnp.zeros((), space.dtype), jnp.asarray(getattr(space, "nvec", getattr(space, "n", 0))) - 1
    action = jnp.asarray(action)
    if action.shape != tuple(space.shape):
        raise UserError(f"an action of a {type(space).__name__} has shape {tuple(space.shape)}, got {action.shape}")
    clipped = jnp.clip(action, low.astype(action.dtype), high.astype(action.dtype))
    return clipped, jnp.any(~((action >= low) & (action <= high)))


def middle(space: Space) -> PyTree:
    """The middle of a Box's bounds, and 0 where choices are discrete; of each part where there are parts.

    Raises:
        UserError: a space of another type.
    """
    if isinstance(space, gymnax_spaces.Dict):
        return {name: middle(inner) for name, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(middle(inner) for inner in space.spaces)
    if isinstance(space, Box):
        between = (jnp.asarray(space.low) + jnp.asarray(space.high)) / 2
        return jnp.broadcast_to(between, space.shape).astype(jnp.result_type(float))
    if isinstance(space, Discrete | MultiDiscrete):
        return jnp.zeros(space.shape, space.dtype)
    raise UserError(f"a space of type {type(space).__name__} has no middle")


def flat_size(space: Space) -> int:
    """Length of one element as a flat vector of numbers."""
    if isinstance(space, gymnax_spaces.Dict):
        return sum(flat_size(inner) for inner in space.spaces.values())
    if isinstance(space, Tuple):
        return sum(flat_size(inner) for inner in space.spaces)
    return int(np.prod(space.shape, dtype=int))


def _any(flags: list[Bool[Array, ""]]) -> Bool[Array, ""]:
    return jnp.any(jnp.stack(flags))
