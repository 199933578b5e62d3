"""The driver of training that VeOmni shards."""

from __future__ import annotations

from pathlib import Path

from omni_backends.training.evidence import warn_unproven
from omni_backends.training.fsdp2.engine import Fsdp2TrainEngine
from omni_backends.training.veomni import SPEC
from omni_backends.training.veomni.names import check_family
from omni_backends.training.veomni.options import VeOmniOptions
from omni_backends.training.veomni.requirements import check_installed
from omni_backends.training.veomni.settings import settings
from omni_backends.training.veomni.weights import write_weights
from omni_portable.config.plugins import plugin_options
from omni_portable.contracts.errors import CapabilityError
from omni_portable.contracts.training import Policy
from omni_portable.models.setup import EngineSetup
from omni_portable.models.weights import dtype_name
from omni_portable.rollout.distant import brought


class VeOmniTrainEngine(Fsdp2TrainEngine):
    """A train engine (see `contracts.training.TrainEngine`) of `actor.world_size` processes, started here.

    The model is that of the family's adapter, whose forward is the rollout's; VeOmni wraps it (FSDP2 or hybrid
    sharding, mixed precision, offload) and, where it has the code, splits its sequences. The rest is as in
    `Fsdp2TrainEngine`, whose checkpoints this engine reads and writes too.

    Args:
        setup: configuration, device, how to load the model, and what the algorithm requires.

    Raises:
        PluginError: VeOmni is missing or of another version.
        CapabilityError: a model or an option that this engine cannot serve.
        ConfigError: a value of the `actor` section that cannot work.
        RankError: a process could not start.
    """

    name = "veomni"
    rank_class = "omni_backends.training.veomni.rank:VeOmniRank"
    distils = False

    def __init__(self, setup: EngineSetup) -> None:
        self._options = _check_setup(setup)
        warn_unproven(SPEC, setup.device)
        super().__init__(setup)

    def export(self, folder: Path, policy: Policy = "current") -> None:
        """As of any engine; with `actor.options.export_own` also ``veomni/``, which VeOmni's own class loads."""
        super().export(folder, policy)
        if self._options.export_own:
            write_weights(
                self._setup.config.model.family,
                folder / "veomni",
                {name: brought(tensor) for name, tensor in self.weights(policy)},
            )


def _check_setup(setup: EngineSetup) -> VeOmniOptions:
    """Everything that can be found out before a process starts."""
    config = setup.config
    options: VeOmniOptions = plugin_options("train_engine", "veomni", config.actor.options, key="actor.options")
    if options.weights or options.export_own:
        check_family(config.model.family)
    if options.export_own and config.model.lora.rank:
        raise CapabilityError(
            "actor.options.export_own writes all weights of a model, but model.lora.rank trains an adapter",
            remedy="set actor.options.export_own=false; the LoRA is exported as peft and diffusers load it",
        )
    settings(
        config.actor,
        options,
        dtype=dtype_name(setup.load.dtype),
        lora=bool(config.model.lora.rank),
        device_type=setup.device.torch_device_type,
        pinned=False,
    )
    check_installed()
    return options
