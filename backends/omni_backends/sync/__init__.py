"""Weights from a train engine to the workers of a rollout engine in other processes: streamed, verified, proved.

`send_weights` runs beside the train engine, a `WeightReceiver` in every worker of the rollout engine; between them are
the engine's own calls (names and numbers as JSON) and a channel for the bytes.
"""

from __future__ import annotations

from omni_backends.sync.copying import copy_into
from omni_backends.sync.extension import ReceiverExtension
from omni_backends.sync.memory import SharedMemorySender
from omni_backends.sync.proof import collect_checksums
from omni_backends.sync.receive import WeightReceiver
from omni_backends.sync.report import Call, SyncReport
from omni_backends.sync.send import send_weights
from omni_backends.sync.target import FormerWeights, Slice, WeightTarget

__all__ = [
    "Call",
    "FormerWeights",
    "ReceiverExtension",
    "SharedMemorySender",
    "Slice",
    "SyncReport",
    "WeightReceiver",
    "WeightTarget",
    "collect_checksums",
    "copy_into",
    "send_weights",
]
