"""A tiny LTX-2.3 folder with random weights, made offline: same classes, same file layout. It draws noise."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    FlowMatchEulerDiscreteScheduler,
    LTX2Pipeline,
    LTX2VideoTransformer3DModel,
)
from diffusers.pipelines.ltx2 import LTX2TextConnectors, LTX2Vocoder
from diffusers.pipelines.ltx2.vocoder import LTX2VocoderWithBWE
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from omni_portable.models.loading import quiet_libraries
from omni_portable.models.tiny_text import tiny_gemma_tokenizer

TEXT_WIDTH, TEXT_LAYERS = 16, 2
VIDEO_WIDTH, AUDIO_WIDTH = 32, 16
TOKENS = 32
"""Text tokens; a multiple of the connectors' registers."""
SAMPLE_RATE, MEL_HOP, MEL_BINS = 1600, 16, 16


def build_tiny_ltx2(path: Path, *, seed: int = 0, bandwidth_extension: bool = True) -> Path:
    """Write the folder and return its path; equal arguments give equal bytes of weights.

    Args:
        bandwidth_extension: the vocoder of LTX-2.3, whose sound has twice the sample rate of its spectrograms; false
            for that of LTX-2.
    """
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(seed)
        tokenizer = tiny_gemma_tokenizer(TOKENS)
        parts = {
            "tokenizer": tokenizer,
            "text_encoder": _text_encoder(len(tokenizer)),
            "connectors": _connectors(),
            "transformer": _transformer(),
            "vae": _video_vae(),
            "audio_vae": _audio_vae(),
            "vocoder": _vocoder(bandwidth_extension),
            "scheduler": FlowMatchEulerDiscreteScheduler(
                use_dynamic_shifting=True,
                base_image_seq_len=1024,
                max_image_seq_len=4096,
                base_shift=0.95,
                max_shift=2.05,
                shift_terminal=0.1,
            ),
        }
        LTX2Pipeline(**parts).save_pretrained(path)
    return path


def _transformer() -> LTX2VideoTransformer3DModel:
    return LTX2VideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=VIDEO_WIDTH // 2,
        cross_attention_dim=VIDEO_WIDTH,
        vae_scale_factors=(8, 32, 32),
        gated_attn=True,
        cross_attn_mod=True,
        audio_in_channels=8,
        audio_out_channels=8,
        audio_num_attention_heads=2,
        audio_attention_head_dim=AUDIO_WIDTH // 2,
        audio_cross_attention_dim=AUDIO_WIDTH,
        audio_sampling_rate=SAMPLE_RATE,
        audio_hop_length=MEL_HOP,
        audio_gated_attn=True,
        audio_cross_attn_mod=True,
        num_layers=2,
        caption_channels=TEXT_WIDTH,
        rope_type="split",
        use_prompt_embeddings=False,
        perturbed_attn=True,
    )


def _text_encoder(vocabulary: int) -> Gemma3ForConditionalGeneration:
    text = {
        "vocab_size": vocabulary,
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": 2 * TEXT_WIDTH,
        "num_hidden_layers": TEXT_LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    vision = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 16,
        "patch_size": 8,
    }
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=4)
    return Gemma3ForConditionalGeneration(config)


def _connectors() -> LTX2TextConnectors:
    return LTX2TextConnectors(
        caption_channels=TEXT_WIDTH,
        text_proj_in_factor=TEXT_LAYERS + 1,
        video_connector_num_attention_heads=2,
        video_connector_attention_head_dim=VIDEO_WIDTH // 2,
        video_connector_num_layers=1,
        video_connector_num_learnable_registers=8,
        video_gated_attn=True,
        audio_connector_num_attention_heads=2,
        audio_connector_attention_head_dim=AUDIO_WIDTH // 2,
        audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=8,
        audio_gated_attn=True,
        rope_type="split",
        per_modality_projections=True,
        video_hidden_dim=VIDEO_WIDTH,
        audio_hidden_dim=AUDIO_WIDTH,
        proj_bias=True,
    )


def _video_vae() -> AutoencoderKLLTX2Video:
    vae = AutoencoderKLLTX2Video(
        latent_channels=8,
        block_out_channels=(8, 16, 16, 16),
        decoder_block_out_channels=(8, 16, 32),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        spatial_compression_ratio=32,
        temporal_compression_ratio=8,
    )
    _spread(vae)
    return vae


def _audio_vae() -> AutoencoderKLLTX2Audio:
    vae = AutoencoderKLLTX2Audio(
        base_channels=8,
        ch_mult=(1, 1, 1),
        num_res_blocks=1,
        resolution=MEL_BINS,
        latent_channels=2,
        sample_rate=SAMPLE_RATE,
        mel_hop_length=MEL_HOP,
        mel_bins=MEL_BINS,
    )
    _spread(vae)
    return vae


def _spread(vae: AutoencoderKLLTX2Video | AutoencoderKLLTX2Audio) -> None:
    """Statistics of the latents that are not those of the plain normal distribution."""
    steps = torch.arange(vae.latents_mean.numel(), dtype=torch.float32)
    vae.latents_mean.copy_(0.05 * steps)
    vae.latents_std.copy_(1.0 + 0.1 * steps)


def _vocoder(bandwidth_extension: bool) -> LTX2Vocoder | LTX2VocoderWithBWE:
    common = {
        "in_channels": 2 * MEL_BINS,
        "hidden_channels": 8,
        "out_channels": 2,
        "upsample_kernel_sizes": [8, 8],
        "upsample_factors": [4, 4],
        "resnet_kernel_sizes": [3],
        "resnet_dilations": [[1, 1, 1]],
    }
    if not bandwidth_extension:
        return _quieter(LTX2Vocoder(**common, output_sampling_rate=SAMPLE_RATE))
    vocoder = LTX2VocoderWithBWE(
        **common,
        act_fn="snakebeta",
        bwe_in_channels=2 * MEL_BINS,
        bwe_hidden_channels=8,
        bwe_upsample_kernel_sizes=[8, 16],
        bwe_upsample_factors=[4, 8],
        bwe_resnet_kernel_sizes=[3],
        bwe_resnet_dilations=[[1, 1, 1]],
        filter_length=32,
        hop_length=16,
        window_length=32,
        num_mel_channels=MEL_BINS,
        input_sampling_rate=SAMPLE_RATE,
        output_sampling_rate=2 * SAMPLE_RATE,
    )
    _quieter(vocoder.vocoder)
    _quieter(vocoder.bwe_generator)
    _fill_transforms(vocoder)
    return vocoder


def _quieter(vocoder: LTX2Vocoder) -> LTX2Vocoder:
    """Keep random sound away from full scale, where it would be clipped."""
    with torch.no_grad():
        vocoder.conv_out.weight.mul_(0.2)
    return vocoder


def _fill_transforms(vocoder: LTX2VocoderWithBWE) -> None:
    """Give the spectrogram's buffers, which are empty without a checkpoint, a Fourier and a band basis."""
    forward = vocoder.mel_stft.stft_fn.forward_basis
    size = forward.shape[-1]
    angles = 2 * math.pi * torch.outer(torch.arange(size // 2 + 1), torch.arange(size)) / size
    basis = torch.cat([angles.cos(), -angles.sin()]) * torch.hann_window(size)
    forward.copy_(basis.unsqueeze(1))
    vocoder.mel_stft.mel_basis.copy_(torch.rand_like(vocoder.mel_stft.mel_basis))
