"""An accelerator's part of sleeping: copies in pinned host memory, freed bytes as the driver reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni_devices.common import storages
from omni_devices.common.driver_wait import freed_since
from omni_devices.common.sleep import MIN_FREED
from omni_devices.common.storages import Slot
from omni_devices.common.torch_memory import DeviceModule, release_cached, used_bytes

CHUNK = 1 << 28
"""Bytes of one host block. Torch rounds pinned blocks up to powers of two, so one block a tensor could cost twice the
memory."""
ALIGNMENT = 64
"""Where a slot may begin in a block; a multiple of every element size."""
SHARED_SEGMENTS = 22 << 20
"""Bytes that torch's allocator may keep for tensors that stay awake: a segment of 20 MiB and one of 2 MiB, from which
it cuts blocks below 10 MiB and below 1 MiB. A smaller shortfall is not judged."""
DRIVER_WAIT_S = 5.0


class PinnedBacking:
    """Implements :class:`omni_devices.common.sleep.Backing`.

    Args:
        module: torch's module of the accelerator.
        device_type: of the tensors. 'cpu' serves tests without an accelerator: nothing can be pinned there.
        allocator_setting: configuration of torch's allocator, for messages.
        refuse: raises for settings under which memory cannot be released.
        wait_s: how long the driver may take to report freed memory.
    """

    def __init__(
        self,
        module: Callable[[], DeviceModule],
        device_type: str,
        allocator_setting: Callable[[], str],
        refuse: Callable[[], None] | None = None,
        wait_s: float = DRIVER_WAIT_S,
    ) -> None:
        self.device_type = device_type
        self._module = module
        self._allocator_setting = allocator_setting
        self._refuse = refuse
        self._wait_s = wait_s

    @property
    def room(self) -> tuple[str, str]:
        """Pinned memory, and what limits it."""
        return (
            "in pinned host memory",
            "free host memory, raise the limits of the container and of locked memory (ulimit -l), or use sleep "
            "level 2",
        )

    def check(self) -> None:
        """Ask the device whether its settings allow memory to be released."""
        if self._refuse:
            self._refuse()

    def trim(self) -> None:
        """Wait for what is queued, and give cached blocks back."""
        release_cached(self._module())

    def held(self) -> int:
        """Bytes in use on the device, by every process on it."""
        return used_bytes(self._module())

    def expected(self, slots: Sequence[Slot]) -> int:
        """The storages' bytes."""
        return sum(slot.nbytes for slot in slots)

    def freed(self, before: int, expected: int) -> int:
        """Waits up to `wait_s` for the driver."""
        return freed_since(self.held, before, MIN_FREED * expected, self._wait_s)

    def shortfall(self, freed: int, expected: int) -> str:
        """Tells memory that torch's allocator keeps from memory that others took."""
        missing = expected - freed
        if freed >= MIN_FREED * expected or missing <= SHARED_SEGMENTS:
            return ""
        module = self._module()
        cached = module.memory_reserved() - module.memory_allocated()
        setting = self._allocator_setting() or "not set"
        if cached >= missing // 2:
            return (
                f"torch's allocator keeps {cached} bytes in segments that tensors outside of the pool share: register "
                "those too, or let it return parts of segments (expandable_segments:True in its configuration, which "
                f"is now: {setting})"
            )
        return (
            "find out which process on this device allocated meanwhile, or still maps memory that this one shared "
            f"(configuration of torch's allocator: {setting})"
        )

    def copy(self, slots: Sequence[Slot]) -> PinnedCopy:
        """Complete when this returns, so that storages may be released."""
        return PinnedCopy(slots, self._module(), pin=self.device_type != "cpu")


@dataclass(frozen=True)
class _Piece:
    """Elements [start, stop) of a slot, at a byte offset of a block."""

    slot: int
    start: int
    stop: int
    block: int
    offset: int


class PinnedCopy:
    """The contents of some slots in host memory; closing it leaves the blocks to torch's host allocator.

    Args:
        slots: all with memory; read here, none is changed.
        module: whose `synchronize` waits for the copies.
        pin: pinned memory, which copies without blocking and at full speed.

    Raises:
        RuntimeError: no room, or a copy failed.
    """

    def __init__(self, slots: Sequence[Slot], module: DeviceModule, *, pin: bool) -> None:
        self._module = module
        self._pieces = list(_pieces(slots))
        sizes: dict[int, int] = {}
        for piece, elements in self._with(slots):
            sizes[piece.block] = piece.offset + elements.numel() * elements.element_size()
        self._blocks = [torch.empty(size, dtype=torch.uint8, pin_memory=pin) for size in sizes.values()]
        for piece, elements in self._with(slots):
            self._host(piece, elements).copy_(elements, non_blocking=True)
        module.synchronize()

    def restore(self, slots: Sequence[Slot]) -> None:
        """Fill the slots, in the order in which they were copied, and wait until they are filled.

        Raises:
            RuntimeError: a copy failed.
        """
        for piece, elements in self._with(slots):
            elements.copy_(self._host(piece, elements), non_blocking=True)
        self._module.synchronize()

    def close(self) -> None:
        """Drop the blocks."""
        self._blocks.clear()

    def _with(self, slots: Sequence[Slot]) -> Iterator[tuple[_Piece, Tensor]]:
        return ((piece, storages.flat(slots[piece.slot])[piece.start : piece.stop]) for piece in self._pieces)

    def _host(self, piece: _Piece, elements: Tensor) -> Tensor:
        size = elements.numel() * elements.element_size()
        return self._blocks[piece.block][piece.offset : piece.offset + size].view(elements.dtype)


def _pieces(slots: Sequence[Slot]) -> Iterator[_Piece]:
    """Lay the slots out in blocks of CHUNK bytes, one behind the other; a slot may lie in several."""
    block, offset = 0, 0
    for position, slot in enumerate(slots):
        elements = storages.flat(slot)
        size, done = elements.element_size(), 0
        offset = -(-offset // ALIGNMENT) * ALIGNMENT
        while done < elements.numel():
            if offset >= CHUNK:
                block, offset = block + 1, 0
            count = min(elements.numel() - done, (CHUNK - offset) // size)
            yield _Piece(position, done, done + count, block, offset)
            done += count
            offset += count * size
