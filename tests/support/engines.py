"""Engine setups for tests: a model family, the real CPU device, a small configuration."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_portable.config.schema import ActorConfig, LoraConfig, ModelConfig, RolloutConfig, RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.setup import EngineSetup


def make_setup(
    family: str = "toy", path: Path = Path("toy"), *, lora_rank: int = 4, options: Any = None, **rollout: Any
) -> EngineSetup:
    """fp32 on the CPU; `rollout` overrides keys of the rollout section."""
    config = RunConfig(
        model=ModelConfig(family=family, path=str(path), lora=LoraConfig(rank=lora_rank)),
        rollout=RolloutConfig(**({"max_num_seqs": 32, "height": 32, "width": 32} | rollout)),
        actor=ActorConfig(),
    )
    load = ModelLoad(path=path, torch_device=torch.device("cpu"), dtype=torch.float32, options=options)
    return EngineSetup(config=config, device=registry.load("device", "cpu")(), load=load)


def require_installed(*modules: str) -> None:
    """Skip the calling test module where one of these packages is not installed (nothing is imported)."""
    found = {name: find_spec(name) for name in modules}
    missing = [name for name, spec in found.items() if spec is None or spec.origin is None]  # a folder is no package
    if missing:
        pytest.skip(f"{missing[0]} is not installed: make setup-engines", allow_module_level=True)
