"""What the workers hold, read back."""

from __future__ import annotations

from collections.abc import Iterable

from omni_backends.sync.calls import call_workers
from omni_backends.sync.report import Call
from omni_portable.contracts.errors import WeightSyncError


def collect_checksums(call: Call, names: Iterable[str] | None = None) -> dict[str, str]:
    """Canonical name -> checksum of what every worker really holds.

    Raises:
        EngineEndedError: the engine's process is gone.
        WeightSyncError: a worker could not say, or two workers hold different values; names worker and tensor.
    """
    wanted = None if names is None else list(names)
    answers = call_workers(call, "weights_checksum", {"names": wanted})
    first: dict[str, str] = dict(answers[0]["checksums"])
    for rank, answer in enumerate(answers[1:], start=1):
        found = answer["checksums"]
        differing = [name for name in {**first, **found} if first.get(name) != found.get(name)]
        if differing:
            raise WeightSyncError(
                f"rollout workers 0 and {rank} hold different values of '{differing[0]}' ({len(differing)} tensors)"
            )
    return first
