"""Tiny transformers of the families that VeOmni has classes for."""

from __future__ import annotations

import functools
import importlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from diffusers import LTX2VideoTransformer3DModel, MiniMaxH3Transformer3DModel, WanTransformer3DModel

from omni_portable.config.tiny import tiny_builder


@functools.cache
def tiny_folder(family: str) -> Path:
    """Of a whole tiny model; made once per process."""
    module, _, function = tiny_builder(family).partition(":")
    path = Path(tempfile.mkdtemp(prefix="tiny-")) / "model"
    getattr(importlib.import_module(module), function)(path)
    return path


def ltx() -> Any:
    """LTX-2.3 with every parameter moved away from its initial value."""
    return _stirred(LTX2VideoTransformer3DModel.from_pretrained(tiny_folder("ltx2") / "transformer"))


def h3() -> Any:
    return _stirred(MiniMaxH3Transformer3DModel.from_pretrained(tiny_folder("minimax_h3") / "transformer"))


def wan() -> Any:
    return _stirred(WanTransformer3DModel.from_pretrained(tiny_folder("wan22") / "transformer"))


def _stirred(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval().requires_grad_(False)
