"""Why a kernel cannot serve a request, as its row in the table says; packages are not looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from omni_devices.common.kernel_table import KernelRow, Names
from omni_portable.contracts.device import AttentionRequest


@dataclass(frozen=True)
class Refusal:
    """One reason, as a clause about the kernel ('it takes no dense mask'), and what may be changed in the request."""

    problem: str
    remedy: str = ""


def refusals(row: KernelRow, names: Names, request: AttentionRequest) -> list[Refusal]:
    """Every reason why the row cannot serve the request; empty where it can."""
    return [*_arithmetic(row, names, request), *_masking(row, names, request), *_use(row, request)]


def _arithmetic(row: KernelRow, names: Names, request: AttentionRequest) -> Iterator[Refusal]:
    dtypes = names.dtypes or row.dtypes
    if request.dtype not in dtypes:
        yield Refusal(
            f"it does not run in {request.dtype}, only in {', '.join(dtypes)}",
            f"set device.dtype to {' or '.join(dtypes)}",
        )
    if request.head_dim is None:
        return
    if request.head_dim < 1:
        yield Refusal(f"head_dim {request.head_dim} is no size")
        return
    if row.head_dim_max is not None and request.head_dim > row.head_dim_max:
        yield Refusal(f"head_dim {request.head_dim} is above its limit of {row.head_dim_max}")
    if request.head_dim % row.head_dim_multiple:
        yield Refusal(f"head_dim {request.head_dim} is no multiple of {row.head_dim_multiple}")


def _masking(row: KernelRow, names: Names, request: AttentionRequest) -> Iterator[Refusal]:
    if request.mask not in (row.masks if names.masks is None else names.masks):
        yield Refusal(f"it takes no {request.mask} mask" if request.mask != "none" else "it must be given a mask")
    if request.causal and not (row.causal if names.causal is None else names.causal):
        yield Refusal("it cannot be causal")
    if request.grouped_query and not (row.grouped_query if names.grouped_query is None else names.grouped_query):
        yield Refusal("it has no grouped-query attention")
    varied = row.variable_length if names.variable_length is None else names.variable_length
    if request.variable_length and not varied:
        yield Refusal(
            "it takes no packed sequences of several lengths",
            "pad the sequences and mask the padding (mask='padding', variable_length=False)",
        )


def _use(row: KernelRow, request: AttentionRequest) -> Iterator[Refusal]:
    if request.backward and not row.backward:
        yield Refusal("it has no backward pass, so it cannot serve a component that trains")
    if request.deterministic and not row.deterministic:
        yield Refusal("it is not deterministic")
