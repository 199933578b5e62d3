"""What a language model's config file says; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_portable.contracts.device import AttentionRequest
from omni_portable.models.folders import whole_numbers

NUMBERS = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
"""Keys of a language model's configuration that are computed with."""


def language_request(file: Path, config: Mapping[str, Any], dtype: str, training: bool) -> AttentionRequest:
    """What the language model needs, by its (part of the) config file.

    Raises:
        ModelError: a key that is missing or no whole number.
    """
    whole_numbers(file, config, NUMBERS)
    heads = int(config["num_attention_heads"])
    return AttentionRequest(
        "language_model",
        dtype,
        int(config.get("head_dim") or config["hidden_size"] // heads),
        causal=True,
        grouped_query=heads != config["num_key_value_heads"],
        backward=training,
    )


def grouped_heads(head_dim: int) -> list[AttentionRequest]:
    """As :func:`language_request` for a model with fewer key than query heads that is not here."""
    return [AttentionRequest("language_model", head_dim=head_dim, causal=True, grouped_query=True)]
