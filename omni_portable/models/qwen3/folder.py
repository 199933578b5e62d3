"""What the config file of a Qwen3 folder says; torch-free."""

from __future__ import annotations

from pathlib import Path

from omni_portable.contracts.device import AttentionRequest
from omni_portable.models.autoregressive.folder import language_request
from omni_portable.models.folders import read_json


def attention_requests(path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
    """Of the language model."""
    return [language_request(path / "config.json", read_json(path / "config.json"), dtype, training)]
