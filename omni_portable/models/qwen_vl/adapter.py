"""Qwen2.5-VL and Qwen3-VL on transformers' own classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.autoregressive.adapter import attention_kernel, not_loaded
from omni_portable.models.autoregressive.media import EncodedMedium
from omni_portable.models.autoregressive.multimodal import MultimodalAdapter, frames_of, grids
from omni_portable.models.autoregressive.policy import LanguagePolicy
from omni_portable.models.autoregressive.vision import patches
from omni_portable.models.autoregressive.vision_settings import VisionSettings, read_settings
from omni_portable.models.loading import load_transformers
from omni_portable.models.qwen_vl.folder import attention_requests, read_config

CLASSES = {"qwen2_5_vl": Qwen2_5_VLForConditionalGeneration, "qwen3_vl": Qwen3VLForConditionalGeneration}
START, END = "<|vision_start|>", "<|vision_end|>"
IMAGES, VIDEOS = "preprocessor_config.json", "video_preprocessor_config.json"


class QwenVLAdapter(MultimodalAdapter):
    """Language model, head, vision tower and tokenizer of one folder.

    Raises:
        ModelError: a folder that is missing, incomplete, corrupt or of another family.
    """

    family = "qwen_vl"
    accepted = ("image", "video")
    rollout_prefixes: ClassVar[Mapping[str, str]] = {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
    }

    def __init__(self, load: ModelLoad) -> None:
        self._config = read_config(load.path)
        super().__init__(load, int(self._config["text_config"]["vocab_size"]))
        self._tower: Any = None
        if load.components:
            model = load_transformers(
                CLASSES[self._config["model_type"]], load.path, load.dtype, attention_kernel(load)
            )
            self._split(model, load)

    @classmethod
    def attention_requests(cls, path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
        return attention_requests(path, dtype, training)

    def _split(self, model: Any, load: ModelLoad) -> None:
        if "transformer" in load.components:
            self._policy = LanguagePolicy(model, "model.language_model", load.path).to(load.torch_device)
        if "text_encoder" in load.components:
            model.model.visual.requires_grad_(False).to(load.torch_device)
            self._tower = model.model
            self._images = read_settings(load.path / IMAGES)
            self._videos = self._video_settings(load.path)

    def _video_settings(self, path: Path) -> VisionSettings:
        file = path / VIDEOS
        return read_settings(file, whole_video=self._is_qwen3) if file.is_file() else self._images

    @property
    def _is_qwen3(self) -> bool:
        return bool(self._config["model_type"] == "qwen3_vl")

    def _encode_medium(self, artifact: MediaArtifact) -> EncodedMedium:
        if self._tower is None:
            raise not_loaded(self, "text_encoder")
        kind, settings = artifact.modality, self._images if artifact.modality == "image" else self._videos
        pixels, grid = patches(frames_of(artifact), settings)
        found = self._tower.get_image_features(
            pixels.to(self.torch_device, self.dtype), grid.to(self.torch_device), return_dict=True
        )
        deep = getattr(found, "deepstack_features", None)
        seconds = settings.temporal / artifact.fps if artifact.fps else 0.0
        return EncodedMedium(
            text=self._spelled(artifact, int(grid[0, 0]), int(grid[0, 1:].prod()) // settings.merge**2),
            embeds=torch.cat(list(found.pooler_output)).cpu(),
            kind=kind,
            deepstack=torch.stack(list(deep)).cpu() if deep else None,
            grid=grid,
            seconds=seconds,
        )

    def _spelled(self, artifact: MediaArtifact, steps: int, per_step: int) -> str:
        """Placeholders between their brackets; Qwen3-VL spells the time of every temporal patch of a video."""
        token = self._token(artifact.modality)
        if artifact.modality == "image" or not self._is_qwen3:
            return START + token * (steps * per_step) + END
        times = patch_times(len(frames_of(artifact)), float(artifact.fps or 0.0), steps, self._videos.temporal)
        return "".join(f"<{time:.1f} seconds>{START}{token * per_step}{END}" for time in times)

    def _placeholders(self) -> Mapping[str, int]:
        return {"image": int(self._config["image_token_id"]), "video": int(self._config["video_token_id"])}

    def _positions(self, ids: torch.Tensor, encoded: Sequence[EncodedMedium]) -> torch.Tensor:
        """By the library's own rule."""
        if not encoded:
            return torch.arange(len(ids)).expand(3, -1)
        tokens = self._placeholders()
        kinds = (ids == tokens["image"]).int() + 2 * (ids == tokens["video"]).int()
        seconds = torch.tensor([medium.seconds for medium in encoded if medium.kind == "video"])
        positions, _ = self._tower.get_rope_index(
            ids[None],
            mm_token_type_ids=kinds[None],
            image_grid_thw=grids(encoded, "image"),
            video_grid_thw=grids(encoded, "video"),
            second_per_grid_ts=seconds if len(seconds) else None,
        )
        found: torch.Tensor = positions[:, 0]
        return found


def patch_times(frames: int, fps: float, steps: int, temporal: int) -> list[float]:
    """Seconds of the middle of every temporal patch; the last frame is repeated to fill its patch."""
    last = frames - 1
    return [(min(s * temporal, last) + min((s + 1) * temporal - 1, last)) / 2.0 / fps for s in range(steps)]
