"""LoRA on a transformer by peft: deterministic injection, counting what was bound, naming what travels.

Two engines that inject with the same arguments hold bit-equal adapters: the initial matrices depend on the seed and on
the module's name only, never on the global random state, on the device or on the order of injection. Adapters are kept
in fp32 whatever the base's dtype, since an optimizer step on bf16 matrices would round away.

Formula (Hu et al. 2021, arXiv:2106.09685): y = W x + (alpha / rank) B A x, A ~ U(-1/sqrt(in), 1/sqrt(in)), B = 0.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Iterator, Sequence

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import inject_adapter_in_model
from peft.tuners.lora import LoraLayer

from omni_portable.contracts.errors import ConfigError, WeightSyncError
from omni_portable.contracts.weights import LoraInfo
from omni_portable.models.weights import ADAPTER_NAME, canonical_name, checksums, tensor_checksum


def inject_lora(
    transformer: torch.nn.Module,
    *,
    rank: int,
    alpha: float,
    targets: Sequence[str],
    seed: int,
    dropout: float = 0.0,
) -> LoraInfo:
    """Freeze the module and add a LoRA to every linear layer whose name is, or ends in, one of `targets`.

    Args:
        transformer: changed in place; it must not hold a LoRA yet.
        rank: at least 1.
        alpha: scale numerator (the scale is alpha / rank), above 0.
        targets: module name suffixes at dots: 'attn.to_q' matches 'transformer_blocks.0.attn.to_q', not 'attn2.to_q'.
        seed: of the initial A matrices.
        dropout: probability in training mode.

    Raises:
        ConfigError: a bad rank, alpha or dropout, a target that matches nothing or a layer that is not linear, or a
            module that has a LoRA already.
    """
    _check_numbers(rank, alpha, dropout)
    if bound_lora_modules(transformer):
        raise ConfigError("the transformer already holds a LoRA; a second one cannot be injected")
    expected = _matching_modules(transformer, targets)
    transformer.requires_grad_(False)
    config = PeftLoraConfig(r=rank, lora_alpha=alpha, target_modules=expected, lora_dropout=dropout, bias="none")
    with torch.random.fork_rng(devices=[]):  # peft draws initial values; ours replace them
        _inject(transformer, config)
    for name, layer in lora_layers(transformer):
        _initialise(name, layer, seed)
    info = LoraInfo(rank=rank, alpha=float(alpha), targets=tuple(targets), expected_modules=len(expected))
    verify_lora(transformer, info)
    return info


def lora_layers(module: torch.nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    """Module path and layer of every injected LoRA, in module order."""
    for name, child in module.named_modules():
        if isinstance(child, LoraLayer) and ADAPTER_NAME in child.lora_A:
            yield name, child


def bound_lora_modules(module: torch.nn.Module) -> int:
    """How many modules apply their LoRA in a forward now (active, not disabled, not merged away)."""
    return sum(
        ADAPTER_NAME in layer.active_adapters and not layer.disable_adapters and not layer.merged_adapters
        for _, layer in lora_layers(module)
    )


def verify_lora(module: torch.nn.Module, info: LoraInfo) -> None:
    """Read back from the layers themselves that `info` is what a forward applies: module count, rank and scale.

    Raises:
        WeightSyncError: fewer or more bound modules than expected, or a layer with another rank or scale.
    """
    bound = bound_lora_modules(module)
    if bound != info.expected_modules:
        raise WeightSyncError(
            f"{bound} modules apply the LoRA, expected {info.expected_modules} (targets {', '.join(info.targets)})"
        )
    scale = info.alpha / info.rank
    for name, layer in lora_layers(module):
        found = (layer.r[ADAPTER_NAME], layer.scaling[ADAPTER_NAME])
        if found != (info.rank, scale):
            raise WeightSyncError(
                f"the LoRA at '{name}' has rank {found[0]} and scale {found[1]}, expected {info.rank} and {scale}"
            )


def lora_named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Canonical name ('...to_q.lora_A.weight') and parameter of every LoRA matrix, in module order."""
    for name, parameter in module.named_parameters():
        if ".lora_A." in name or ".lora_B." in name:
            yield canonical_name(name), parameter


def lora_checksums(module: torch.nn.Module) -> dict[str, str]:
    """What two engines compare after a sync: the checksum of every LoRA matrix and, as '<module>.lora_scale', of the
    scale that each layer really applies (a stale scale would otherwise go unnoticed)."""
    found = checksums(lora_named_tensors(module))
    for name, layer in lora_layers(module):
        found[f"{name}.lora_scale"] = tensor_checksum(torch.tensor(layer.scaling[ADAPTER_NAME], dtype=torch.float64))
    return found


def trainable_named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Canonical name and parameter of everything that requires a gradient, in module order."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            yield canonical_name(name), parameter


def _check_numbers(rank: int, alpha: float, dropout: float) -> None:
    if rank < 1:
        raise ConfigError(f"model.lora.rank is {rank}; a LoRA needs a rank of at least 1")
    if not (alpha > 0 and math.isfinite(alpha)):
        raise ConfigError(f"model.lora.alpha is {alpha}; the scale alpha / rank must be above 0")
    if not 0 <= dropout < 1:
        raise ConfigError(f"model.lora.dropout is {dropout}; it must be in [0, 1)")


def _matching_modules(transformer: torch.nn.Module, targets: Sequence[str]) -> list[str]:
    """Full names of the linear layers that the targets select; every target must select at least one."""
    if not targets:
        raise ConfigError("model.lora.targets is empty", remedy="name module suffixes such as 'attn.to_q'")
    modules = dict(transformer.named_modules())
    selected: dict[str, None] = {}
    for target in targets:
        found = [name for name in modules if name == target or name.endswith(f".{target}")]
        if not found:
            raise _unknown_target(target, modules)
        for name in found:
            if not isinstance(modules[name], torch.nn.Linear):
                kind = type(modules[name]).__name__
                raise ConfigError(f"model.lora.targets: '{target}' matches '{name}', which is {kind}, no linear layer")
            selected[name] = None
    return list(selected)


def _unknown_target(target: str, modules: dict[str, torch.nn.Module]) -> ConfigError:
    suffixes: set[str] = set()
    for name, module in modules.items():
        if isinstance(module, torch.nn.Linear):
            parts = name.split(".")
            index = max((i for i, part in enumerate(parts) if part.isdigit() and i < len(parts) - 1), default=-1)
            start = index + 1 if index < len(parts) - 2 or not parts[-1].isdigit() else index
            suffixes.add(".".join(parts[start:]))
    close = difflib.get_close_matches(target, suffixes, n=1, cutoff=0.5)
    return ConfigError(
        f"model.lora.targets: '{target}' matches no module of the transformer",
        remedy=f"did you mean '{close[0]}'?" if close else "take a suffix of a linear layer's name",
        choices=sorted(suffixes),
    )


def _inject(transformer: torch.nn.Module, config: PeftLoraConfig) -> None:
    """By diffusers' own method where the module has it, so that its LoRA savers and loaders know of the adapter."""
    add_adapter = getattr(transformer, "add_adapter", None)
    if callable(add_adapter):
        add_adapter(config, ADAPTER_NAME)
    else:
        inject_adapter_in_model(config, transformer, ADAPTER_NAME)


def _initialise(name: str, layer: LoraLayer, seed: int) -> None:
    down, up = layer.lora_A[ADAPTER_NAME].float(), layer.lora_B[ADAPTER_NAME].float()
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little") >> 1)
    bound = 1.0 / math.sqrt(down.in_features)
    values = torch.empty(down.weight.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
    with torch.no_grad():
        down.weight.copy_(values)
        up.weight.zero_()
