"""Qwen3-Omni's thinker on transformers' own class; of a whole model's folder, talker and vocoder are not loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.autoregressive.adapter import (
    ATTENTION_PROJECTIONS,
    attention_kernel,
    not_loaded,
)
from omni_portable.models.autoregressive.audio import AudioFeatures
from omni_portable.models.autoregressive.media import EncodedMedium
from omni_portable.models.autoregressive.multimodal import MultimodalAdapter, frames_of, grids
from omni_portable.models.autoregressive.policy import LanguagePolicy
from omni_portable.models.autoregressive.vision import patches
from omni_portable.models.autoregressive.vision_settings import read_settings
from omni_portable.models.loading import load_transformers
from omni_portable.models.qwen3_omni.folder import LEFT_OUT, attention_requests, read_thinker_config

WHOLE = "Qwen3OmniMoeForConditionalGeneration"
PREPROCESSOR, VIDEOS = "preprocessor_config.json", "video_preprocessor_config.json"
BRACKETS = {
    "image": ("<|vision_start|>", "<|vision_end|>"),
    "video": ("<|vision_start|>", "<|vision_end|>"),
    "audio": ("<|audio_start|>", "<|audio_end|>"),
}


class Qwen3OmniAdapter(MultimodalAdapter):
    """Thinker (language model and head), both towers and the tokenizer of one folder.

    The sound of a video is a medium of its own: it is not interleaved with the frames.

    Raises:
        ModelError: a folder that is missing, incomplete, corrupt or of another family.
    """

    family = "qwen3_omni"
    trainable_stage = "thinker"
    accepted = ("image", "video", "audio")
    rollout_prefixes: ClassVar[Mapping[str, str]] = {
        "model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
    }

    def __init__(self, load: ModelLoad) -> None:
        self._config = read_thinker_config(load.path)
        super().__init__(load, int(self._config["text_config"]["vocab_size"]))
        self._layers = int(self._config["text_config"]["num_hidden_layers"])
        self._towers: Any = None
        if load.components:
            model = load_transformers(
                Qwen3OmniMoeThinkerForConditionalGeneration,
                load.path,
                load.dtype,
                attention_kernel(load),
                whole=WHOLE,
                ignored=LEFT_OUT,
            )
            self._split(model, load)

    @classmethod
    def attention_requests(cls, path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
        return attention_requests(path, dtype, training)

    def lora_targets(self) -> tuple[str, ...]:
        """Attention projections of the language model by their full names: those of the audio tower end alike."""
        return tuple(f"model.layers.{i}.{name}" for i in range(self._layers) for name in ATTENTION_PROJECTIONS)

    def _split(self, model: Any, load: ModelLoad) -> None:
        if "transformer" in load.components:
            self._policy = LanguagePolicy(model, "model", load.path).to(load.torch_device)
        if "text_encoder" in load.components:
            for tower in (model.visual, model.audio_tower):
                tower.requires_grad_(False).to(load.torch_device)
            self._towers = model
            self._audio = AudioFeatures(load.path / PREPROCESSOR)
            self._images = read_settings(load.path / PREPROCESSOR)
            videos = load.path / VIDEOS
            self._videos = read_settings(videos) if videos.is_file() else self._images

    def _encode_medium(self, artifact: MediaArtifact) -> EncodedMedium:
        if self._towers is None:
            raise not_loaded(self, "text_encoder")
        return self._encode_audio(artifact) if artifact.modality == "audio" else self._encode_pixels(artifact)

    def _encode_audio(self, artifact: MediaArtifact) -> EncodedMedium:
        features = self._audio.extract(artifact)
        mask = features["feature_attention_mask"].to(self.torch_device)
        inputs = features["input_features"].to(self.torch_device, self.dtype)
        embeds = self._towers.get_audio_features(inputs, mask, return_dict=True).last_hidden_state.cpu()
        return EncodedMedium(self._spelled("audio", len(embeds)), embeds, "audio", frames=int(mask.sum()))

    def _encode_pixels(self, artifact: MediaArtifact) -> EncodedMedium:
        kind, settings = artifact.modality, self._images if artifact.modality == "image" else self._videos
        pixels, grid = patches(frames_of(artifact), settings)
        found = self._towers.get_image_features(
            pixels.to(self.torch_device, self.dtype), grid.to(self.torch_device), return_dict=True
        )
        embeds = found.pooler_output.cpu()
        return EncodedMedium(
            text=self._spelled(kind, len(embeds)),
            embeds=embeds,
            kind=kind,
            deepstack=torch.stack(list(found.deepstack_features)).cpu(),
            grid=grid,
            seconds=settings.temporal / artifact.fps if artifact.fps else 0.0,
        )

    def _spelled(self, kind: str, count: int) -> str:
        start, end = BRACKETS[kind]
        return start + self._token(kind) * count + end

    def _placeholders(self) -> Mapping[str, int]:
        return {kind: int(self._config[f"{kind}_token_id"]) for kind in self.accepted}

    def _positions(self, ids: torch.Tensor, encoded: Sequence[EncodedMedium]) -> torch.Tensor:
        """By the library's own rule; in fp32, since videos may take fractions of a position."""
        if not encoded:
            return torch.arange(len(ids), dtype=torch.float32).expand(3, -1)
        seconds = [medium.seconds for medium in encoded if medium.kind == "video"]
        frames = [medium.frames for medium in encoded if medium.kind == "audio"]
        positions, _ = self._towers.get_rope_index(
            ids[None],
            grids(encoded, "image"),
            grids(encoded, "video"),
            torch.ones_like(ids)[None],
            False,
            torch.tensor(frames) if frames else None,
            torch.tensor(seconds) if seconds else None,
        )
        found: torch.Tensor = positions[:, 0].float()
        return found
