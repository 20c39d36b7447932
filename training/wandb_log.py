"""A run on Weights and Biases."""

from __future__ import annotations

import importlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ..errors import UserError
from ..storage import write_text

ID = "wandb.json"
PROJECT = "equimorph"
FORBIDDEN = "/\\#?%:"
BINS = 64


def check_wandb(project: bool | str) -> Any:
    """The module `wandb`, where a run may go to a project; True stands for the project "equimorph".

    Raises:
        UserError: it is not installed, or no project can have that name.
    """
    if isinstance(project, str) and (not project.strip() or set(project) & set(FORBIDDEN)):
        raise UserError(
            f"logging.wandb = {project!r} is no project's name: it must not be empty, nor hold any of {FORBIDDEN}"
        )
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise UserError(
            f"logging.wandb needs the package wandb ({error}): pip install 'equimorph[wandb]', or leave it out"
        ) from None


def _kept(path: Path) -> str:
    """The id of a run that goes on."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["id"]
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, str):
        raise UserError(f"{os.fspath(path)!r} is damaged: it has no id; delete it, and the run begins anew there")
    return found


class WandbLog:
    """Sends a run to Weights and Biases, or keeps it in its folder with `WANDB_MODE=offline`.

    A run that goes on is the same run there: its id is kept in `wandb.json`. Where to and as whom are
    wandb's own settings (`wandb login`, `WANDB_ENTITY`, `WANDB_MODE`).

    Args:
        folder: of the run; it exists.
        project: its name, or True for "equimorph".
        settings: the whole configuration, nested.

    Raises:
        UserError: wandb is not installed, or refuses to begin.
    """

    def __init__(self, folder: str | os.PathLike, project: bool | str, settings: Mapping[str, Any]):
        self._wandb = check_wandb(project)
        path = Path(folder, ID)
        kept = _kept(path) if path.is_file() else secrets.token_hex(4)
        try:
            self._run = self._wandb.init(
                project=PROJECT if isinstance(project, bool) else project,
                name=Path(folder).name,
                id=kept,
                resume="allow",
                dir=os.fspath(folder),
                config=dict(settings),
                allow_val_change=True,  # a run may go on with other settings
                reinit="create_new",  # a sweep has several runs at once
            )
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")  # wandb's own steps could not go back
        except self._wandb.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(
                f"logging.wandb: Weights and Biases did not begin: {reason}; wandb login, or WANDB_MODE=offline"
            ) from None
        write_text(path, json.dumps({"id": kept}) + "\n")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers by "group/name"."""
        self._run.log({"step": step, **values})

    def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Send distributions by "group/name"."""
        drawn = {name: self._wandb.Histogram(np_histogram=np.histogram(array, BINS)) for name, array in values.items()}
        self._run.log({"step": step, **drawn})

    def images(self, step: int, images: Mapping[str, UInt8[np.ndarray, "H W 3"]]) -> None:
        """Send pictures by "group/name"."""
        self._run.log({"step": step, **{name: self._wandb.Image(image) for name, image in images.items()}})

    def close(self, finished: bool, failed: bool) -> None:
        """End the run there; one that ended with an error, or with a signal, is marked so."""
        self._run.finish(exit_code=int(failed))
