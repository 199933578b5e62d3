"""A tiny Qwen3-Omni thinker with random weights, made offline in a second: same class, same file layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3OmniMoeThinkerForConditionalGeneration
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeThinkerConfig

from omni_portable.contracts.model import ModelLoad
from omni_portable.models.autoregressive.adapter import COMPONENTS
from omni_portable.models.autoregressive.tiny_media import COLOUR_QUESTION, TONE_QUESTION
from omni_portable.models.autoregressive.tiny_parts import (
    AUDIO_TOKENS,
    VISION_TOKENS,
    rope,
    vision_preprocessor,
    write_json,
)
from omni_portable.models.autoregressive.tiny_tokenizer import byte_tokenizer
from omni_portable.models.autoregressive.warm_start import media_questions, retrain
from omni_portable.models.loading import quiet_libraries
from omni_portable.models.qwen3_omni.adapter import Qwen3OmniAdapter

PATCH, MEL_BINS, HEAD_DIM = 8, 16, 32


def build_tiny_qwen3_omni(path: Path, *, seed: int = 0, layers: int = 2, hidden: int = 32, experts: int = 4) -> Path:
    """Write the folder and return its path; equal arguments give equal bytes of weights.

    Args:
        path: where to; created.
        layers / hidden / experts: of the thinker's language model (two experts are active per token).
    """
    tokenizer = byte_tokenizer((*VISION_TOKENS, *AUDIO_TOKENS))
    model = make_thinker(tokenizer, seed=seed, layers=layers, hidden=hidden, experts=experts)
    write_thinker(path, model, tokenizer)
    return path


def build_answering_qwen3_omni(path: Path) -> Path:
    """A tiny thinker that answers questions about a colour or a pitch in the right form, at random (seconds)."""
    build_tiny_qwen3_omni(path)
    adapter = Qwen3OmniAdapter(ModelLoad(path, torch.device("cpu"), torch.float32, components=COMPONENTS))
    retrain(adapter, media_questions(adapter, (COLOUR_QUESTION, TONE_QUESTION)), path)
    return path


def make_thinker(
    tokenizer: Any, *, seed: int, layers: int, hidden: int, experts: int
) -> Qwen3OmniMoeThinkerForConditionalGeneration:
    """The model alone, in evaluation mode."""
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in (*VISION_TOKENS, *AUDIO_TOKENS)}
    config = Qwen3OmniMoeThinkerConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "moe_intermediate_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": HEAD_DIM,
            "num_experts": experts,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 2048,
            "initializer_range": 0.1,
            "rope_parameters": rope(HEAD_DIM, interleaved=True),
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 4,
            "patch_size": PATCH,
            "out_hidden_size": hidden,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
            "initializer_range": 0.1,
        },
        audio_config={
            "num_mel_bins": MEL_BINS,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "d_model": 32,
            "output_dim": hidden,
            "downsample_hidden_size": 8,
            "initializer_range": 0.3,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        audio_token_id=ids["<|audio_pad|>"],
        audio_start_token_id=ids["<|audio_start|>"],
        initializer_range=0.1,
    )
    # The model reads these, and the configuration's class does not list them.
    starts_and_ends = {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>", "audio_end": "<|audio_end|>"}
    config.update({f"{name}_token_id": ids[token] for name, token in starts_and_ends.items()})
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(seed)
        return Qwen3OmniMoeThinkerForConditionalGeneration(config).eval()


def write_thinker(path: Path, model: Any, tokenizer: Any) -> None:
    """Weights, tokenizer and preprocessor."""
    with quiet_libraries():
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    sound = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": MEL_BINS,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
        "dither": 0.0,
        "padding_value": 0.0,
    }
    write_json(path / "preprocessor_config.json", vision_preprocessor(PATCH, **sound))
