"""A weight target for tests: named tensors in a dictionary, faults on demand."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from omni_backends.sync import Slice, WeightReceiver, copy_into
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo, WeightManifest
from omni_portable.models.weights import checksums


def named_shared_memory() -> set[str]:
    """What has a name in shared memory, without what other programs on the machine make and remove meanwhile."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("sem.", "psm_", "torch_"))}


def holders(inode: int) -> set[int]:
    """Processes that map the unnamed shared memory of that number."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:  # it has ended, or is somebody else's
            continue
        if any(f"/dev/shm/#{inode} " in line for line in lines):
            found.add(int(maps.parent.name))
    return found


class DictTarget:
    """Holds what it is given.

    Args:
        held: the present weights; an update may bring these names only.
        slices: name -> part of it that this rank wants.
        fail: 'apply' (after writing half), 'restore' or 'unbound' (a LoRA that binds nothing).
    """

    def __init__(
        self,
        held: Mapping[str, torch.Tensor],
        slices: Mapping[str, Slice] | None = None,
        fail: Iterable[str] = (),
    ) -> None:
        self.held = dict(held)
        self.slices = dict(slices or {})
        self.fail = set(fail)

    def check(self, manifest: WeightManifest) -> None:
        for name, info in manifest.tensors.items():
            if name not in self.held:
                raise WeightSyncError(f"the engine has no tensor '{name}'")
            if name not in self.slices and tuple(self.held[name].shape) != info.shape:
                raise WeightSyncError(f"the engine's '{name}' is {tuple(self.held[name].shape)}, not {info.shape}")

    def slice_of(self, name: str, shape: tuple[int, ...]) -> Slice | None:
        return self.slices.get(name)

    def snapshot(self, names: Iterable[str], lora: LoraInfo | None) -> Any:
        return {name: self.held[name].clone() for name in names}

    def apply(self, tensors: Mapping[str, torch.Tensor], lora: LoraInfo | None) -> int:
        for index, (name, tensor) in enumerate(tensors.items()):
            if "apply" in self.fail and index >= len(tensors) // 2:
                raise RuntimeError(f"no room for '{name}'")
            self.held[name] = tensor.clone()
        if lora is None:
            return 0
        return 0 if "unbound" in self.fail else sum(".lora_A." in name for name in tensors)

    def restore(self, snapshot: Any) -> None:
        if "restore" in self.fail:
            raise RuntimeError("the copy is gone")
        self.held.update(snapshot)

    def checksums(self, names: Iterable[str] | None) -> Mapping[str, str]:
        wanted = self.held if names is None else names
        return checksums((name, self.held[name]) for name in wanted)


class InPlaceTarget(DictTarget):
    """Writes into the tensors that it has, as an engine does whose kernels know their addresses; goes back to the
    former update where the receiver still has it. `outlines` counts how often."""

    outlines = 0

    def outline(self, names: Iterable[str]) -> Any:
        self.outlines += 1
        return {}

    def apply(self, tensors: Mapping[str, torch.Tensor], lora: LoraInfo | None) -> int:
        written = list(tensors.items())[: len(tensors) // 2 if "apply" in self.fail else None]
        copy_into((self.held[name], tensor) for name, tensor in written)
        if "apply" in self.fail:
            self.fail.remove("apply")
            raise RuntimeError(f"no room for '{list(tensors)[len(written)]}'")
        return sum(".lora_A." in name for name in tensors)

    def restore(self, snapshot: Any) -> None:
        copy_into((self.held[name], tensor) for name, tensor in snapshot.items())


class LocalWorkers:
    """Receivers in this process behind an engine's call."""

    def __init__(self, *targets: DictTarget) -> None:
        self.targets = targets
        self.receivers = [WeightReceiver(target, rank=rank) for rank, target in enumerate(targets)]
        self.calls: list[str] = []

    def __call__(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        self.calls.append(method)
        return [getattr(receiver, method)(**arguments) for receiver in self.receivers]
