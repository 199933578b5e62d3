"""The driver of training in Megatron's layers."""

from __future__ import annotations

from pathlib import Path

from omni_backends.training.evidence import warn_unproven
from omni_backends.training.fsdp2.checkpoint import Saved
from omni_backends.training.fsdp2.engine import Fsdp2TrainEngine
from omni_backends.training.megatron import SPEC, checkpoint
from omni_backends.training.megatron.policy import source_settings
from omni_backends.training.megatron.requirements import check_installed
from omni_backends.training.megatron.settings import settings
from omni_portable.config.plugins import plugin_options
from omni_portable.contracts.errors import CapabilityError
from omni_portable.models.setup import EngineSetup

FAMILIES: tuple[str, ...] = SPEC.capabilities["families"]


class MegatronTrainEngine(Fsdp2TrainEngine):
    """A train engine (see `contracts.training.TrainEngine`) of `actor.world_size` processes, started here.

    Groups of `actor.tensor_parallel` processes share every layer and score the same samples; micro-batches are dealt to
    the groups as in `Fsdp2TrainEngine`. Weights leave, and checkpoints are written, under canonical names.

    Args:
        setup: configuration, device, how to load the model, and what the algorithm requires.

    Raises:
        PluginError: Megatron-Core is missing or of another version.
        CapabilityError: a model or an option that this engine cannot serve.
        ConfigError: a value of the `actor` section that cannot work.
        RankError: a process could not start.
    """

    name = "megatron"
    rank_class = "omni_backends.training.megatron.rank:MegatronRank"
    distils = False

    def __init__(self, setup: EngineSetup) -> None:
        _check_setup(setup)
        warn_unproven(SPEC, setup.device)
        super().__init__(setup)

    def save(self, folder: Path) -> None:
        """Write weights, policy copies and optimizer state (files: see `training.state`) into an existing folder."""
        self._ranks.call("save", folder=folder)

    def load(self, folder: Path) -> None:
        """Continue exactly where :meth:`save` was called, by this engine with any layout or by 'single'.

        Raises:
            CheckpointError: a file is missing, truncated, corrupt or does not fit this run; names it.
        """
        state = checkpoint.check(folder, self._facts.shapes, self._facts.copies)
        self._ranks.call("load", folder=folder, saved=Saved(state.updated, [], state.optimizer_steps))
        self.optimizer_steps = state.optimizer_steps
        self._changed()


def _check_setup(setup: EngineSetup) -> None:
    """Everything that can be found out before a process starts."""
    config = setup.config
    options = plugin_options("train_engine", "megatron", config.actor.options, key="actor.options")
    if config.model.family not in FAMILIES:
        raise CapabilityError(
            f"model.family={config.model.family}: train engine 'megatron' trains {', '.join(FAMILIES)} only",
            remedy="set actor.engine=fsdp2",
            choices=FAMILIES,
        )
    if config.model.lora.rank:
        raise CapabilityError(
            f"model.lora.rank={config.model.lora.rank}: train engine 'megatron' trains all weights",
            remedy="set model.lora.rank=0, or actor.engine=fsdp2",
        )
    if options.layers == "transformer_engine" and setup.device.torch_device_type == "cpu":
        raise CapabilityError(
            "actor.options.layers='transformer_engine' does not run on a CPU",
            remedy="set actor.options.layers=megatron",
        )
    choice = setup.load.attention.get("language_model")
    if choice is not None and choice.actor != "sdpa":
        raise CapabilityError(
            f"device.attention.language_model: '{choice.actor}' was chosen; Megatron's layers run torch's own "
            "attention here (sdpa)",
            remedy="choose the kernel family of 'sdpa' for language_model",
        )
    check_installed(options)
    folder, size = setup.load.path, config.actor.tensor_parallel
    settings(source_settings(folder), options, tensor_parallel=size, where=str(folder))
