"""Populations whose agents have names: who holds which slot, and what each of them is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import jax
import numpy as np
from jaxtyping import Bool, Int, PyTree


class Roster:
    """The living of one episode by name. A name is role, slot of birth, and how many were born there before.

    Names are never used twice, and an agent that moves to another slot keeps its own.

    Attributes:
        slots: the slot that each living agent holds, in the order of their births.
    """

    def __init__(self, role: str, alive: Bool[np.ndarray, " A"]):
        self._role = role
        self._born = [0] * len(alive)
        self.slots: dict[str, int] = {}
        self._admit(np.flatnonzero(alive).tolist())

    def advance(self, successor: Int[np.ndarray, " A"], alive: Bool[np.ndarray, " A"], *, births: bool) -> None:
        """Let one period pass.

        Args:
            successor: the slot that each slot's agent holds afterwards; -1 where it is gone.
            alive: the slots that hold a living agent afterwards.
            births: whether living slots that are nobody's successor get a name.
        """
        moved = {name: int(successor[slot]) for name, slot in self.slots.items()}
        self.slots = {name: slot for name, slot in moved.items() if slot >= 0 and alive[slot]}
        if births:
            taken = set(self.slots.values())
            self._admit(slot for slot in np.flatnonzero(alive).tolist() if slot not in taken)

    def _admit(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.slots[agent_name(self._role, slot, self._born[slot])] = slot
            self._born[slot] += 1


def agent_name(role: str, slot: int, generation: int) -> str:
    """The name of the agent that was born in a slot as its `generation`-th, counted from 0."""
    return f"{role}_{slot}_{generation}"


def split_info(info: Mapping[str, PyTree], num_agents: int) -> tuple[dict[str, Any], dict[str, PyTree]]:
    """What a step tells everybody, as Python numbers or arrays, and what it tells each slot, `[A, ...]`.

    An entry is each slot's own when there are several agents and all its arrays begin with the agent axis.
    """
    shared, own = {}, {}
    for name, entry in info.items():
        leaves = jax.tree.leaves(entry)
        if num_agents > 1 and leaves and all(leaf.shape[:1] == (num_agents,) for leaf in leaves):
            own[name] = entry
        else:
            shared[name] = jax.tree.map(plain, entry)
    return shared, own


def plain(leaf: np.ndarray) -> Any:
    """A Python number, or an array that may be written to."""
    return leaf.item() if np.ndim(leaf) == 0 else np.array(leaf)


def to_element(space: gymnasium.Space, value: PyTree) -> Any:
    """A copy of `value` with the types of `space`'s elements: NumPy arrays that may be written to."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: to_element(inner, value[name]) for name, inner in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(to_element(inner, part) for inner, part in zip(space.spaces, value, strict=True))
    element = np.array(value, space.dtype)
    return element[()] if isinstance(space, gymnasium.spaces.Discrete) else element
