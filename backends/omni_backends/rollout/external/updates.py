"""Weight updates of an engine in other processes: one channel, kept from update to update, and the last update beside
it, which is what new processes of the engine are brought to.

Where shared memory holds whole updates, the last one stays where it arrived and is not copied again (docs/decisions,
0015); elsewhere a copy is left on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from omni_backends.sync import Call, SharedMemorySender, SyncReport, send_weights
from omni_portable.contracts.weights import WeightManifest, WeightStream
from omni_portable.models.weights import make_stream


@dataclass(frozen=True)
class Held:
    """The last update, on the host: what a new process has to be brought to."""

    version: int
    manifest: WeightManifest
    tensors: Mapping[str, torch.Tensor]


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


class WeightUpdates:
    """Sends one engine's updates.

    Args:
        bucket_bytes: size of the pieces in which weights travel.

    Attributes:
        channel: shared memory, made at the first update and used again until :meth:`close`.
        held: the last update that arrived; None where none has, or where it was not to be kept.
        former: what was held before, until :meth:`settle` or the next update; for :meth:`step_back`.
    """

    def __init__(self, bucket_bytes: int) -> None:
        self.channel = SharedMemorySender(bucket_bytes)
        self.held: Held | None = None
        self.former: Held | None = None

    def send(self, stream: WeightStream, call: Call, version: int, *, keep: bool, repeat: bool = False) -> SyncReport:
        """Bring a stream into all workers; see `sync.send_weights`, also for the errors.

        Args:
            keep: hold it afterwards; without it nothing is held, since an older update would be another policy.
            repeat: what the workers hold counts for nothing (lost, or recalled), and they may be sent any version.
        """
        before, self.former = self.held, None  # the former one lies where this one is written
        kept = KeptStream(stream, keep=lambda: keep and not self.channel.lasting)
        report = send_weights(kept, call, version=version, channel=self.channel, repeat=repeat)
        manifest = stream.manifest
        self.held = Held(version, manifest, self.channel.held(manifest) or kept.kept) if keep else None
        self.former = None if repeat else before
        return report

    def step_back(self, version: int) -> bool:
        """Hold what was held before the last update, where it is that `version`; :meth:`send_again` follows."""
        former, self.former = self.former, None
        if former is None or former.version != version:
            return False
        tensors = {name: tensor.clone() for name, tensor in former.tensors.items()}  # they lie where they will be sent
        self.held = replace(former, tensors=tensors)
        return True

    def settle(self) -> None:
        """Nobody goes back any more."""
        self.former = None

    def forget(self) -> None:
        """Neither the last update nor the one before counts any more."""
        self.held = self.former = None

    def send_again(self, call: Call) -> SyncReport | None:
        """Bring what is held into new processes; None where nothing is."""
        self.former = None
        if self.held is None:
            return None
        held = self.held
        stream = make_stream(held.manifest.mode, held.tensors.items(), held.manifest.lora)
        report = send_weights(stream, call, version=held.version, channel=self.channel, repeat=True)
        self.held = replace(held, tensors=self.channel.held(held.manifest) or held.tensors)
        return report

    def close(self) -> None:
        """Give the shared memory back, and forget what is held."""
        self.forget()
        self.channel.close()
