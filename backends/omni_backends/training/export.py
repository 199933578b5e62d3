"""What users deploy: a LoRA that peft (and, of a diffusion model, diffusers) loads, or a model folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from peft import LoraConfig
from safetensors.torch import save_file

from omni_portable.config.kinds import Kind
from omni_portable.contracts.errors import CapabilityError
from omni_portable.contracts.weights import LoraInfo

PEFT_PREFIX = "base_model.model."
DIFFUSERS_PREFIX = "transformer."


def export_lora(folder: Path, tensors: Mapping[str, torch.Tensor], info: LoraInfo, base: str, kind: Kind) -> None:
    """Write one adapter in the spellings in use for its kind of model.

    ``adapter_config.json`` + ``adapter_model.safetensors`` for `peft.PeftModel.from_pretrained` (and engines that read
    peft folders); of a diffusion model also ``pytorch_lora_weights.safetensors`` for diffusers' `load_lora_adapter` /
    `load_lora_weights`.

    Args:
        tensors: canonical LoRA name -> matrix.
        base: path or id of the base model, recorded in the configuration.
        kind: of model that is trained; diffusers has no loader for an autoregressive one.
    """
    config = LoraConfig(
        r=info.rank,
        lora_alpha=info.alpha,
        target_modules=list(info.targets),
        lora_dropout=0.0,
        bias="none",
        base_model_name_or_path=base,
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    _save(folder / "adapter_model.safetensors", PEFT_PREFIX, tensors, {"format": "pt"})
    if kind == "autoregressive":
        return
    described = {f"{DIFFUSERS_PREFIX}{key}": _plain(value) for key, value in config.to_dict().items()}
    metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(described, sort_keys=True)}
    _save(folder / "pytorch_lora_weights.safetensors", DIFFUSERS_PREFIX, tensors, metadata)


def export_full(folder: Path, module: torch.nn.Module) -> None:
    """Write ``config.json`` and safetensors as `<Transformer>.from_pretrained(folder)` reads them.

    Raises:
        CapabilityError: the module has no `save_pretrained`.
    """
    save_pretrained = getattr(module, "save_pretrained", None)
    if not callable(save_pretrained):
        raise CapabilityError(f"{type(module).__name__} has no save_pretrained, so it cannot be exported as a folder")
    save_pretrained(str(folder), safe_serialization=True)


def _save(path: Path, prefix: str, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
    flat = {prefix + name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    save_file(flat, path, metadata=metadata)


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, set) else value
