"""A run as TensorBoard reads it: scalars, histograms, images, text, and the table of hyperparameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import UInt8

Settings = Mapping[str, bool | int | float | str]


class TensorBoardLog:
    """Writes events into a run's folder.

    TensorBoard makes its table of hyperparameters of what `begin` writes of each run under its folder, and of the runs'
    last scalars.

    Args:
        folder: where the events go; it exists.
        after: environment steps after which the run goes on; reports of later ones are dropped.
    """

    def __init__(self, folder: str | os.PathLike, after: int = 0):
        from tensorboardX import SummaryWriter  # only where events are wanted

        self._events = SummaryWriter(os.fspath(folder), purge_step=after + 1 if after else None)
        self._file: Any = self._events.file_writer

    def begin(self, settings: Settings, text: str) -> None:
        """Write a run's settings, by dotted name, and its configuration in YAML."""
        from tensorboardX.summary import hparams

        _, started, _ = hparams(dict(settings), {})
        self._file.add_summary(started)
        self._events.add_text("configuration", "\n".join(f"    {line}" for line in text.splitlines()), 0)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers by "group/name"."""
        for name, value in values.items():
            self._events.add_scalar(name, value, step)

    def histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Write distributions by "group/name"."""
        for name, array in values.items():
            self._events.add_histogram(name, array, step, bins="auto", max_bins=64)

    def images(self, step: int, images: Mapping[str, UInt8[np.ndarray, "H W 3"]]) -> None:
        """Write pictures by "group/name"."""
        for name, image in images.items():
            self._events.add_image(name, image, step, dataformats="HWC")

    def close(self, finished: bool, failed: bool) -> None:
        """Close the file; a run that is finished is marked so in the table of hyperparameters."""
        if finished:
            from tensorboardX.summary import hparams

            self._file.add_summary(hparams({}, {})[2])
        self._events.close()
