"""Parts of tiny model folders that several families share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
AUDIO_TOKENS = ("<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")


def vision_preprocessor(patch: int, **more: Any) -> dict[str, Any]:
    """A preprocessor configuration for images of 4 to 64 merged patches of 2 x 2."""
    unit = (2 * patch) ** 2
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 4 * unit,
        "max_pixels": 64 * unit,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        **more,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def rope(head_dim: int, **more: Any) -> dict[str, Any]:
    """Rotary positions on three axes, in the published proportions."""
    half = head_dim // 2
    side = half * 3 // 8
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [half - 2 * side, side, side], **more}
