"""One process's share of the model, and its part of every command."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from omni_backends.training.fsdp2.checkpoint import Saved
from omni_backends.training.fsdp2.rank import Fsdp2Rank, RankFacts
from omni_backends.training.lifecycle import TAGS
from omni_backends.training.megatron import checkpoint
from omni_backends.training.megatron.build import build_gpt, data_group, join_groups, tensor_group
from omni_backends.training.megatron.layout import unfuse, whole
from omni_backends.training.megatron.names import place
from omni_backends.training.megatron.optim import SharedOptimizer
from omni_backends.training.megatron.policy import MegatronAdapter, MegatronPolicy, source_settings
from omni_backends.training.megatron.settings import settings
from omni_backends.training.policies import Swap
from omni_portable.config.plugins import plugin_options
from omni_portable.contracts.lifecycle import Ack
from omni_portable.contracts.training import Policy
from omni_portable.models.weights import named_tensors


class MegatronRank(Fsdp2Rank):
    """The model's folder is read into the library's class first, and from there into this rank's layers.

    Args:
        setup / rank / world_size: as of any rank.
    """

    name = "megatron"

    def facts(self) -> RankFacts:
        """What all ranks hold together, under canonical names."""
        return RankFacts(
            lora=None,
            shapes=self._shapes,
            dtypes=self._dtypes,
            copies=tuple(self._policies.copies),
            trained=(),
            routed=False,
            optimizer_steps=self.optimizer_steps,
        )

    def gather(self, policy: Policy, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Whole canonical tensors of a policy; empty from all ranks but the first."""
        self._guard.require_awake("give weights", *self._needs(policy))
        if self._layout.data_rank(self._rank) > 0:
            return {}
        masters = self._policies.masters(policy)
        fused = dict.fromkeys(place(name, fused_norms=self._shape.fused_norms).name for name in names)
        found = {name: self._whole(name, masters[name].detach()) for name in fused}
        if self._rank > 0:
            return {}
        canonical = unfuse(found, names, self._shape)
        return {name: tensor.to("cpu", self._dtypes[name]).contiguous() for name, tensor in canonical.items()}

    def sleep(self, level: int = 1, tags: Sequence[Any] = TAGS) -> Ack:
        """As of any engine."""
        return self._guard.sleep(level, tags)

    def save(self, folder: Path) -> Any:
        """Write whole tensors; the first rank does."""
        self._guard.require_awake("save", *TAGS)
        copies = {name: copy.tensors() for name, copy in self._policies.copies.items()}
        names = list(self._shapes)
        if self._layout.data_rank(self._rank) == 0:
            checkpoint.save(folder, self._optimizer, copies, names, self._shape, self._whole, write=self._rank == 0)

    def load(self, folder: Path, saved: Saved) -> None:
        """Restore this rank's shares from a folder that the driver has checked."""
        self._guard.require_awake("load", *TAGS)
        copies, size = self._policies.copies, self._layout.tensor
        others = checkpoint.load(
            folder, self._optimizer, list(copies), self._shapes, self._shape, self._rank % size, size
        )
        for name, tensors in others.items():
            copies[name].load(tensors)

    def _distribute(self) -> None:
        config, size = self._setup.config, self._layout.tensor
        options = plugin_options("train_engine", self.name, config.actor.options, key="actor.options")
        folder, dtype = self._setup.load.path, self._setup.load.dtype
        self._settings = settings(source_settings(folder), options, tensor_parallel=size, where=str(folder))
        self._shape = self._settings.shape
        trained = dict(self._module.named_parameters())
        self._shapes = {name: tuple(parameter.shape) for name, parameter in trained.items()}
        self._dtypes = {name: parameter.dtype for name, parameter in trained.items()}
        join_groups(size)
        policy = MegatronPolicy(build_gpt(self._settings, dtype), self._settings, self._rank % size, size)
        tensors = named_tensors(self._module)
        policy.load({name: tensors[name] for name in trained})
        if config.actor.gradient_checkpointing:
            policy.enable_gradient_checkpointing()
        self._module = policy.to(self._device).eval()
        self._adapter = MegatronAdapter(policy, config.model.family, self._device)
        del trained, tensors
        gc.collect()  # the library's model is not needed any more

    def _make_optimizer(self, parameters: Mapping[str, torch.nn.Parameter]) -> Any:
        return SharedOptimizer(parameters, self._setup.config.actor, tensor_group(), data_group())

    def _swap(self) -> Swap | None:  # type: ignore[override]
        return None

    def _before_backward(self, last: bool) -> None:  # the optimizer sums gradients over the data group itself
        return None

    def _whole(self, name: str, share: torch.Tensor) -> torch.Tensor:
        """A tensor from the shares of this rank's tensor group."""
        size = self._layout.tensor
        if size == 1:
            return share
        shares = [torch.empty_like(share) for _ in range(size)]
        dist.all_gather(shares, share.contiguous(), group=tensor_group())
        return whole(name, shares)
