"""A LoRA that was saved before (a run's `export` folder, or any peft folder) put into a transformer again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from omni_portable.config.paths import user_path
from omni_portable.config.schema import LoraConfig
from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.contracts.weights import LoraInfo
from omni_portable.models.folders import read_json
from omni_portable.models.lora import inject_lora, lora_named_tensors
from omni_portable.models.setup import PolicyAdapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
SHOWN = 3
"""Names shown of each side where they do not match."""


def inject_configured_lora(adapter: PolicyAdapter, config: LoraConfig, seed: int) -> LoraInfo | None:
    """Inject what a recipe's `model.lora` asks for; defaults are the family's published targets and alpha = 2 x rank.

    Returns:
        None where rank is 0 (all weights are trained).

    Raises:
        ConfigError: `path` holds a LoRA of another rank, alpha or targets than the recipe gives.
        ModelError: its files are missing, corrupt, or of another model.
    """
    if config.rank == 0:
        return None
    rank, alpha = config.rank, config.alpha or 2.0 * config.rank
    targets = tuple(config.targets) or adapter.lora_targets()
    folder = user_path(config.path, "model.lora.path") if config.path else None
    if folder is not None:
        rank, alpha, targets = _agreed(folder, config)
    info = inject_lora(adapter.transformer, rank=rank, alpha=alpha, targets=targets, seed=seed, dropout=config.dropout)
    if folder is not None:
        apply_saved_lora(adapter.transformer, folder)
    return info


def _agreed(folder: Path, config: LoraConfig) -> tuple[int, float, tuple[str, ...]]:
    """The saved LoRA's settings, where the recipe's do not contradict them."""
    rank, alpha, targets = saved_lora(folder)
    for key, given, saved in (
        ("rank", config.rank, rank),
        ("alpha", config.alpha or alpha, alpha),
        ("targets", sorted(config.targets or targets), sorted(targets)),
    ):
        if given != saved:
            raise ConfigError(
                f"model.lora.{key}={given}, but the LoRA in {folder} was saved with {saved}",
                remedy=f"set model.lora.{key}={saved}",
            )
    return rank, alpha, targets


def saved_lora(folder: Path) -> tuple[int, float, tuple[str, ...]]:
    """(rank, alpha, targets) of a peft folder.

    Raises:
        ModelError: no such folder, or a configuration without these keys.
    """
    config = read_json(folder / CONFIG)
    try:
        targets = config["target_modules"]
        return int(config["r"]), float(config["lora_alpha"]), (targets,) if isinstance(targets, str) else tuple(targets)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / CONFIG} describes no LoRA: {error!r}") from error


def load_saved_lora(transformer: torch.nn.Module, folder: Path) -> LoraInfo:
    """Inject the folder's LoRA and set its matrices, in fp32.

    Raises:
        ModelError: files that are missing or corrupt, or weights whose names or shapes are not the transformer's.
        ConfigError: targets that match nothing.
    """
    rank, alpha, targets = saved_lora(folder)
    info = inject_lora(transformer, rank=rank, alpha=alpha, targets=targets, seed=0)
    apply_saved_lora(transformer, folder)
    return info


def apply_saved_lora(transformer: torch.nn.Module, folder: Path) -> None:
    """Set the matrices of a LoRA that is injected already (`ModelError` as in :func:`load_saved_lora`)."""
    saved = {name.removeprefix(PREFIX): tensor for name, tensor in _read(folder / WEIGHTS).items()}
    own = dict(lora_named_tensors(transformer))
    if saved.keys() != own.keys():
        raise ModelError(
            f"the weights of {folder} do not fit this transformer: the file lacks {_some(own.keys() - saved.keys())}, "
            f"and has {_some(saved.keys() - own.keys())} besides",
            remedy="use the LoRA of the same model and targets",
        )
    for name, tensor in own.items():
        if saved[name].shape != tensor.shape:
            raise ModelError(
                f"'{name}' of {folder} is {tuple(saved[name].shape)}, the transformer's is {tuple(tensor.shape)}",
                remedy="set model.lora.rank as it was saved",
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        tensors: dict[str, Any] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the LoRA's weights {path} cannot be read: {error}") from error
    return tensors


def _some(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown or "nothing"
