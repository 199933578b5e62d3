"""The logger 'tensorboard': event files under ``tensorboard/``. The spec loads without torch."""

from __future__ import annotations

from omni_portable.contracts.registry import PluginSpec
from omni_portable.trainer.loggers.values import LoggerOptions

SPEC = PluginSpec(
    name="tensorboard",
    summary="scalars and validation images for TensorBoard, in tensorboard/",
    target="omni_portable.trainer.loggers.tensorboard_writer:TensorBoardLogger",
    options=LoggerOptions,
)
