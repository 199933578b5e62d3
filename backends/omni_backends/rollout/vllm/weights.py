"""The trainer's side of the engine's weights: bringing an update in, or building the engine anew around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from omni_backends.rollout.vllm.inventory import Inventory
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import WeightManifest, WeightStream
from omni_portable.models.weights import NamedTensorStream, make_stream, receive


class KeptStream:
    """A stream that leaves a copy of what it delivers on the host.

    Args:
        stream: read once.
        keep: asked when the stream is read; False delivers only.
    """

    def __init__(self, stream: WeightStream, *, keep: Callable[[], bool]) -> None:
        self.manifest: WeightManifest = stream.manifest
        self._stream, self._keep = stream, keep
        self.kept: dict[str, torch.Tensor] = {}

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        keep = self._keep()
        for name, tensor in self._stream:
            if keep:
                self.kept[name] = tensor.detach().to("cpu", copy=True)
            yield name, tensor


def repeated(manifest: WeightManifest, tensors: Mapping[str, torch.Tensor]) -> NamedTensorStream:
    """The stream that brought these tensors, once more."""
    return make_stream(manifest.mode, tensors.items(), manifest.lora)


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
