"""What an engine is built from: the run's configuration, the device, and how to load the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.device import Device
from omni_portable.contracts.model import DiffusionAdapter, ModelLoad


@dataclass(frozen=True)
class EngineSetup:
    """Handed to the factory of every train and rollout engine: ``Engine(setup)``."""

    config: RunConfig
    device: Device
    load: ModelLoad
    requires: Requires = field(default_factory=Requires)


def load_adapter(setup: EngineSetup, components: tuple[str, ...]) -> DiffusionAdapter:
    """Load the run's model with the named components only."""
    from dataclasses import replace

    adapter: DiffusionAdapter = registry.load("model", setup.config.model.family)(
        replace(setup.load, components=components)
    )
    return adapter
