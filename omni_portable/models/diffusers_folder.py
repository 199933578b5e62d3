"""Checks that the folders of several diffusers families have in common; config files are read, weights are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.contracts.rollout import Extent
from omni_portable.models.folders import check_component_class, read_json, read_model_index

Fact = tuple[object, object, str, str]
"""Two values that must be equal, and what each of them is."""

SIDE = 2
"""Latents per token along each side, where a transformer reads latents in packs (see `packing`)."""


def read_configs(path: Path, pipeline: str, classes: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """`config.json` of each component, after `model_index.json` was found to describe these classes.

    Args:
        pipeline: class of the pipeline.
        classes: component -> class.

    Raises:
        ModelError: no such folder, another pipeline or class, or a file that is missing or broken.
    """
    index = read_model_index(path, pipeline)
    for component, name in classes.items():
        check_component_class(path, index, component, name)
    return {component: read_json(path / component / "config.json") for component in classes}


def read_scheduler(path: Path) -> dict[str, Any]:
    """`scheduler_config.json` of a folder."""
    return read_json(path / "scheduler" / "scheduler_config.json")


def number_list(path: Path, config: Mapping[str, Any], key: str, *, positive: bool = True) -> None:
    """`ModelError` unless `key` of a config file is a list with a number in it: whole ones above 0, or any finite ones
    where `positive` is false."""
    values = config.get(key)
    kinds: tuple[type, ...] = (int,) if positive else (int, float)
    right = isinstance(values, list) and values and all(type(v) in kinds and (v > 0 or not positive) for v in values)
    if not right:
        wanted = "whole numbers above 0" if positive else "numbers"
        raise ModelError(f"the model file {path}: '{key}' is {values!r}, not a list of {wanted}")


def cross_check(path: Path, facts: Iterable[Fact]) -> None:
    """`ModelError` that names the first two parts of a folder which do not fit together."""
    for left, right, left_name, right_name in facts:
        if left != right:
            raise ModelError(f"{path} does not fit together: {left_name} is {left}, {right_name} is {right}")


def refuse_features(path: Path, config: Mapping[str, Any], features: Sequence[str], family: str) -> None:
    """`ModelError` for a switch of a transformer's config that belongs to another family's checkpoints."""
    found = [feature for feature in features if config.get(feature)]
    if found:
        raise ModelError(
            f"the model file {path}: '{found[0]}' is {config[found[0]]!r}, which model family '{family}' does not run"
        )


def require_image(family: str, extent: Extent) -> None:
    """Refuse several frames for a family that draws images (`ConfigError`)."""
    if extent.num_frames != 1:
        raise ConfigError(
            f"rollout.num_frames is {extent.num_frames}, but model family '{family}' draws single images",
            remedy="set rollout.num_frames=1",
        )


def check_image_size(path: Path, unit: int, largest: int | None, height: int, width: int) -> None:
    """`ConfigError` for a side that is no multiple of `unit` pixels, or larger than `largest` where there is one."""
    for key, pixels in (("height", height), ("width", width)):
        if pixels < unit or pixels % unit or (largest is not None and pixels > largest):
            near = max(pixels - pixels % unit, unit)
            raise ConfigError(
                f"rollout.{key} is {pixels}; {path} draws multiples of {unit} pixels"
                + (f" up to {largest}" if largest is not None else ""),
                remedy=f"set rollout.{key} to {near if largest is None else min(near, largest)}",
            )


def check_video_size(path: Path, unit: int, extent: Extent) -> None:
    """`ConfigError` for a side that is no multiple of `unit` pixels, or an extent without a frame rate."""
    for key, pixels in (("height", extent.height), ("width", extent.width)):
        if pixels < unit or pixels % unit:
            raise ConfigError(
                f"rollout.{key} is {pixels}; {path} draws multiples of {unit} pixels",
                remedy=f"set rollout.{key} to {max(pixels - pixels % unit, unit)}",
            )
    if extent.frame_rate <= 0:
        raise ConfigError(
            f"rollout.frame_rate is {extent.frame_rate:g}; a video needs frames per second",
            remedy="set rollout.frame_rate, for example to 24",
        )


def check_frame_count(path: Path, step: int, offset: int, least: int, frames: int) -> None:
    """`ConfigError` unless `frames` is `step` n + `offset` and at least `least`."""
    if frames >= least and frames % step == offset % step:
        return
    below = frames - (frames - offset) % step
    choices = [count for count in (below, below + step) if count >= least] or [least]
    raise ConfigError(
        f"rollout.num_frames is {frames}; {path} draws videos of {step} n + {offset} frames, at least {least}",
        remedy=f"set rollout.num_frames to {choices[-1]}",
        choices=[str(count) for count in choices],
    )
