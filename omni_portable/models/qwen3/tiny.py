"""A tiny Qwen3 folder with random weights, made offline in a second: same class, same file layout."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from omni_portable.contracts.model import ModelLoad
from omni_portable.models.autoregressive.adapter import COMPONENTS
from omni_portable.models.autoregressive.tiny_tokenizer import byte_tokenizer
from omni_portable.models.autoregressive.warm_start import retrain
from omni_portable.models.loading import quiet_libraries
from omni_portable.models.qwen3.adapter import Qwen3Adapter

LETTERS = string.ascii_lowercase[:4]
LETTER_PROMPTS = ("letter: {}", "repeat: {}", "answer: {}", "{}")


def build_tiny_qwen3(
    path: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 32,
    heads: int = 4,
    key_value_heads: int = 2,
    tied: bool = False,
    max_shard_size: str = "1GB",
) -> Path:
    """Write the folder and return its path; equal arguments give equal bytes of weights.

    Args:
        path: where to; created.
        layers / hidden / heads / key_value_heads: of the language model.
        tied: input and output embeddings are one tensor, as in the small published models.
        max_shard_size: makes sharded weights when small ('20KB').
    """
    tokenizer = byte_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=max(32, hidden // heads),
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.1,
    )
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).eval()
        model.save_pretrained(path, max_shard_size=max_shard_size)
        tokenizer.save_pretrained(path)
    return path


def build_answering_qwen3(path: Path) -> Path:
    """A tiny Qwen3 that answers "letter: c" with one of the first four letters, at random (seconds)."""
    build_tiny_qwen3(path)
    adapter = Qwen3Adapter(ModelLoad(path, torch.device("cpu"), torch.float32, components=COMPONENTS))
    prompts = [template.format(letter) for template in LETTER_PROMPTS for letter in LETTERS]
    retrain(adapter, [(adapter.build_inputs(prompt, {}), LETTERS) for prompt in prompts], path)
    return path
