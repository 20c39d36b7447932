"""Training: the loop that joins environments and learners, its configuration, its records and its command line."""

from typing import TYPE_CHECKING

from .._lazy import lazy_attributes

if TYPE_CHECKING:
    from .config import Config
    from .loop import create_train_state, make_train_step
    from .run import Run
    from .settings import load_config
    from .trainer import resume, train, train_from_config

__all__ = [
    "Config",
    "Run",
    "create_train_state",
    "load_config",
    "make_train_step",
    "resume",
    "train",
    "train_from_config",
]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "Config": ".config",
        "Run": ".run",
        "create_train_state": ".loop",
        "load_config": ".settings",
        "make_train_step": ".loop",
        "resume": ".trainer",
        "train": ".trainer",
        "train_from_config": ".trainer",
    },
)
