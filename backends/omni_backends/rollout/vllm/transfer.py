"""A weight-transfer engine of vLLM whose weights are in the worker already: staged and verified on the host.

vLLM's own engines bring weights through an accelerator's transport and end by waiting for the accelerator, which a CPU
does not have. The transport here is `omni_backends.sync`; what is left is the order of vLLM's reload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from omni_backends.rollout.vllm.packed import pack_again
from omni_portable.contracts.errors import WeightSyncError


@dataclass
class StagedInitInfo(WeightTransferInitInfo):
    """Nothing has to be connected."""


@dataclass
class StagedUpdateInfo(WeightTransferUpdateInfo):
    """Number of tensors that are staged, as a check."""

    tensors: int


class StagedTransferEngine(WeightTransferEngine[StagedInitInfo, StagedUpdateInfo]):
    """Loads tensors that were handed over by :meth:`stage`."""

    init_info_cls = StagedInitInfo
    update_info_cls = StagedUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._staged: Mapping[str, torch.Tensor] = {}
        self._abandoned = False

    def stage(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Hand over what the next update loads: names as in a checkpoint."""
        self._staged, self._abandoned = tensors, False

    def abandon(self) -> None:
        """The update failed: its end must not touch the model."""
        self._staged, self._abandoned = {}, True

    def init_transfer_engine(self, init_info: StagedInitInfo) -> None:
        return

    @property
    def trained(self) -> torch.nn.Module:
        """The part that updates bring: frozen towers beside it are left alone."""
        model: torch.nn.Module = self.model
        part = getattr(model, "language_model", model)
        assert isinstance(part, torch.nn.Module)
        return part

    def start_weight_update(self) -> None:
        """Take the layers' processed weights aside."""
        initialize_layerwise_reload(self.trained)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, without waiting for an accelerator that may not be there: the next step runs on the same
        stream as the copies."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: StagedUpdateInfo) -> None:
        """Load what was staged.

        Raises:
            WeightSyncError: another number of tensors is staged.
        """
        if update_info.tensors != len(self._staged):
            raise WeightSyncError(f"{len(self._staged)} tensors are staged, {update_info.tensors} were announced")
        self.model.load_weights(iter(self._staged.items()))

    def finish_weight_update(self) -> None:
        """Process the loaded weights as at the start, and do what vLLM leaves out on a CPU."""
        if self._abandoned:
            return
        finalize_layerwise_reload(self.trained, self.model_config)
        pack_again(self.trained)
        self._staged = {}

    def shutdown(self) -> None:
        self._staged = {}
