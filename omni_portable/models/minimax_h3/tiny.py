"""A tiny MiniMax-H3 folder with random weights, made offline: same classes, same file layout. It draws noise."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLMiniMaxH3,
    AutoencoderKLMiniMaxH3Audio,
    MiniMaxH3Scheduler,
    MiniMaxH3Transformer3DModel,
)
from transformers import Qwen2Tokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from omni_portable.models.autoregressive.tiny_parts import rope, vision_preprocessor, write_json
from omni_portable.models.loading import quiet_libraries
from omni_portable.models.minimax_h3.folder import CLASSES, PIPELINE
from omni_portable.models.tiny_qwen_vl import word_tokenizer

TEXT_WIDTH, TEXT_LAYERS, HEAD_DIM = 32, 3, 16
TEXT_LAYER = 2
"""What `model.options.text_encoder_layer` must be for the tiny folder."""
VISION_PATCH = 4
CHANNELS, AUDIO_CHANNELS = 4, 4
SAMPLE_RATE = 1600


def build_tiny_minimax_h3(path: Path, *, seed: int = 0) -> Path:
    """Write the folder and return its path; equal arguments give equal bytes of weights.

    It draws multiples of 8 pixels, and needs `text_encoder_layer: 2`.
    """
    with torch.random.fork_rng(devices=[]), quiet_libraries(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the way in which the audio autoencoder normalises weights
        torch.manual_seed(seed)
        tokenizer = word_tokenizer(["<Picture 1>: ", "<Picture 2>: "])
        parts = {
            "transformer": _transformer(),
            "text_encoder": _text_encoder(tokenizer),
            "tokenizer": tokenizer,
            "vae": _video_vae(),
            "audio_vae": _audio_vae(),
            "scheduler": MiniMaxH3Scheduler(shift=12.0),
            "audio_scheduler": MiniMaxH3Scheduler(shift=3.0),
        }
        for name, part in parts.items():
            part.save_pretrained(path / name)
    (path / "processor").mkdir()
    write_json(path / "processor" / "preprocessor_config.json", vision_preprocessor(VISION_PATCH))
    index = {name: ["diffusers", cls, {"subfolder": name}] for name, cls in CLASSES.items()}
    index["text_encoder"][0] = "transformers"
    (path / "modular_model_index.json").write_text(json.dumps({"_class_name": PIPELINE, **index}, indent=2))
    return path


def _transformer() -> MiniMaxH3Transformer3DModel:
    return MiniMaxH3Transformer3DModel(
        num_attention_heads=2,
        attention_head_dim=HEAD_DIM,
        hidden_size=32,
        num_layers=2,
        num_refiner_layers=1,
        ffn_dim=32,
        in_channels=CHANNELS,
        audio_in_channels=AUDIO_CHANNELS,
        text_dim=TEXT_WIDTH,
        freq_dim=16,
        time_embed_hidden_dim=32,
        time_embed_dim=16,
        rope_freq_dim=2,
    )


def _text_encoder(tokenizer: Qwen2Tokenizer) -> Qwen3VLForConditionalGeneration:
    token = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": 2 * TEXT_WIDTH,
        "num_hidden_layers": TEXT_LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 4096,
        "rope_parameters": rope(HEAD_DIM, mrope_interleaved=True),
    }
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "patch_size": VISION_PATCH,
        "out_hidden_size": TEXT_WIDTH,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
    )
    return Qwen3VLForConditionalGeneration(config).eval()


def _video_vae() -> AutoencoderKLMiniMaxH3:
    return AutoencoderKLMiniMaxH3(
        latent_channels=CHANNELS,
        block_out_channels=(8, 8),
        layers_per_block=1,
        spatial_downsample_factors=(2, 2),
        temporal_downsample_factors=(2, 2),
        norm_num_groups=4,
        decoder_num_layers=1,
        decoder_num_attention_heads=2,
        decoder_attention_head_dim=16,
        decoder_num_register_tokens=1,
        decoder_ffn_mult=2,
        latents_mean=tuple(0.05 * index for index in range(CHANNELS)),
        latents_std=tuple(1.0 + 0.1 * index for index in range(CHANNELS)),
    )


def _audio_vae() -> AutoencoderKLMiniMaxH3Audio:
    return AutoencoderKLMiniMaxH3Audio(
        encoder_dim=4,
        encoder_rates=(2, 4, 5),
        latent_dim=16,
        latent_channels=AUDIO_CHANNELS,
        num_attention_heads=2,
        decoder_dim=16,
        decoder_rates=(5, 4, 2),
        decoder_kernel_sizes=(9, 8, 4),
        resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1, 3),),
        sampling_rate=SAMPLE_RATE,
        latents_mean=[0.05 * index for index in range(AUDIO_CHANNELS)],
        latents_std=[1.0 + 0.1 * index for index in range(AUDIO_CHANNELS)],
    )
