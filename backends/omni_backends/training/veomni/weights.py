"""Weights in the layout of VeOmni's own classes, in files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from omni_backends.training.veomni.names import canonical_tensors, own_tensors
from omni_portable.config.paths import user_path
from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import ModelError
from omni_portable.models.wan22.experts import HIGH_NOISE, LOW_NOISE
from omni_portable.models.weights import apply_tensors, named_tensors

EXPERTS = (HIGH_NOISE, LOW_NOISE)
"""Parts of a policy of two models; each has a folder of its own."""
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


def read_weights(family: str, folder: str, module: torch.nn.Module) -> None:
    """Set all weights of a module from a folder in VeOmni's layout.

    Raises:
        ModelError: no or unreadable files, or tensors that are not those of the model; names the first.
        CapabilityError: VeOmni has no class for the family.
    """
    path = user_path(folder, "actor.options.weights")
    held = {name: tensor for name, tensor in named_tensors(module).items() if ".lora_" not in name}
    found: dict[str, torch.Tensor] = {}
    for part in [part for part in EXPERTS if _of(part, held)] or [""]:
        own = canonical_tensors(family, _read(path / part))
        found |= {f"{part}.{name}" if part else name: tensor for name, tensor in own.items()}
    for name in held:
        if name not in found:
            raise ModelError(f"the weights in {path} lack '{name}'", remedy="use weights of the same model")
    for name, tensor in found.items():
        if name not in held or tensor.shape != held[name].shape:
            expected = tuple(held[name].shape) if name in held else "nothing of that name"
            raise ModelError(
                f"the weights in {path} hold '{name}' {tuple(tensor.shape)}, the model has {expected}",
                remedy="use weights of the same model",
            )
    apply_tensors(module, {name: tensor.to(held[name].dtype) for name, tensor in found.items()})


def write_weights(family: str, folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write all weights of a model, given under canonical names, as VeOmni's class loads them.

    Raises:
        RunDirectoryError: a file cannot be written.
        CapabilityError: VeOmni has no class for the family.
    """
    parts = {part: _of(part, tensors) for part in EXPERTS if _of(part, tensors)} or {"": dict(tensors)}
    for part, some in parts.items():
        own = {name: tensor.contiguous() for name, tensor in own_tensors(family, some).items()}
        path = folder / part / FILE
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(own, path, metadata={"format": "pt"})


def _of(part: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    start = f"{part}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def _read(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if (folder / INDEX).is_file():
        named = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        missing = sorted(named - {file.name for file in files})
        if missing:
            raise ModelError(f"{folder / missing[0]} is missing, which {INDEX} names")
    if not files:
        raise ModelError(f"there are no safetensors files in {folder}", remedy="check actor.options.weights")
    found: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            found |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read: {error}") from error
    return found
