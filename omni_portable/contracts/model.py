"""The model seam: what a family must offer so that any algorithm can train it on any device.

A family's spec (`PluginSpec.capabilities`) declares 'kinds' (subset of {'diffusion', 'autoregressive'}),
'artifacts' (name -> modality it produces), 'inputs' (named input media it takes) and 'guidance' (True when it supports
classifier-free guidance).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from omni_portable.contracts.device import AttentionChoice, AttentionRequest
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Conditioning, Extent, RolloutRequest, Schedule

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModelLoad:
    """How to load a model.

    Args:
        path: diffusers / transformers format folder.
        torch_device: where components go.
        dtype: torch dtype of the transformer; frozen encoders and VAE use it too unless the family says otherwise.
        components: which parts to load ('transformer', 'text_encoder', 'vae'); an actor that is given conditioning
            with its trajectories needs the transformer alone.
        attention: component -> chosen pair.
        options: the family's options dataclass (`PluginSpec.options`).
    """

    path: Path
    torch_device: torch.device
    dtype: torch.dtype
    components: tuple[str, ...] = ("transformer", "text_encoder", "vae")
    attention: Mapping[str, AttentionChoice] = field(default_factory=dict)
    options: object | None = None


@runtime_checkable
class DiffusionAdapter(Protocol):
    """One loaded diffusion model of a family. Constructed as ``Adapter(load: ModelLoad)``."""

    family: str
    transformer: torch.nn.Module

    @classmethod
    def attention_requests(cls, path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
        """What each component in the folder needs, read from its config files only (before any weights load)."""
        ...

    def encode(
        self, prompts: Sequence[str], media: Sequence[Mapping[str, MediaArtifact]] | None, extent: Extent
    ) -> list[Conditioning]:
        """Conditioning of each prompt, without batch dimension, on the model's device; no gradient.

        Whatever the transformer needs beside latents and timesteps is part of it: prompt embeddings, encoded input
        media (`media`: one mapping per prompt), and the geometry of `extent` where latents do not show it.
        """
        ...

    def collate(self, conditionings: Sequence[Conditioning]) -> Conditioning:
        """Stack conditionings into a batch (padding if the family needs it; padded tokens must not matter)."""
        ...

    def latent_shape(self, extent: Extent) -> tuple[int, ...]:
        """Shape of one sample's latents, no batch dimension; `ConfigError` for a size that the model cannot draw.

        A sample of several streams (video and audio) has one flat vector of latents, (elements,).
        """
        ...

    def latent_streams(self, extent: Extent) -> Mapping[str, tuple[int, int]]:
        """Stream ('latents', or 'video' and 'audio') -> [start, stop) in a sample's flattened latents; together all."""
        ...

    def encode_media(self, media: Mapping[str, MediaArtifact], extent: Extent) -> torch.Tensor:
        """Clean latents (...) fp32 of given media, as a sample of `extent` would have them (datasets without rollout).

        Raises:
            ArtifactError: media that are missing, or of another size than `extent`.
        """
        ...

    def initial_latents(self, requests: Sequence[RolloutRequest], noise: torch.Tensor) -> torch.Tensor:
        """Starting latents (B, ...) fp32 from unit noise (B, ...) fp32."""
        ...

    def velocity(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditioning: Conditioning,
        guidance_scale: float,
        negative: Conditioning | None = None,
    ) -> torch.Tensor:
        """d latents / d sigma, fp32, same shape as latents (B, ...); timesteps (B,) fp32 = sigma * timestep_scale.

        With `negative` given and guidance_scale != 1 the family's guidance rule applies (both halves in one forward).
        """
        ...

    def decode(self, latents: torch.Tensor, extent: Extent) -> list[dict[str, MediaArtifact]]:
        """Named media of each sample from clean latents (B, ...)."""
        ...

    def schedule(self, num_steps: int, extent: Extent) -> Schedule:
        """The family's published schedule for a request shape."""
        ...

    def lora_targets(self) -> tuple[str, ...]:
        """Default LoRA target module suffixes, as published for the family."""
        ...

    def rollout_layout(self, name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        """Canonical name and tensor -> names and tensors of the fused rollout layout (vLLM-Omni)."""
        ...

    def trainable_tensors(self) -> Iterator[tuple[str, torch.Tensor]]: ...
