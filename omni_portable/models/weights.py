"""Weights that provably arrive: checksums, manifests, all-or-nothing reception, in-place application.

Names are canonical (diffusers / transformers / peft): what an injected LoRA adds to a module path (`.base_layer`, the
adapter's name) is removed, so that both sides agree whatever wraps the module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch
import xxhash

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo, TensorInfo, WeightManifest, WeightStream

ADAPTER_NAME = "default"
"""Name under which LoRA matrices are injected; it never appears in canonical names."""

Hasher = xxhash.xxh3_128
"""XXH3 with 128 bits: near memory bandwidth, and blind to no accidental change (decision 0006). No defence against
somebody who makes a collision on purpose."""
HASH_THREADS = min(4, os.cpu_count() or 1)
LARGE = 8 << 20
"""Bytes from which on tensors are hashed side by side; hashing leaves the interpreter to other threads."""

_ADAPTER_PART = re.compile(rf"(\.lora_[AB])\.{ADAPTER_NAME}(?=\.|$)")


def canonical_name(name: str) -> str:
    """`...to_q.lora_A.default.weight` -> `...to_q.lora_A.weight`; `...to_q.base_layer.weight` -> `...to_q.weight`."""
    return _ADAPTER_PART.sub(r"\1", name.replace(".base_layer.", "."))


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32 -> 'float32'."""
    return str(dtype).removeprefix("torch.")


def tensor_checksum(tensor: torch.Tensor) -> str:
    """Hex XXH3-128 of the tensor's raw bytes in row-major order (independent of strides and device)."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return Hasher(flat.numpy().data).hexdigest()


def checksums(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Name -> :func:`tensor_checksum`; tensors of an iterator are taken one at a time, as they may be made for it."""
    if not isinstance(named_tensors, Collection) or sum(tensor.nbytes for _, tensor in named_tensors) < LARGE:
        return {name: tensor_checksum(tensor) for name, tensor in named_tensors}
    names, tensors = zip(*named_tensors, strict=True)
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        return dict(zip(names, pool.map(tensor_checksum, tensors), strict=True))


def tensor_info(tensor: torch.Tensor) -> TensorInfo:
    """Shape, dtype and checksum of a tensor as it is now."""
    return TensorInfo(tuple(tensor.shape), dtype_name(tensor.dtype), tensor_checksum(tensor))


class NamedTensorStream:
    """Tensors of this process as a :class:`WeightStream`: the manifest is taken when it is made, delivery is once.

    A tensor that changes between the two is caught by the receiver, because its checksum no longer fits.
    """

    def __init__(self, manifest: WeightManifest, tensors: Mapping[str, torch.Tensor]) -> None:
        self.manifest = manifest
        self._tensors = tensors
        self._delivered = False

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self._delivered:
            raise WeightSyncError(
                "a weight stream was read twice", remedy="ask the train engine for a new one with weights()"
            )
        self._delivered = True
        yield from self._tensors.items()


def make_stream(
    mode: Literal["full", "adapter"], named_tensors: Iterable[tuple[str, torch.Tensor]], lora: LoraInfo | None
) -> NamedTensorStream:
    """A stream over `named_tensors` (canonical names), with the manifest that proves it.

    Raises:
        WeightSyncError: no tensors, a name given twice, or `lora` missing in mode 'adapter' (or given in mode 'full').
    """
    if (mode == "adapter") != (lora is not None):
        raise WeightSyncError(f"a weight stream of mode '{mode}' was given lora={lora}; only 'adapter' needs it")
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in named_tensors:
        if name in tensors:
            raise WeightSyncError(f"the tensor '{name}' is in the weight stream twice")
        tensors[name] = tensor.detach()
    if not tensors:
        raise WeightSyncError(f"a weight stream of mode '{mode}' holds no tensors", remedy="check what is trainable")
    found = checksums(tensors.items())
    infos = {
        name: TensorInfo(tuple(tensor.shape), dtype_name(tensor.dtype), found[name]) for name, tensor in tensors.items()
    }
    return NamedTensorStream(WeightManifest(mode=mode, tensors=infos, lora=lora), tensors)


def receive(stream: WeightStream) -> dict[str, torch.Tensor]:
    """Read the whole stream and verify it against its manifest; nothing is applied here.

    Returns:
        Name -> tensor in the manifest's order; tensors may share memory with the sender's.

    Raises:
        WeightSyncError: a tensor that was not announced, came twice, has another shape, dtype or checksum, or is
            missing at the end; names it.
    """
    announced = stream.manifest.tensors
    received: dict[str, torch.Tensor] = {}
    for name, tensor in stream:
        if name not in announced:
            raise WeightSyncError(f"the weight stream delivered '{name}', which its manifest does not announce")
        if name in received:
            raise WeightSyncError(f"the weight stream delivered '{name}' twice")
        _check_info(name, announced[name], tensor)
        received[name] = tensor
    missing = [name for name in announced if name not in received]
    if missing:
        raise WeightSyncError(
            f"the weight stream ended without {len(missing)} of {len(announced)} tensors, first '{missing[0]}'"
        )
    return {name: received[name] for name in announced}


def _check_info(name: str, announced: TensorInfo, tensor: torch.Tensor) -> None:
    found = tensor_info(tensor)
    for what in ("shape", "dtype", "checksum"):
        expected, got = getattr(announced, what), getattr(found, what)
        if expected != got:
            raise WeightSyncError(f"the tensor '{name}' arrived with {what} {got}, announced was {expected}")


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Canonical name -> parameter or persistent buffer of the module (the live tensors, not copies)."""
    return {canonical_name(name): tensor for name, tensor in module.state_dict(keep_vars=True).items()}


def apply_tensors(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> int:
    """Copy tensors (canonical names) in place into the module; all are checked before the first is written.

    Returns:
        Bytes written.

    Raises:
        WeightSyncError: a name the module lacks, or another shape or dtype (the module is then unchanged); or a tensor
            that could not be written, for lack of memory say.
    """
    own = named_tensors(module)
    for name, tensor in tensors.items():
        if name not in own:
            raise WeightSyncError(f"the model has no tensor '{name}' to update")
        target = own[name]
        if target.shape != tensor.shape or target.dtype != tensor.dtype:
            raise WeightSyncError(
                f"the tensor '{name}' is {tuple(tensor.shape)} {dtype_name(tensor.dtype)}, "
                f"the model's is {tuple(target.shape)} {dtype_name(target.dtype)}"
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            try:
                own[name].copy_(tensor)
            except RuntimeError as error:
                raise WeightSyncError(f"the tensor '{name}' could not be written: {error}") from error
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
