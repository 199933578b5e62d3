"""A tiny Stable Diffusion 3 folder with random weights, made offline in a second: same classes, same file layout.

For tests and smoke runs; it draws noise. Tokenizers are built in code (one token per character).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from transformers import CLIPTextModelWithProjection

from omni_portable.config.assets import packaged
from omni_portable.models.loading import quiet_libraries
from omni_portable.models.sd3.folder import T5
from omni_portable.models.tiny_encoders import tiny_clip, tiny_t5
from omni_portable.models.tiny_vae import tiny_kl_vae


def build_tiny_sd3(
    path: Path,
    *,
    seed: int = 0,
    encoders: Sequence[str] = ("text_encoder", "text_encoder_2"),
    layers: int = 2,
    heads: int = 2,
    head_dim: int = 8,
    dual_attention_layers: Sequence[int] = (),
    qk_norm: str | None = None,
    latent_channels: int = 4,
    clip_width: int = 16,
    joint_width: int = 40,
    clip_tokens: int = 16,
    vae_blocks: int = 2,
    shift: float = 3.0,
    dynamic_shifting: bool = False,
    max_shard_size: str = "1GB",
) -> Path:
    """Write the folder and return its path; equal arguments give equal bytes of weights.

    Args:
        path: where to; created.
        encoders: which of 'text_encoder', 'text_encoder_2' (CLIPs) and 'text_encoder_3' (T5).
        layers / heads / head_dim: of the transformer.
        dual_attention_layers / qk_norm: as in SD3.5 Medium, e.g. (0,) and 'rms_norm'.
        clip_width: hidden and projection width of each CLIP; joint_width must be at least twice that.
        clip_tokens: tokens of a CLIP prompt.
        vae_blocks: the VAE shrinks each side by 2 ** (vae_blocks - 1).
        shift / dynamic_shifting: of the scheduler.
        max_shard_size: makes sharded weights when small ('20KB').
    """
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(seed)
        parts = {
            "transformer": SD3Transformer2DModel(
                sample_size=8,
                patch_size=2,
                in_channels=latent_channels,
                out_channels=latent_channels,
                num_layers=layers,
                attention_head_dim=head_dim,
                num_attention_heads=heads,
                joint_attention_dim=joint_width,
                caption_projection_dim=heads * head_dim,
                pooled_projection_dim=2 * clip_width,
                pos_embed_max_size=16,
                dual_attention_layers=tuple(dual_attention_layers),
                qk_norm=qk_norm,
            ),
            "vae": tiny_kl_vae(latent_channels, vae_blocks),
            "scheduler": FlowMatchEulerDiscreteScheduler(shift=shift, use_dynamic_shifting=dynamic_shifting),
            **_clip("", encoders, clip_width, clip_tokens),
            **_clip("_2", encoders, clip_width, clip_tokens),
            **_t5(encoders, joint_width),
        }
        StableDiffusion3Pipeline(**parts).save_pretrained(path, max_shard_size=max_shard_size)
    return path


def build_tiny_sd3_teacher(path: Path) -> Path:
    """A random transformer of the shapes of the packaged model ('builtin:glyph-sd3'), for that to be distilled from;
    autoencoder, text encoders and tokenizers are the packaged ones."""
    build_tiny_sd3(path, seed=1, layers=3, heads=3, head_dim=32, qk_norm="rms_norm", clip_width=64, joint_width=128)
    for component in ("vae", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"):
        shutil.rmtree(path / component)
        shutil.copytree(packaged("glyph-sd3") / component, path / component)
    return path


def _clip(suffix: str, encoders: Sequence[str], width: int, tokens: int) -> dict[str, object]:
    names = (f"text_encoder{suffix}", f"tokenizer{suffix}")
    present = names[0] in encoders
    return dict(
        zip(names, tiny_clip(CLIPTextModelWithProjection, width, tokens) if present else (None, None), strict=True)
    )


def _t5(encoders: Sequence[str], width: int) -> dict[str, object]:
    return dict(zip((T5, "tokenizer_3"), tiny_t5(width) if T5 in encoders else (None, None), strict=True))
