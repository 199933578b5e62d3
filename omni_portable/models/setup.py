"""What an engine is built from: the run's configuration, the device, and how to load the model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.device import Device
from omni_portable.contracts.model import DiffusionAdapter, ModelLoad
from omni_portable.contracts.ranks import RankSpawner
from omni_portable.contracts.tokens import AutoregressiveAdapter

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class EngineSetup:
    """Handed to the factory of every train and rollout engine: ``Engine(setup)``.

    Args:
        config / device / load: the run's configuration, its device, and how to load the model.
        requires: of the algorithm.
        spawn: starts the processes of a train engine that has several; None: they are its children.
    """

    config: RunConfig
    device: Device
    load: ModelLoad
    requires: Requires = field(default_factory=Requires)
    spawn: RankSpawner | None = None


class PolicyAdapter(Protocol):
    """What every adapter has, whatever kind of model it is: a module that is trained, and where LoRA goes in it."""

    @property
    def transformer(self) -> torch.nn.Module: ...

    def lora_targets(self) -> tuple[str, ...]: ...


def load_adapter(setup: EngineSetup, components: tuple[str, ...]) -> DiffusionAdapter:
    """Load the run's diffusion model with the named components only."""
    adapter: DiffusionAdapter = _load(setup, components)
    return adapter


def load_token_adapter(setup: EngineSetup, components: tuple[str, ...]) -> AutoregressiveAdapter:
    """Load the run's autoregressive model with the named components only."""
    adapter: AutoregressiveAdapter = _load(setup, components)
    return adapter


def _load(setup: EngineSetup, components: tuple[str, ...]) -> Any:
    load = replace(setup.load, components=components)
    return registry.load("model", setup.config.model.family)(load)
