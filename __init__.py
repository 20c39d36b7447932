"""Equimorph: economies and growing tissues as one kind of environment, and three learners that share one loop.

Everything here is imported on first use, so that `import equimorph` costs next to nothing.
"""

from typing import TYPE_CHECKING

from ._lazy import lazy_attributes
from .envs import catalog as _catalog  # noqa: F401 - tells Gymnasium of our environments

if TYPE_CHECKING:
    from . import agents, envs, training
    from .agents.exported import load_policy
    from .envs.catalog import list_envs, register
    from .envs.checks import check_environment
    from .envs.registry import make
    from .training.bands import plot
    from .training.evaluation.scoring import evaluate
    from .training.export import export
    from .training.html_report import write_report
    from .training.lineage import lineage
    from .training.render import render
    from .training.run import load
    from .training.sweep import sweep
    from .training.trainer import resume, train, train_from_config

    __version__: str

__all__ = [
    "__version__",
    "agents",
    "check_environment",
    "envs",
    "evaluate",
    "export",
    "lineage",
    "list_envs",
    "load",
    "load_policy",
    "make",
    "plot",
    "register",
    "render",
    "resume",
    "sweep",
    "train",
    "train_from_config",
    "training",
    "write_report",
]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "__version__": "._version",
        "agents": ".agents",
        "check_environment": ".envs.checks",
        "envs": ".envs",
        "evaluate": ".training.evaluation.scoring",
        "export": ".training.export",
        "lineage": ".training.lineage",
        "list_envs": ".envs.catalog",
        "load": ".training.run",
        "load_policy": ".agents.exported",
        "make": ".envs.registry",
        "plot": ".training.bands",
        "register": ".envs.catalog",
        "render": ".training.render",
        "resume": ".training.trainer",
        "sweep": ".training.sweep",
        "train": ".training.trainer",
        "train_from_config": ".training.trainer",
        "training": ".training",
        "write_report": ".training.html_report",
    },
)
