"""The engine's transformers as one policy: usually one module, two where a family has experts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from omni_backends.rollout.vllm_omni.bridges import Bridge, EngineTransformer
from omni_portable.models.wan22.experts import HIGH_NOISE, LOW_NOISE, Experts


def components(folder: Path) -> tuple[str, ...]:
    """Subfolders that hold transformers, in the order of the policy."""
    return tuple(name for name in (HIGH_NOISE, LOW_NOISE) if (folder / name / "config.json").is_file())


def make_transformers(bridge: Bridge, od_config: Any, folder: Path) -> dict[str, torch.nn.Module]:
    """Component -> the engine's module, its weights not loaded."""
    made = {}
    for name in components(folder):
        config: Mapping[str, Any] = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
        made[name] = bridge.make(od_config, config)
    return made


def bridged(bridge: Bridge, transformers: Mapping[str, torch.nn.Module]) -> torch.nn.Module:
    """What the adapter calls; experts are told apart as in the family's own class."""
    called = {name: EngineTransformer(bridge, module) for name, module in transformers.items()}
    if len(called) == 1:
        return next(iter(called.values()))
    return Experts(called[HIGH_NOISE], called[LOW_NOISE], (HIGH_NOISE, LOW_NOISE)).eval()


def policy_prefixes(transformers: Mapping[str, torch.nn.Module]) -> dict[str, str]:
    """Component -> what its names start with among the policy's."""
    return {name: "" if len(transformers) == 1 else f"{name}." for name in transformers}


def policy_modules(transformers: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Module]]:
    """The engine's names of all submodules, as the family's layout maps them."""
    for name, prefix in policy_prefixes(transformers).items():
        for path, module in transformers[name].named_modules():
            yield prefix + path, module


def policy_parameters(transformers: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The engine's names of all parameters, as the family's layout maps them."""
    for name, prefix in policy_prefixes(transformers).items():
        for path, parameter in transformers[name].named_parameters():
            yield prefix + path, parameter
