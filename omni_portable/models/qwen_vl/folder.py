"""What the config file of a Qwen2.5-VL or Qwen3-VL folder says; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ModelError
from omni_portable.models.autoregressive.folder import language_request
from omni_portable.models.folders import read_json

TYPES = ("qwen2_5_vl", "qwen3_vl")


def read_config(path: Path) -> Mapping[str, Any]:
    """`config.json` of the folder (`ModelError` where it is of another family)."""
    config = read_json(path / "config.json")
    if config.get("model_type") not in TYPES:
        raise ModelError(
            f"{path / 'config.json'} describes a {config.get('model_type')}, not a Qwen vision-language model",
            remedy="set model.family to the family of this folder, or model.path to a folder of this family",
            choices=TYPES,
        )
    if not isinstance(config.get("text_config"), dict):  # older folders of Qwen2.5-VL hold one flat configuration
        config = {**config, "text_config": config}
    return config


def attention_requests(path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
    """Of the language model; the tower computes with the same kernel."""
    return [language_request(path / "config.json", read_config(path)["text_config"], dtype, training)]
