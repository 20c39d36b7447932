"""JaxMARL's spaces, one an agent, as the one space that holds each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ...errors import UserError
from .. import spaces


class ActionLayout(NamedTuple):
    """Where each agent's action lies in the largest one's.

    Attributes:
        shapes: of the agents' actions; () where they are discrete.
        types: of the agents' actions.
        choices: how many discrete actions each agent has; None where they are continuous.
        low, high: bounds of the largest continuous action; None where they are discrete.
    """

    shapes: list[tuple[int, ...]]
    types: list[Any]
    choices: list[int] | None
    low: Float[np.ndarray, "..."] | None
    high: Float[np.ndarray, "..."] | None

    def space(self) -> spaces.Space:
        """Ours."""
        if self.choices is not None:
            return spaces.Discrete(max(self.choices))
        assert self.low is not None
        dtype = jnp.result_type(float)
        return spaces.Box(jnp.asarray(self.low, dtype), jnp.asarray(self.high, dtype), self.low.shape, dtype)

    def split(self, agents: Sequence[str], stacked: Array) -> dict[str, Array]:
        """`[A, ...]` as each agent's own action, by name."""
        parts = zip(agents, stacked, self.shapes, self.types, strict=True)
        return {agent: part[tuple(map(slice, shape))].astype(dtype) for agent, part, shape, dtype in parts}


def action_layout(id: str, of_agents: Mapping[str, Any]) -> ActionLayout:
    """How actions of several agents share one space.

    Args:
        id: for messages.
        of_agents: JaxMARL's action space of each agent.

    Raises:
        UserError: discrete next to continuous, another kind, or bounds or shapes that do not fit in one Box.
    """
    kinds = {agent: type(space).__name__ for agent, space in of_agents.items()}
    if set(kinds.values()) not in ({"Discrete"}, {"Box"}):
        shown = ", ".join(f"{agent} {kind}" for agent, kind in kinds.items())
        raise UserError(f"{id}: agents whose actions are all Discrete or all Box can come in, here they are {shown}")
    found = list(of_agents.values())
    types = [space.dtype for space in found]
    if "Discrete" in kinds.values():
        return ActionLayout([()] * len(found), types, [int(space.n) for space in found], None, None)
    shapes = [tuple(space.shape) for space in found]
    shape = _common_shape(id, "actions", shapes)
    bounds = []
    for which in ("low", "high"):
        filled = np.full(shape, np.nan)
        for space, own in zip(found, shapes, strict=True):
            place = tuple(map(slice, own))
            wanted = np.broadcast_to(np.asarray(getattr(space, which), float), own)
            if np.any((filled[place] != wanted) & ~np.isnan(filled[place])):
                raise UserError(f"{id}: agents whose continuous actions have different bounds cannot share one space")
            filled[place] = wanted
        bounds.append(filled)
    return ActionLayout(shapes, types, None, *bounds)


def observation_bounds(id: str, of_agents: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> tuple:
    """Lowest and highest values of what every agent can see, in the largest one's shape.

    Args:
        id: for messages.
        of_agents: the spaces that JaxMARL declares; some have another shape than what its environment shows.
        shapes: of what is shown.

    Raises:
        UserError: shapes that do not fit in one another.
    """
    shape = _common_shape(id, "observations", shapes)
    low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
    for space, own in zip(of_agents, shapes, strict=True):
        place = tuple(map(slice, own))
        if own != shape:  # zeros stand behind what a smaller agent sees
            low, high = np.minimum(low, 0), np.maximum(high, 0)
        lowest, highest = _declared(space, own)
        low[place], high[place] = np.minimum(low[place], lowest), np.maximum(high[place], highest)
    return low, high


def _declared(space: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The bounds that a space declares; none where they are not of what is shown."""
    if hasattr(space, "num_categories"):
        return 0, np.asarray(space.num_categories) - 1
    bounds = [
        np.asarray(getattr(space, name, unbounded), float) for name, unbounded in (("low", -np.inf), ("high", np.inf))
    ]
    if any(bound.shape not in ((), shape) for bound in bounds):
        return -np.inf, np.inf
    return bounds[0], bounds[1]


def _common_shape(id: str, what: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if len(set(shapes)) == 1:
        return shapes[0]
    if any(len(shape) != 1 for shape in shapes):
        raise UserError(f"{id}: {what} of the shapes {', '.join(map(str, shapes))} do not fit in one another")
    return max(shapes)


def pad_to(vector: Array, shape: tuple[int, ...]) -> PyTree:
    """The array in the corner of one of `shape`, zeros behind it."""
    return jnp.pad(vector, [(0, size - own) for size, own in zip(shape, vector.shape, strict=True)])
