"""How to load the run's model, as plain values that travel to the engine's processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from omni_portable.config.plugins import plugin_options
from omni_portable.contracts.device import AttentionChoice
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.weights import dtype_name


def encode_load(load: ModelLoad) -> dict[str, Any]:
    """Plain values of a load."""
    options: Any = load.options
    return {
        "path": str(load.path),
        "dtype": dtype_name(load.dtype),
        "attention": {name: asdict(choice) for name, choice in load.attention.items()},
        "options": {} if options is None else asdict(options),
    }


def decode_load(message: Mapping[str, Any], device: torch.device, family: str) -> ModelLoad:
    """Inverse of :func:`encode_load`, on a worker's device."""
    options = plugin_options("model", family, message["options"], key="model.family")
    return ModelLoad(
        path=Path(message["path"]),
        torch_device=device,
        dtype=getattr(torch, message["dtype"]),
        attention={name: AttentionChoice(**choice) for name, choice in message["attention"].items()},
        options=options,
    )
