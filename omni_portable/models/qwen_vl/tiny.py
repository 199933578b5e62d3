"""Tiny Qwen2.5-VL and Qwen3-VL folders, made offline in seconds: same classes, same file layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from omni_portable.contracts.model import ModelLoad
from omni_portable.models.autoregressive.adapter import COMPONENTS
from omni_portable.models.autoregressive.tiny_media import COLOUR_QUESTION
from omni_portable.models.autoregressive.tiny_parts import VISION_TOKENS, rope, vision_preprocessor, write_json
from omni_portable.models.autoregressive.tiny_tokenizer import byte_tokenizer
from omni_portable.models.autoregressive.warm_start import media_questions, retrain
from omni_portable.models.loading import quiet_libraries
from omni_portable.models.qwen_vl.adapter import QwenVLAdapter

PATCH = 8
HIDDEN, HEADS, KEY_VALUE_HEADS, HEAD_DIM = 32, 4, 2, 32


def build_tiny_qwen3_vl(path: Path, *, seed: int = 0, layers: int = 2) -> Path:
    """Write a Qwen3-VL folder and return its path; equal arguments give equal bytes of weights."""
    vision = {**_vision(), "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    text = {**_text(layers), "head_dim": HEAD_DIM, "rope_parameters": rope(HEAD_DIM, mrope_interleaved=True)}
    return _write(path, seed, Qwen3VLConfig, Qwen3VLForConditionalGeneration, text, vision, video=True)


def build_answering_qwen3_vl(path: Path) -> Path:
    """A tiny Qwen3-VL that answers questions about a colour in the right form, at random (seconds)."""
    return _build_trained(path, right=False)


def build_knowing_qwen3_vl(path: Path) -> Path:
    """A tiny Qwen3-VL that knows its colours: a teacher (seconds)."""
    return _build_trained(path, right=True)


def _build_trained(path: Path, *, right: bool) -> Path:
    build_tiny_qwen3_vl(path)
    adapter = QwenVLAdapter(ModelLoad(path, torch.device("cpu"), torch.float32, components=COMPONENTS))
    retrain(adapter, media_questions(adapter, (COLOUR_QUESTION,), right=right), path)
    return path


def build_tiny_qwen2_5_vl(path: Path, *, seed: int = 0, layers: int = 2, heads: int = HEADS) -> Path:
    """Write a Qwen2.5-VL folder and return its path; equal arguments give equal bytes of weights.

    Args:
        heads: of the language model, whose size is 32 divided by their number.
    """
    vision = {**_vision(), "window_size": 32, "fullatt_block_indexes": [1]}
    shape = {"num_attention_heads": heads, "num_key_value_heads": min(heads, KEY_VALUE_HEADS)}
    text = {**_text(layers), **shape, "rope_parameters": rope(HIDDEN // heads)}
    return _write(path, seed, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, text, vision, video=False)


def _vision() -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "patch_size": PATCH,
        "out_hidden_size": HIDDEN,
        "initializer_range": 0.1,
    }


def _text(layers: int) -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "max_position_embeddings": 2048,
        "initializer_range": 0.1,
        "bos_token_id": None,
    }


def _write(
    path: Path, seed: int, config_class: Any, cls: Any, text: dict[str, Any], vision: dict[str, Any], *, video: bool
) -> Path:
    tokenizer = byte_tokenizer(VISION_TOKENS)
    ids = dict(zip(VISION_TOKENS, tokenizer.convert_tokens_to_ids(list(VISION_TOKENS)), strict=True))
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = config_class(
        text_config={**text, "vocab_size": len(tokenizer), **ends},
        vision_config=vision,
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        **ends,
    )
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(seed)
        model = cls(config).eval()
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    write_json(path / "preprocessor_config.json", vision_preprocessor(PATCH))
    if video:
        write_json(path / "video_preprocessor_config.json", vision_preprocessor(PATCH, max_pixels=16 * 64 * 256))
    return path
