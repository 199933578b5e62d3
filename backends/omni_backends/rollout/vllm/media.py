"""Prompts as vLLM takes them: tokens, and the pixels and sounds that stand behind placeholder tokens.

Tokens are those that our adapter made, placeholders expanded, so vLLM's own preprocessing has nothing left to do: media
go in as what its towers read. How a family's pixels and sounds are prepared is the adapters' arithmetic, too
(`models.autoregressive.vision`, `.audio`); the towers are vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from omni_portable.contracts.errors import ArtifactError, CapabilityError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.tokens import TokenInputs
from omni_portable.models.autoregressive.audio import AudioFeatures
from omni_portable.models.autoregressive.media import arrange
from omni_portable.models.autoregressive.vision import patches
from omni_portable.models.autoregressive.vision_settings import VisionSettings, read_settings
from omni_portable.models.weights import tensor_checksum

PREPROCESSOR = "preprocessor_config.json"
ACCEPTED = {"qwen_vl": ("image",), "qwen3_omni": ("image", "audio")}
"""Family -> modalities that go through vLLM."""
BRACKETED = ("qwen3_omni",)
"""Families whose vLLM class counts positions from the token before a medium's placeholders to the one after them."""


@dataclass(frozen=True)
class _Medium:
    """One medium: its kind, the arguments of vLLM's tower, what identifies it, and its placeholders [start, stop)."""

    kind: str
    arguments: Mapping[str, torch.Tensor]
    start: int
    stop: int


class PromptBuilder:
    """Makes vLLM's inputs of encoded prompts.

    Args:
        family: model family.
        folder: of the model, for its preprocessor files.
    """

    def __init__(self, family: str, folder: Path) -> None:
        self._family, self._folder = family, folder
        self._settings: VisionSettings | None = None
        self._audio: AudioFeatures | None = None

    def check(self, request_id: str, media: Mapping[str, MediaArtifact]) -> None:
        """Refuse media that do not go through vLLM.

        Raises:
            CapabilityError: names request and medium.
        """
        accepted = ACCEPTED.get(self._family, ())
        for name, artifact in media.items():
            if artifact.modality not in accepted:
                raise CapabilityError(
                    f"request '{request_id}' has {artifact.modality} '{name}', which rollout.engine=vllm does not take "
                    f"for model family '{self._family}'",
                    remedy="use rollout.engine=native for it",
                    choices=accepted,
                )

    def build(self, inputs: TokenInputs, prompt: str, media: Mapping[str, MediaArtifact]) -> dict[str, Any]:
        """vLLM's rendered input (`vllm.inputs.engine`)."""
        from vllm.inputs.engine import mm_input, tokens_input

        ids: list[int] = inputs["ids"].tolist()
        if not media:
            return dict(tokens_input(ids))
        found = self._media(inputs, prompt, media)
        items, hashes, places = _by_kind(found, bracketed=self._family in BRACKETED)
        return dict(mm_input(ids, items, hashes, places))

    def _media(self, inputs: TokenInputs, prompt: str, media: Mapping[str, MediaArtifact]) -> list[_Medium]:
        shown = [piece for piece in arrange(prompt, media, ACCEPTED[self._family]) if not isinstance(piece, str)]
        runs = _runs(inputs["media_at"].tolist())
        if len(runs) != len(shown):
            raise ArtifactError(f"the prompt {prompt[:80]!r} shows {len(shown)} media in {len(runs)} places")
        return [
            _Medium(artifact.modality, self._arguments(artifact), *run)
            for artifact, run in zip(shown, runs, strict=True)
        ]

    def _arguments(self, artifact: MediaArtifact) -> dict[str, torch.Tensor]:
        if artifact.modality == "audio":
            if self._audio is None:
                self._audio = AudioFeatures(self._folder / PREPROCESSOR)
            features = self._audio.extract(artifact)
            mask = features["feature_attention_mask"][0]
            heard = features["input_features"][0][:, mask.bool()]
            return {
                "input_audio_features": heard,
                "feature_attention_mask": torch.ones(heard.shape[1]),
                "audio_feature_lengths": torch.tensor(heard.shape[1]),
            }
        if self._settings is None:
            self._settings = read_settings(self._folder / PREPROCESSOR)
        assert isinstance(artifact.data, torch.Tensor)
        pixels, grid = patches(artifact.data[None], self._settings)
        return {"pixel_values": pixels, "image_grid_thw": grid[0]}


def _runs(at: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive places [start, stop): between two media there is always a bracket."""
    runs: list[tuple[int, int]] = []
    for place in at:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


def _by_kind(found: Sequence[_Medium], *, bracketed: bool) -> tuple[Any, dict[str, list[str]], dict[str, list[Any]]]:
    from vllm.multimodal.inputs import MultiModalKwargsItems

    items: dict[str, list[Any]] = {}
    hashes: dict[str, list[str]] = {}
    places: dict[str, list[Any]] = {}
    for medium in found:
        items.setdefault(medium.kind, []).append(_item(medium))
        mark = "-".join(tensor_checksum(medium.arguments[name]) for name in sorted(medium.arguments))
        hashes.setdefault(medium.kind, []).append(mark)
        places.setdefault(medium.kind, []).append(_place(medium, bracketed))
    return MultiModalKwargsItems(items), hashes, places


def _item(medium: _Medium) -> Any:
    """One medium's arguments with vLLM's rules for joining them with those of others."""
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems

    kind = medium.kind
    batch = {name: tensor[None] for name, tensor in medium.arguments.items()}
    rules = {name: MultiModalFieldConfig.batched(kind, keep_on_cpu=True) for name in batch}
    for name, dim in (("pixel_values", 0), ("input_audio_features", 1)):
        if name in batch:
            batch[name] = batch[name][0]
            rules[name] = MultiModalFieldConfig.flat_from_sizes(kind, torch.tensor([batch[name].shape[dim]]), dim=dim)
    return MultiModalKwargsItems.from_hf_inputs(batch, rules)[kind][0]


def _place(medium: _Medium, bracketed: bool) -> Any:
    from vllm.multimodal.inputs import PlaceholderRange

    length = medium.stop - medium.start
    if not bracketed:
        return PlaceholderRange(offset=medium.start, length=length)
    inside = torch.ones(length + 2, dtype=torch.bool)
    inside[0] = inside[-1] = False
    return PlaceholderRange(offset=medium.start - 1, length=length + 2, is_embed=inside)
