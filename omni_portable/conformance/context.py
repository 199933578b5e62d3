"""What checks work with: the device under test, the recipe, a scratch folder, and what several checks share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from omni_portable.config.schema import RunConfig
from omni_portable.contracts.device import Device
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.models.setup import EngineSetup, load_adapter
from omni_portable.trainer.preflight import Prepared, prepare


@dataclass
class Context:
    """One conformance run.

    Args:
        device: under test, already chosen and present.
        config: the recipe, with `device.name` set to the device under test.
        work: an empty folder that is removed afterwards.
        seed: of everything that is drawn.
    """

    device: Device
    config: RunConfig
    work: Path
    seed: int = 0

    @property
    def device_name(self) -> str:
        """'NAME' or 'NAME:GENERATION', as `device.name` takes it."""
        return f"{self.device.name}:{self.device.generation}" if self.device.generation else self.device.name

    @cached_property
    def prepared(self) -> Prepared:
        """The recipe, resolved for the device."""
        return prepare(self.config)

    @cached_property
    def setup(self) -> EngineSetup:
        """What engines are built from."""
        prepared = self.prepared
        return EngineSetup(self.config, prepared.device, prepared.load, prepared.algorithm.requires)

    @cached_property
    def adapter(self) -> DiffusionAdapter:
        """The recipe's model with all its parts, loaded once."""
        return load_adapter(self.setup, ("transformer", "text_encoder", "vae"))
