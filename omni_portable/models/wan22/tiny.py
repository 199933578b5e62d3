"""Tiny Wan 2.2 folders with random weights, made offline: same classes, same file layout. They draw noise."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import UMT5Config, UMT5EncoderModel

from omni_portable.models.loading import quiet_libraries
from omni_portable.models.tiny_text import tiny_t5_tokenizer

TEXT_WIDTH = 32
MASK_CHANNELS = 4
"""Channels of an image-to-video condition that say which frames are given, as many as frames per latent frame."""


def build_tiny_wan22(path: Path, *, seed: int = 0, shift: float = 3.0) -> Path:
    """Text to video with two experts (boundary 0.875), as Wan2.2-T2V-A14B; returns the path.

    Equal arguments give equal bytes of weights.
    """
    return _build(path, seed, experts=2, boundary=0.875, channels=4, in_channels=4, shift=shift)


def build_tiny_wan22_i2v(path: Path, *, seed: int = 0, shift: float = 3.0) -> Path:
    """First frame to video with two experts (boundary 0.9), as Wan2.2-I2V-A14B; returns the path."""
    in_channels = 4 + 4 + MASK_CHANNELS
    return _build(path, seed, experts=2, boundary=0.9, channels=4, in_channels=in_channels, shift=shift, image=True)


def build_tiny_wan22_ti2v(path: Path, *, seed: int = 0, shift: float = 5.0) -> Path:
    """One transformer with a timestep per token, as Wan2.2-TI2V-5B; returns the path."""
    return _build(path, seed, experts=1, boundary=None, channels=6, in_channels=6, shift=shift, expand_timesteps=True)


def _build(
    path: Path,
    seed: int,
    *,
    experts: int,
    boundary: float | None,
    channels: int,
    in_channels: int,
    shift: float,
    image: bool = False,
    expand_timesteps: bool = False,
) -> Path:
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(seed)
        tokenizer = tiny_t5_tokenizer()
        encoder = UMT5Config(
            vocab_size=len(tokenizer),
            d_model=TEXT_WIDTH,
            d_kv=8,
            d_ff=2 * TEXT_WIDTH,
            num_layers=2,
            num_heads=2,
            feed_forward_proj="gated-gelu",
        )
        parts = {
            "tokenizer": tokenizer,
            "text_encoder": UMT5EncoderModel(encoder),
            "vae": _vae(channels),
            "scheduler": UniPCMultistepScheduler(
                prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift
            ),
            "transformer": _transformer(in_channels, channels),
            "transformer_2": _transformer(in_channels, channels) if experts == 2 else None,
        }
        kind = WanImageToVideoPipeline if image else WanPipeline
        pipeline = kind(**parts, boundary_ratio=boundary, expand_timesteps=expand_timesteps)
        pipeline.save_pretrained(path)
    return path


def _transformer(in_channels: int, out_channels: int) -> WanTransformer3DModel:
    return WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=in_channels,
        out_channels=out_channels,
        text_dim=TEXT_WIDTH,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
    )


def _vae(channels: int) -> AutoencoderKLWan:
    return AutoencoderKLWan(
        base_dim=4,
        z_dim=channels,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.05 * index for index in range(channels)],
        latents_std=[1.0 + 0.1 * index for index in range(channels)],
    )
