"""What torch really keeps and holds: tensors saved for the backward pass, and the peak of the CPU allocator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def saved_bytes(module: torch.nn.Module, forward: Callable[[], object]) -> int:
    """Bytes of distinct storages that a forward pass saves for its backward pass, the module's own tensors aside."""
    own = {tensor.untyped_storage().data_ptr() for tensor in [*module.parameters(), *module.buffers()]}
    found: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address and address not in own:
            found.setdefault(address, tensor)  # keeping it keeps its address from being used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())


def peak_bytes(function: Callable[[], object]) -> int:
    """Largest sum of bytes that the CPU allocator held at once while the function ran, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    events = recorded.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = highest = 0
    for _, change in changes:
        held += change
        highest = max(highest, held)
    return highest
