"""What the config file of a Qwen3-Omni folder says of the thinker; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ModelError
from omni_portable.models.autoregressive.folder import language_request
from omni_portable.models.folders import read_json

LEFT_OUT = ("talker.", "code2wav.")
"""Prefixes of tensors of a whole model that are not loaded."""
TOKENS = ("image_token_id", "video_token_id", "audio_token_id", "vision_start_token_id", "audio_start_token_id")


def read_thinker_config(path: Path) -> Mapping[str, Any]:
    """The thinker's part of `config.json`.

    Raises:
        ModelError: a folder of another family, or one without the tokens that media are found by.
    """
    config = read_json(path / "config.json")
    if config.get("model_type") == "qwen3_omni_moe":
        config = config.get("thinker_config") or {}
    if config.get("model_type") != "qwen3_omni_moe_thinker" or not isinstance(config.get("text_config"), dict):
        raise ModelError(
            f"{path / 'config.json'} describes no Qwen3-Omni thinker, but '{config.get('model_type')}'",
            remedy="set model.family to the family of this folder, or model.path to a folder of this family",
        )
    missing = [name for name in TOKENS if not isinstance(config.get(name), int)]
    if missing:
        raise ModelError(f"the model file {path / 'config.json'} lacks the key '{missing[0]}' of the thinker")
    return config


def attention_requests(path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
    """Of the thinker's language model; the towers compute with the same kernel."""
    config = read_thinker_config(path)
    return [language_request(path / "config.json", config["text_config"], dtype, training)]
