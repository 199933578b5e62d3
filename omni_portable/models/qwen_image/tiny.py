"""A tiny Qwen-Image folder with random weights, made offline in a second: same classes, same file layout.

For tests and smoke runs; it draws noise. All components are fp32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)

from omni_portable.models.loading import quiet_libraries
from omni_portable.models.qwen_image.text import TEXT_TO_IMAGE
from omni_portable.models.tiny_qwen_vl import tiny_qwen_vl, word_tokenizer


def build_tiny_qwen_image(
    path: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    heads: int = 2,
    latent_channels: int = 4,
    text_hidden: int = 32,
    vae_stages: int = 2,
    max_shard_size: str = "1GB",
) -> Path:
    """Write the folder and return its path; equal arguments give equal bytes of weights.

    Args:
        path: where to; created.
        layers / heads: of the transformer, with heads of 16.
        text_hidden: hidden size of the text encoder, a multiple of 16.
        vae_stages: the VAE shrinks each side by 2 ** (vae_stages - 1).
        max_shard_size: makes sharded weights when small ('20KB').
    """
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(seed)
        tokenizer = word_tokenizer([TEXT_TO_IMAGE.text])
        QwenImagePipeline(
            transformer=tiny_transformer(layers, heads, latent_channels, text_hidden),
            vae=tiny_vae(latent_channels, vae_stages),
            text_encoder=tiny_qwen_vl(tokenizer, hidden=text_hidden, layers=2),
            tokenizer=tokenizer,
            scheduler=published_scheduler(),
        ).save_pretrained(path, max_shard_size=max_shard_size)
    return path


def build_tiny_qwen_image_teacher(path: Path) -> Path:
    """Other weights than :func:`build_tiny_qwen_image` has by default, for it to be distilled from."""
    return build_tiny_qwen_image(path, seed=1)


def tiny_transformer(
    layers: int, heads: int, latent_channels: int, text_hidden: int, **switches: Any
) -> QwenImageTransformer2DModel:
    """The transformer of a folder; weights follow torch's seed."""
    return QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * latent_channels,
        out_channels=latent_channels,
        num_layers=layers,
        attention_head_dim=16,
        num_attention_heads=heads,
        joint_attention_dim=text_hidden,
        axes_dims_rope=(4, 6, 6),
        **switches,
    )


def tiny_vae(latent_channels: int, stages: int) -> AutoencoderKLQwenImage:
    """The autoencoder of a folder; weights follow torch's seed."""
    return AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=latent_channels,
        dim_mult=[1] * stages,
        num_res_blocks=1,
        temperal_downsample=[False] * (stages - 1),
        latents_mean=[0.1 * channel for channel in range(latent_channels)],
        latents_std=[1.0 + 0.1 * channel for channel in range(latent_channels)],
    )


def published_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """The scheduler of the published checkpoints (their `scheduler_config.json`)."""
    return FlowMatchEulerDiscreteScheduler(
        shift=1.0,
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=0.9,
        base_image_seq_len=256,
        max_image_seq_len=8192,
        shift_terminal=0.02,
        time_shift_type="exponential",
    )
