"""Training: the loop that joins environments and learners, its configuration, its records and its command line."""

from typing import TYPE_CHECKING

from .._lazy import lazy_attributes

if TYPE_CHECKING:
    from .config import Config
    from .loop import create_train_state, make_train_step
    from .run import Run
    from .trainer import train, train_from_config

__all__ = ["Config", "Run", "create_train_state", "make_train_step", "train", "train_from_config"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "Config": ".config",
        "Run": ".run",
        "create_train_state": ".loop",
        "make_train_step": ".loop",
        "train": ".trainer",
        "train_from_config": ".trainer",
    },
)
