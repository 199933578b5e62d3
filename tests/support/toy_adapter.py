"""A real but very small diffusion model, for tests of everything that drives a model without caring which one.

One attention block over 2x2 patches of 4-channel latents, conditioned on hashed word embeddings and on the timestep:
rows interact in nothing but the batched matrix products, as in a full-size transformer. Weights depend on a fixed seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from omni_portable.contracts import registry
from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.registry import PluginSpec
from omni_portable.contracts.rollout import Conditioning, Extent, RolloutRequest, Schedule
from omni_portable.samplers.schedule import flow_match_schedule

SPEC = PluginSpec(
    name="toy",
    summary="test double",
    target="tests.support.toy_adapter:ToyAdapter",
    capabilities={"kinds": ("diffusion",), "artifacts": {"image": "image"}, "guidance": True},
)
WIDTH, CHANNELS, TOKENS = 16, 4, 6


def register_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make 'toy' a model family for the duration of a test."""
    point = EntryPoint("toy", "tests.support.toy_adapter:SPEC", registry.GROUPS["model"])
    monkeypatch.setitem(registry._entry_points("model"), "toy", point)


class ToyTransformer(torch.nn.Module):
    """(B, 4, H, W) latents, (B,) timesteps, (B, 6, 16) tokens -> (B, 4, H, W) velocity."""

    frequencies: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(CHANNELS * 4, WIDTH)
        self.time = torch.nn.Linear(8, WIDTH)
        self.to_q, self.to_k, self.to_v = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.to_out = torch.nn.Linear(WIDTH, WIDTH)
        self.unembed = torch.nn.Linear(WIDTH, CHANNELS * 4)
        self.unused = torch.nn.Linear(2, 2)  # never gets a gradient
        self.register_buffer("frequencies", torch.exp(-torch.arange(4, dtype=torch.float32)))
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        self.checkpointing = False

    def enable_gradient_checkpointing(self) -> None:
        """Compute attention again in the backward pass."""
        self.checkpointing = True

    def forward(self, latents: torch.Tensor, timesteps: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        dtype = self.unused.weight.dtype
        b, c, h, w = latents.shape
        patches = latents.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * 4)
        angles = timesteps[:, None] / 1000.0 * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1).to(dtype))[:, None]
        hidden = torch.nn.functional.silu(self.embed(patches.to(dtype)) + time)
        if self.checkpointing and torch.is_grad_enabled():
            mixed = torch.utils.checkpoint.checkpoint(self.attend, hidden, tokens.to(dtype), use_reentrant=False)
        else:
            mixed = self.attend(hidden, tokens.to(dtype))
        out = self.unembed(hidden + self.to_out(mixed)).float()
        return out.reshape(b, h // 2, w // 2, c, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(b, c, h, w)

    def attend(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """(B, patches, 16) that look at each other and at (B, 6, 16) tokens."""
        keys = torch.cat([hidden, tokens], dim=1)
        return torch.nn.functional.scaled_dot_product_attention(
            self.to_q(hidden)[:, None], self.to_k(keys)[:, None], self.to_v(keys)[:, None]
        )[:, 0]


@dataclass
class ToyAdapter:
    """Implements `contracts.model.DiffusionAdapter`; logs `encoded` prompts and `batches`, the rows of each forward."""

    load: ModelLoad
    family: str = "toy"

    def __post_init__(self) -> None:
        self.transformer = ToyTransformer().to(self.load.torch_device, self.load.dtype)
        self.encoded: list[str] = []
        self.batches: list[int] = []

    @classmethod
    def attention_requests(cls, path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
        return [AttentionRequest("transformer", dtype=dtype, head_dim=WIDTH, backward=training)]

    def encode(
        self, prompts: Sequence[str], media: Sequence[Mapping[str, MediaArtifact]] | None, extent: Extent
    ) -> list[Conditioning]:
        self.encoded += prompts
        inputs = media if media is not None else [{}] * len(prompts)
        return [{"tokens": _tokens(prompt) + _shade(named)} for prompt, named in zip(prompts, inputs, strict=True)]

    def collate(self, conditionings: Sequence[Conditioning]) -> Conditioning:
        return {"tokens": torch.stack([conditioning["tokens"] for conditioning in conditionings])}

    def latent_shape(self, extent: Extent) -> tuple[int, ...]:
        return (CHANNELS, extent.height // 8, extent.width // 8)

    def latent_streams(self, extent: Extent) -> Mapping[str, tuple[int, int]]:
        return {"latents": (0, math.prod(self.latent_shape(extent)))}

    def initial_latents(self, requests: Sequence[RolloutRequest], noise: torch.Tensor) -> torch.Tensor:
        return noise

    def velocity(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditioning: Conditioning,
        guidance_scale: float,
        negative: Conditioning | None = None,
    ) -> torch.Tensor:
        self.batches.append(latents.shape[0])
        if negative is None or guidance_scale == 1.0:
            return self.transformer(latents, timesteps, conditioning["tokens"])
        tokens = torch.cat([negative["tokens"], conditioning["tokens"]])
        uncond, cond = self.transformer(latents.repeat(2, 1, 1, 1), timesteps.repeat(2), tokens).chunk(2)
        return uncond + guidance_scale * (cond - uncond)

    def decode(self, latents: torch.Tensor, extent: Extent) -> list[dict[str, MediaArtifact]]:
        pixels = ((latents[:, :3].clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        return [{"image": MediaArtifact("image", "image", row, "CHW")} for row in pixels]

    def schedule(self, num_steps: int, extent: Extent) -> Schedule:
        return flow_match_schedule(num_steps, shift=3.0)

    def lora_targets(self) -> tuple[str, ...]:
        return ("to_q", "to_k", "to_v", "to_out")

    def rollout_layout(self, name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        return [(name, tensor)]

    def trainable_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, p) for name, p in self.transformer.named_parameters() if p.requires_grad)


def _tokens(prompt: str) -> torch.Tensor:
    seed = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=7).digest(), "big")
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


def _shade(media: Mapping[str, MediaArtifact]) -> float:
    """Mean brightness of the input image; 0 without one."""
    image = media.get("image")
    return 0.0 if image is None or isinstance(image.data, str) else image.data.float().mean().item() / 255.0
