"""Sizes that a recipe's samples have in training and in validation, and whether its model can draw them. Torch-free.

A family's spec names its check as the capability 'check_extent', 'module:function'; the function is called as
``function(path, extent)`` with the model's folder, reads config files only, and raises `ConfigError` for a size that
the model cannot draw. Families whose samples have no size declare none.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from omni_portable.config.convert import naming, renaming
from omni_portable.config.drawing import validation_changes, validation_rollout
from omni_portable.config.loader import find_model_path
from omni_portable.config.plugins import plugin_spec
from omni_portable.config.schema import RolloutConfig, RunConfig
from omni_portable.contracts.rollout import Extent


def extent_of(rollout: RolloutConfig) -> Extent:
    """Size of the samples that a section of a recipe asks for."""
    return Extent(rollout.height, rollout.width, rollout.num_frames, rollout.frame_rate)


def check_extents(config: RunConfig, path: Path | None = None) -> None:
    """Refuse sizes that the recipe's model cannot draw.

    Args:
        path: the model's folder; None looks for it on this machine and checks nothing where it is not.

    Raises:
        ConfigError: a height, width, number of frames or frame rate that the model cannot draw.
        ModelError: the folder is incomplete, damaged or of another family.
    """
    folder = path or find_model_path(config.model.path)
    if folder is None:
        return
    with naming("samples of training"):
        check_folder_extent(config.model.family, folder, extent_of(config.rollout))
    if config.data.validation:
        own = {f"rollout.{key}": f"validation.{key}" for key in validation_changes(config)}
        with naming("samples of validation"), renaming(own):
            check_folder_extent(config.model.family, folder, extent_of(validation_rollout(config)))


def check_folder_extent(family: str, folder: Path, extent: Extent) -> None:
    """Refuse a size that the model in a folder cannot draw; errors as of :func:`check_extents`."""
    target = plugin_spec("model", family, "model.family").capabilities.get("check_extent")
    if target is None:
        return
    module, _, attribute = str(target).partition(":")
    getattr(importlib.import_module(module), attribute)(folder, extent)
