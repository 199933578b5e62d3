"""Writes TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from omni_portable.contracts.disk import disk_errors
from omni_portable.trainer.loggers.values import LoggerOptions, checked

FOLDER = "tensorboard"


class TensorBoardLogger:
    """Scalars under their metric names, images under theirs; undefined metrics leave a gap.

    Args:
        resumed_from: last completed step; TensorBoard is told to discard what earlier files hold of later ones.
    """

    def __init__(self, options: LoggerOptions, run_dir: Path, resumed_from: int | None = None) -> None:
        self._options, self._folder = options, run_dir / FOLDER
        # Event files are append-only: a new file that names the first step to discard is the format's way to rewind.
        # Without a completed step nothing of an earlier attempt counts, its step 0 included.
        first = resumed_from + 1 if resumed_from else 0
        rewinds = self._folder.is_dir() and any(self._folder.iterdir())
        with disk_errors(self._folder):
            self._writer = SummaryWriter(str(self._folder), purge_step=first if rewinds else None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one point per metric.

        Raises:
            NonFiniteError: a metric is NaN or infinite that may not be.
        """
        with disk_errors(self._folder):
            for name, value in checked(step, metrics, self._options.undefined).items():
                if value is not None:
                    self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def log_image(self, step: int, name: str, path: Path) -> None:
        """Write the image file at `path` (any format Pillow reads)."""
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        with disk_errors(self._folder):
            self._writer.add_image(name, pixels, step, dataformats="HWC")

    def close(self) -> None:
        """Safe to call twice."""
        with disk_errors(self._folder):
            self._writer.close()
