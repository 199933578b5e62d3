"""A tiny FLUX folder with random weights, made offline in a second: same classes, same file layout.

For tests and smoke runs; it draws noise. All components are fp32.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextModel

from omni_portable.models.loading import quiet_libraries
from omni_portable.models.tiny_encoders import tiny_clip, tiny_t5
from omni_portable.models.tiny_vae import tiny_kl_vae


def build_tiny_flux(
    path: Path,
    *,
    seed: int = 0,
    guidance_embeds: bool = True,
    dynamic_shifting: bool = True,
    latent_channels: int = 4,
    vae_blocks: int = 2,
    max_shard_size: str = "1GB",
) -> Path:
    """Write the folder and return its path; equal arguments give equal bytes of weights.

    Args:
        path: where to; created.
        guidance_embeds / dynamic_shifting: both true as in FLUX.1-dev, both false as in FLUX.1-schnell.
        vae_blocks: the VAE shrinks each side by 2 ** (vae_blocks - 1).
        max_shard_size: makes sharded weights when small ('20KB').
    """
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(seed)
        transformer = FluxTransformer2DModel(
            in_channels=4 * latent_channels,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=40,
            pooled_projection_dim=16,
            guidance_embeds=guidance_embeds,
            axes_dims_rope=(4, 6, 6),
        )
        clip, clip_tokenizer = tiny_clip(CLIPTextModel, 16, 16)
        t5, t5_tokenizer = tiny_t5(40)
        FluxPipeline(
            transformer=transformer,
            vae=tiny_kl_vae(latent_channels, vae_blocks),
            text_encoder=clip,
            tokenizer=clip_tokenizer,
            text_encoder_2=t5,
            tokenizer_2=t5_tokenizer,
            scheduler=FlowMatchEulerDiscreteScheduler(
                shift=3.0 if dynamic_shifting else 1.0, use_dynamic_shifting=dynamic_shifting
            ),
        ).save_pretrained(path, max_shard_size=max_shard_size)
    return path
