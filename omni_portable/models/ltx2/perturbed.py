"""Guidance away from weaker forwards of the same transformer on the same prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_portable.contracts.errors import ConfigError
from omni_portable.models.ltx2 import LTX2Options
from omni_portable.models.ltx2.folder import LTX2Folder


@dataclass(frozen=True)
class Perturbation:
    """One more forward per step.

    Args:
        weights: stream -> weight of the difference (see `guidance_x0`).
        arguments: of the transformer's forward.
    """

    weights: Mapping[str, float]
    arguments: Mapping[str, Any]


def perturbations(options: LTX2Options, folder: LTX2Folder) -> tuple[Perturbation, ...]:
    """What the options ask for, none by default.

    Raises:
        ConfigError: blocks that the transformer does not have, or one that cannot skip its self-attention.
    """
    found = []
    if options.stg_scale or options.audio_stg_scale:
        _check_blocks(options.stg_blocks, folder)
        weights = {"video": options.stg_scale, "audio": options.audio_stg_scale or options.stg_scale}
        found.append(Perturbation(weights, {"spatio_temporal_guidance_blocks": list(options.stg_blocks)}))
    if max(options.modality_scale, options.audio_modality_scale) > 1.0:
        sound = options.audio_modality_scale or options.modality_scale
        weights = {"video": options.modality_scale - 1.0, "audio": sound - 1.0}
        found.append(Perturbation(weights, {"isolate_modalities": True}))
    return tuple(found)


def _check_blocks(blocks: list[int], folder: LTX2Folder) -> None:
    config = folder.transformer
    if not config.get("perturbed_attn"):
        raise ConfigError(
            f"model.options.stg_scale: the transformer of {folder.path} cannot skip its self-attention "
            "(its config has no perturbed_attn), so that there is nothing to move away from",
            remedy="set model.options.stg_scale=0, or use a folder whose transformer has perturbed_attn",
        )
    count = int(config["num_layers"])
    outside = [block for block in blocks if not 0 <= block < count]
    if outside:
        raise ConfigError(
            f"model.options.stg_blocks names block {outside[0]}; the transformer of {folder.path} has {count}",
            remedy=f"name blocks from 0 to {count - 1}",
        )
