"""Environments: economies and tissues, and the base classes that they share."""

from typing import TYPE_CHECKING

from .._lazy import lazy_attributes

if TYPE_CHECKING:
    from .economy import Decision, Economy
    from .environment import Environment
    from .tissue import Tissue

__all__ = ["Decision", "Economy", "Environment", "Tissue"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {"Decision": ".economy", "Economy": ".economy", "Environment": ".environment", "Tissue": ".tissue"},
)
