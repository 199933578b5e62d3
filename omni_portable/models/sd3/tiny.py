"""A tiny Stable Diffusion 3 folder with random weights, made offline in a second: same classes, same file layout.

For tests and smoke runs; it draws noise. Tokenizers are built in code (one token per character).
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

from omni_portable.models.loading import quiet_libraries
from omni_portable.models.sd3.folder import T5

CHARACTERS = string.ascii_lowercase + string.digits + string.punctuation


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
            "vae": _vae(latent_channels, vae_blocks),
            "scheduler": FlowMatchEulerDiscreteScheduler(shift=shift, use_dynamic_shifting=dynamic_shifting),
            **_clip("", encoders, clip_width, clip_tokens),
            **_clip("_2", encoders, clip_width, clip_tokens),
            **_t5(encoders, joint_width),
        }
        StableDiffusion3Pipeline(**parts).save_pretrained(path, max_shard_size=max_shard_size)
    return path


def _vae(latent_channels: int, blocks: int) -> AutoencoderKL:
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=latent_channels,
        block_out_channels=(8,) * blocks,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=16,
        scaling_factor=1.5,
        shift_factor=0.06,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def _clip(suffix: str, encoders: Sequence[str], width: int, tokens: int) -> dict[str, object]:
    names = (f"text_encoder{suffix}", f"tokenizer{suffix}")
    if names[0] not in encoders:
        return dict.fromkeys(names)
    vocabulary = [*CHARACTERS, *(f"{c}</w>" for c in CHARACTERS), "<|startoftext|>", "<|endoftext|>"]
    config = CLIPTextConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        projection_dim=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=tokens,
        bos_token_id=len(vocabulary) - 2,
        eos_token_id=len(vocabulary) - 1,
        pad_token_id=len(vocabulary) - 1,
    )
    tokenizer = CLIPTokenizer(
        vocab={token: index for index, token in enumerate(vocabulary)}, merges=[], model_max_length=tokens
    )
    return {names[0]: CLIPTextModelWithProjection(config), names[1]: tokenizer}


def _t5(encoders: Sequence[str], width: int) -> dict[str, object]:
    if T5 not in encoders:
        return {T5: None, "tokenizer_3": None}
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((c, -3.0) for c in CHARACTERS)]
    config = T5Config(
        vocab_size=len(vocabulary),
        d_model=width,
        d_kv=8,
        d_ff=2 * width,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    return {T5: T5EncoderModel(config), "tokenizer_3": T5TokenizerFast(vocab=vocabulary, extra_ids=0)}
