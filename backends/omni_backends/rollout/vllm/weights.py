"""Full weights on the trainer's side, for an engine that is built anew around them."""

from __future__ import annotations

import torch

from omni_backends.rollout.vllm.inventory import Inventory
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import WeightStream
from omni_portable.models.weights import receive


def received_whole(stream: WeightStream, inventory: Inventory) -> dict[str, torch.Tensor]:
    """Read and verify a stream of full weights here, for an engine that is built anew.

    Raises:
        WeightSyncError: it does not fit the policy or its manifest, or holds a value that is not finite.
    """
    if stream.manifest.mode != "full":
        raise WeightSyncError(f"the rollout engine 'vllm' takes full weights, not mode '{stream.manifest.mode}'")
    inventory.check(stream.manifest.tensors)
    tensors = receive(stream)
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise WeightSyncError(f"the tensor '{name}' holds values that are not finite")
    return tensors
