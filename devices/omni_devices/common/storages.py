"""The storages behind modules and optimizers: found once each, whatever ties, views and gradients share them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from omni_portable.contracts.errors import LifecycleError

Owner = torch.nn.Module | torch.optim.Optimizer


@dataclass
class Slot:
    """One storage.

    Args:
        storage: held while its memory is away, so that tensors keep their identity.
        nbytes: its size when awake.
        name: of the first tensor found in it, for messages.
        tensors: every tensor found in it, each once.
        is_buffer: a module buffer lives in it.
        is_bool: its first tensor is boolean.
    """

    storage: torch.UntypedStorage
    nbytes: int
    name: str
    tensors: list[Tensor] = field(default_factory=list)
    is_buffer: bool = False
    is_bool: bool = False

    @property
    def address_range(self) -> tuple[int, int]:
        """First byte's address, and size."""
        return self.storage.data_ptr(), self.nbytes


def collect(owners: Sequence[tuple[str, Owner]], device_type: str, asleep: set[int]) -> dict[str, list[Slot]]:
    """Storages by tag: of modules the parameters, their gradients and buffers; of optimizers the state.

    A storage belongs to the first tag it is found under; its slot lists the tensors of all.

    Args:
        owners: (tag, owner) in order.
        device_type: where every tensor must be; an optimizer of an accelerator may keep some of its state (AdamW's step
            counters) in host memory, which is left alone.
        asleep: ids of storages to leave out, as they sleep already.

    Raises:
        LifecycleError: a tensor is elsewhere, has no plain storage, is shared with another process, or its storage
            has been released by somebody else.
    """
    slots: dict[int, Slot] = {}
    found: dict[str, list[Slot]] = {}
    with torch.no_grad():  # a sharded tensor hands out its local part itself only without gradient
        for tag, owner in owners:
            mine = found.setdefault(tag, [])
            for name, outer, is_buffer in _named_tensors(owner):
                for tensor in _plain(outer):
                    if tensor.device.type == "cpu" != device_type and isinstance(owner, torch.optim.Optimizer):
                        continue
                    slot = _slot(name, tensor, device_type, asleep, slots, mine)
                    if slot:
                        slot.is_buffer |= is_buffer
    return found


def _slot(
    name: str, tensor: Tensor, device_type: str, asleep: set[int], slots: dict[int, Slot], mine: list[Slot]
) -> Slot | None:
    """The slot the tensor lies in, new ones added to `slots` and `mine`; None where there is nothing to release."""
    if tensor.numel() == 0:
        return None
    _check(name, tensor, device_type)
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key in asleep:
        return None
    if storage.nbytes() == 0:
        raise LifecycleError(
            f"the storage of '{name}' was released outside of this pool",
            remedy="wake the pool that put it to sleep, and register shared tensors in one pool only",
        )
    if key not in slots:
        slots[key] = Slot(storage, storage.nbytes(), name, is_bool=tensor.dtype == torch.bool)
        mine.append(slots[key])
    if all(tensor is not known for known in slots[key].tensors):
        slots[key].tensors.append(tensor)
    return slots[key]


def check_owned(slots: list[Slot]) -> None:
    """Refuse storages that must be replaced to free them, while somebody outside holds the same memory.

    Files mapped by safetensors and memory shared with numpy (also by a mere `tensor.numpy()`) cannot be resized;
    :func:`release` gives their tensors a storage of their own, which would untie any other tensor on the old one. On an
    accelerator such a storage was received from another process, which would keep the memory: it is always refused.

    Raises:
        LifecycleError: names the tensor.
    """
    end, last = 0, ""
    for slot in sorted((s for s in slots if not s.storage.resizable()), key=lambda s: s.storage.data_ptr()):
        if slot.storage.device.type != "cpu":
            raise LifecycleError(
                f"'{slot.name}' lies in memory that another process or library lent to this one",
                remedy="clone the tensor and register the clone",
            )
        holders = torch._C._storage_Use_Count(slot.storage._cdata) - len(slot.tensors) - 1
        if holders > 0 or slot.storage.data_ptr() < end:
            other = "a tensor (or a graph) outside of the pool" if holders > 0 else f"'{last}'"
            raise LifecycleError(
                f"'{slot.name}' lies in memory that cannot be released (a mapped file, or shared with numpy) and that "
                f"{other} uses too",
                remedy="clone the tensor before it is shared, or register every module that shares it in one pool",
            )
        end, last = slot.storage.data_ptr() + slot.nbytes, slot.name


def release(slot: Slot) -> None:
    """Free the storage's memory. Its tensors stay the same objects and must not be used until :func:`allocate`."""
    if not slot.storage.resizable():
        _rehome(slot)
    slot.storage.resize_(0)


def allocate(slot: Slot) -> None:
    """Give the storage memory again, contents undefined.

    Raises:
        RuntimeError: the allocator has none.
    """
    slot.storage.resize_(slot.nbytes)


def flat(slot: Slot) -> Tensor:
    """All elements of the storage as one dimension, in the dtype of its narrowest tensor; a view.

    Bytes behind the last whole element belong to no tensor of the slot. Views of a tensor's own dtype are used because
    an accelerator may keep a description of the layout with the storage, which a view of raw bytes does not match.
    Writing to it is no change that autograd should know of: what is written is what was there.
    """
    tensor = min(slot.tensors, key=lambda one: one.element_size()).data
    return torch.as_strided(tensor, (slot.nbytes // tensor.element_size(),), (1,), 0)


def poison(slot: Slot) -> None:
    """Fill with ones, bit by bit: NaN in every floating-point format, -1 in signed integers (True in booleans)."""
    flat(slot).view(torch.uint8).fill_(1 if slot.is_bool else 0xFF)


def _rehome(slot: Slot) -> None:
    """Move the tensors to an ordinary storage of the same size; it takes no memory, as nothing is written to it."""
    storage = torch.UntypedStorage(slot.nbytes)
    for tensor in slot.tensors:
        view = torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        tensor.data = view
    slot.storage = storage


def _named_tensors(owner: Owner) -> Iterator[tuple[str, Tensor, bool]]:
    if isinstance(owner, torch.optim.Optimizer):
        for position, state in enumerate(owner.state.values()):
            yield from ((f"state {position}.{name}", tensor, False) for name, tensor in _walk(state))
        return
    for name, parameter in owner.named_parameters():
        yield name, parameter, False
        if parameter.grad is not None:
            yield f"{name}.grad", parameter.grad, False
    yield from ((name, buffer, True) for name, buffer in owner.named_buffers())


def _walk(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _walk(item, f"{path}[{position}]")


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor, or the ones that a wrapper (a sharded tensor) is made of."""
    if hasattr(tensor, "__tensor_flatten__"):
        for attribute in tensor.__tensor_flatten__()[0]:
            part = getattr(tensor, attribute)
            if isinstance(part, Tensor):  # a sharded tensor lists its mesh as well
                yield from _plain(part)
    else:
        yield tensor


def _check(name: str, tensor: Tensor, device_type: str) -> None:
    if tensor.device.type != device_type:
        raise LifecycleError(f"'{name}' is on '{tensor.device}', but this pool releases memory of '{device_type}'")
    if tensor.layout != torch.strided:
        raise LifecycleError(f"'{name}' has the layout {tensor.layout}, which has no storage of its own to release")
    if device_type == "cpu" and tensor.is_shared():  # of accelerators torch says that always
        raise LifecycleError(
            f"'{name}' is in shared memory: another process may be using it",
            remedy="register a module whose tensors belong to this process",
        )
