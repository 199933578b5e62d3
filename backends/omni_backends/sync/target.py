"""What a rollout engine offers to receive weights: the seam between the transport and an engine's own model classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from omni_portable.contracts.weights import LoraInfo, WeightManifest


@dataclass(frozen=True)
class Slice:
    """The part of a canonical tensor that one tensor-parallel rank holds: `length` rows of `dim` from `start`."""

    dim: int
    start: int
    length: int


@runtime_checkable
class WeightTarget(Protocol):
    """One worker's model. Every method raises on failure; the receiver reports it and puts the old weights back."""

    def check(self, manifest: WeightManifest) -> None:
        """Refuse (`WeightSyncError`) an update whose mode, names, shapes, dtypes or LoRA this model cannot take."""
        ...

    def slice_of(self, name: str, shape: tuple[int, ...]) -> Slice | None:
        """What this worker needs of a canonical tensor; None for the whole (engines that cut it themselves)."""
        ...

    def snapshot(self, names: Iterable[str], lora: LoraInfo | None) -> Any:
        """What :meth:`restore` needs to go back to the weights of now, for an update of `names`."""
        ...

    def apply(self, tensors: Mapping[str, torch.Tensor], lora: LoraInfo | None) -> int:
        """Make the engine hold these complete, verified tensors (canonical names, on the host, cut by `slice_of`).

        Tensors of mode 'full' may lie in memory that is shared with the sender: they have to be copied, and not to be
        referred to afterwards. LoRA matrices may be kept.

        Returns:
            Number of LoRA modules that the engine applies now, counted in its layers; 0 without `lora`.
        """
        ...

    def restore(self, snapshot: Any) -> None:
        """Undo :meth:`apply`, also one that failed halfway."""
        ...

    def checksums(self, names: Iterable[str] | None) -> Mapping[str, str]:
        """Checksum (`models.weights.tensor_checksum`) of what the engine really holds, in canonical layout; None asks
        for everything that updates replace."""
        ...


@runtime_checkable
class FormerWeights(Protocol):
    """What a `WeightTarget` offers besides, to be spared a copy of its weights at every update.

    Where the tensors of the former update are still in memory that workers share, they are what the model goes back to:
    :meth:`restore` with what :meth:`outline` gave, then `apply` of these tensors.
    """

    def outline(self, names: Iterable[str]) -> Any:
        """As `WeightTarget.snapshot` in mode 'full', without the values of what an update of `names` replaces."""
        ...

    def restore(self, snapshot: Any) -> None:
        """As `WeightTarget.restore`; takes an outline, too."""
        ...
