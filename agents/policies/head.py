"""What an action head is: from a network's unbounded outputs to a distribution over actions."""

from __future__ import annotations

import abc

import equinox as eqx
from jaxtyping import Array, Bool, Float, PyTree

from ...errors import UserError


class Head(eqx.Module):
    """How outputs become a distribution over one agent's actions; leading axes are batch."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many network outputs it takes."""

    @abc.abstractmethod
    def spread(self) -> PyTree:
        """The initial value of its own trainable leaves, one a Box (log standard deviations); None without a Box."""

    @abc.abstractmethod
    def mode(self, output: Array, mask: PyTree = None) -> PyTree:
        """The deterministic action."""

    @abc.abstractmethod
    def sample(self, key: Array, output: Array, spread: PyTree, mask: PyTree = None) -> tuple[PyTree, PyTree]:
        """An action, and the raw sample that `log_prob` takes."""

    @abc.abstractmethod
    def log_prob(self, raw: PyTree, output: Array, spread: PyTree, mask: PyTree = None) -> Float[Array, "..."]:
        """Log density, with respect to the environment's units, of the action made from `raw`."""

    @abc.abstractmethod
    def entropy(self, output: Array, spread: PyTree, mask: PyTree = None) -> Float[Array, "..."]:
        """Entropy of the action's distribution in the environment's units."""


def event_sum(x: Float[Array, "..."], axes: int) -> Float[Array, "..."]:
    """The sum over the last `axes` axes, which are those of one action."""
    return x.sum(axis=tuple(range(x.ndim - axes, x.ndim)))


def check_mask(mask: Bool[Array, "..."] | None, kind: str, shape: tuple[int, ...]) -> None:
    """Refuse an action mask that does not belong to an action.

    Args:
        mask: what the environment gave.
        kind: how the message names the action.
        shape: of one agent's mask.

    Raises:
        UserError: it is made of parts, or of another shape.
    """
    if mask is None:
        return
    given = getattr(mask, "shape", None)
    if given is None or given[len(given) - len(shape) :] != shape:
        got = f"a {type(mask).__name__}" if given is None else f"{mask.dtype}{list(given)}"
        raise UserError(f"the action mask of a {kind} is bool{['...', *shape]} or None, got {got}".replace("'", ""))
