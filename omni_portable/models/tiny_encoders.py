"""Tiny CLIP and T5 encoders with random weights and their tokenizers (one token per character), made in code; weights
follow torch's seed."""

from __future__ import annotations

from typing import Any

from transformers import CLIPTextConfig, CLIPTokenizer, T5Config, T5EncoderModel, T5TokenizerFast

from omni_portable.models.tiny_text import CHARACTERS, tiny_t5_tokenizer


def tiny_clip(cls: Any, width: int, tokens: int) -> tuple[Any, CLIPTokenizer]:
    """A model of `cls` (a CLIP text model of transformers), hidden and projection width `width`, and its tokenizer."""
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
    return cls(config), tokenizer


def tiny_t5(width: int) -> tuple[T5EncoderModel, T5TokenizerFast]:
    """A T5 encoder of two layers and its tokenizer."""
    tokenizer = tiny_t5_tokenizer()
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=width,
        d_kv=8,
        d_ff=2 * width,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    return T5EncoderModel(config), tokenizer
