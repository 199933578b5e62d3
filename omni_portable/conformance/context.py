"""What checks work with: the device under test, the recipe, a scratch folder, and what several checks share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from omni_portable.config.loader import load_config
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.device import Device
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.models.setup import EngineSetup, load_adapter
from omni_portable.trainer.preflight import Prepared, PreparedModel, prepare, prepare_algorithm, prepare_model

PACKAGED_RECIPE = "sd3/flow_grpo_ocr_tiny"
"""The recipe of the packaged model: the default of a conformance run, and what recorded references were made with."""


@dataclass
class Context:
    """One conformance run. Everything but the arguments is made when a check first asks for it, and kept.

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
    def model(self) -> PreparedModel:
        """The recipe's model resolved for the device: dtype, attention kernels, how it loads. Builds no scorer."""
        return prepare_model(self.config, self.device)

    @cached_property
    def prepared(self) -> Prepared:
        """The whole recipe, resolved for the device; building its scorers takes seconds."""
        return prepare(self.config, self.device)

    @cached_property
    def setup(self) -> EngineSetup:
        """What engines are built from."""
        return EngineSetup(self.config, self.device, self.model.load, prepare_algorithm(self.config).requires)

    @cached_property
    def adapter(self) -> DiffusionAdapter:
        """The recipe's model with all its parts, loaded once; checks must not change its weights."""
        return load_adapter(self.setup, ("transformer", "text_encoder", "vae"))

    @cached_property
    def bare_adapter(self) -> DiffusionAdapter:
        """The recipe's model without weights: it knows shapes and schedules."""
        return load_adapter(self.setup, ())

    @cached_property
    def packaged(self) -> Context:
        """The same device with the packaged model's recipe, which is small and known whatever recipe is checked."""
        config = load_config(PACKAGED_RECIPE, [f"device.name={self.device_name}"])
        return self if config == self.config else Context(self.device, config, self.work, self.seed)
