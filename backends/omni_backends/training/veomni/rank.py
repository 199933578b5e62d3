"""One process's share of a model that VeOmni shards, and its part of every command."""

from __future__ import annotations

import torch

from omni_backends.training.fsdp2.rank import Fsdp2Rank
from omni_backends.training.fsdp2.shard import promote
from omni_backends.training.veomni.options import VeOmniOptions
from omni_backends.training.veomni.sequence import enable_sequence_parallel
from omni_backends.training.veomni.settings import settings
from omni_backends.training.veomni.shard import join_mesh, shard_module
from omni_backends.training.veomni.weights import read_weights
from omni_backends.training.worker import trainable_parameters
from omni_portable.config.plugins import plugin_options
from omni_portable.models.weights import canonical_name, dtype_name


class VeOmniRank(Fsdp2Rank):
    """As `Fsdp2Rank`, with VeOmni's wrapping, meshes and sequence parallelism.

    Args:
        setup / rank / world_size: as of any rank.
    """

    name = "veomni"

    def _distribute(self) -> None:
        config, device = self._setup.config, self._setup.device
        options: VeOmniOptions = plugin_options("train_engine", self.name, config.actor.options, key="actor.options")
        if options.weights:
            read_weights(config.model.family, options.weights, self._module)
        told = settings(
            config.actor,
            options,
            dtype=dtype_name(self._setup.load.dtype),
            lora=self._lora is not None,
            device_type=device.torch_device_type,
            pinned=bool(device.capabilities().features.get("pinned_memory")),
        )
        join_mesh(told)
        if self._layout.sequence > 1:
            enable_sequence_parallel(config.model.family, self._module, self._layout.sequence, self._device)
        before = promote(self._module)
        self._dtypes: dict[str, torch.dtype] = {
            canonical_name(name): before[id(parameter)]
            for name, parameter in self._module.named_parameters()
            if id(parameter) in before
        }
        shard_module(self._module, told)
        self._sharded = trainable_parameters(self._module)
