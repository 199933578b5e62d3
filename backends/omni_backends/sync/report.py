"""What a weight sync did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Call = Callable[[str, dict[str, Any]], list[Any]]
"""An engine's call to every worker: (method, arguments by name) -> one answer per worker, in rank order. Both sides of
it are plain JSON values."""


@dataclass(frozen=True)
class SyncReport:
    """A weight sync that arrived in every worker.

    Args:
        version: policy version that all workers hold now.
        mode: 'full' or 'adapter'.
        channel: how the bytes travelled.
        workers: number of workers that answered.
        tensors / bytes: what was sent (once, however many workers there are).
        buckets: number of pieces that the stream was cut into.
        bound_modules: LoRA modules that each worker applies; 0 in mode 'full'.
        seconds: from the first call to the last answer.
        transfer_seconds: of these, without applying the tensors.
    """

    version: int
    mode: str
    channel: str
    workers: int
    tensors: int
    bytes: int
    buckets: int
    bound_modules: int
    seconds: float
    transfer_seconds: float

    def describe(self) -> str:
        """One phrase for acknowledgements."""
        bound = f", LoRA bound to {self.bound_modules} modules" if self.mode == "adapter" else ""
        return (
            f"{self.tensors} tensors to {self.workers} workers by {self.channel} in {self.buckets} buckets{bound}, "
            f"{self.bytes / max(self.transfer_seconds, 1e-9) / 1e9:.2f} GB/s"
        )
