"""What a worker of a rollout engine inherits to take part in weight syncs."""

from __future__ import annotations

from typing import Any

from omni_backends.sync.receive import Answer, WeightReceiver


class ReceiverExtension:
    """Mix-in for engines' worker extension classes: the calls of a sync, on a receiver made at the first of them.

    Engines mix such a class into a worker they construct themselves, so there is no constructor here and all names are
    prefixed; a subclass implements :meth:`make_weight_receiver` and nothing else.
    """

    def make_weight_receiver(self) -> WeightReceiver:
        """A receiver on this worker's model."""
        raise NotImplementedError(f"{type(self).__name__} must make its weight receiver")

    @property
    def weight_receiver(self) -> WeightReceiver:
        """The one receiver of this worker."""
        found: WeightReceiver | None = self.__dict__.get("_weight_receiver")
        if found is None:
            found = self.__dict__["_weight_receiver"] = self.make_weight_receiver()
        return found

    def weights_begin(self, manifest: dict[str, Any], version: int, repeat: bool = False) -> Answer:
        """See `WeightReceiver`."""
        return self.weight_receiver.weights_begin(manifest, version, repeat)

    def weights_bucket(self, header: dict[str, Any]) -> Answer:
        """See `WeightReceiver`."""
        return self.weight_receiver.weights_bucket(header)

    def weights_commit(self, sync: str) -> Answer:
        """See `WeightReceiver`."""
        return self.weight_receiver.weights_commit(sync)

    def weights_finish(self, sync: str) -> Answer:
        """See `WeightReceiver`."""
        return self.weight_receiver.weights_finish(sync)

    def weights_discard(self, sync: str, reason: str = "") -> Answer:
        """See `WeightReceiver`."""
        return self.weight_receiver.weights_discard(sync, reason)

    def weights_checksum(self, names: list[str] | None = None) -> Answer:
        """See `WeightReceiver`."""
        return self.weight_receiver.weights_checksum(names)
