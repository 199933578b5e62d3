"""Ascend's attention selector: the table, and where a proof fails, whose fault it is."""

from __future__ import annotations

from collections.abc import Sequence

from omni_devices.ascend.kernels import FUSION, TABLE
from omni_devices.common.packages import Lookup, installed_version
from omni_devices.common.selector import TableAttention
from omni_portable.contracts.device import AttentionChoice, AttentionRequest, VerifyResult
from omni_portable.contracts.errors import AttentionMismatch


class AscendAttention(TableAttention):
    """The selector of the 'ascend' device.

    Args:
        generation: 'a2', 'a3' or 'a5'.
        lookup: as in `TableAttention`.
        torch_device_type: where kernels run when they are verified.
    """

    def __init__(
        self, generation: str, lookup: Lookup | None = installed_version, torch_device_type: str = "npu"
    ) -> None:
        super().__init__(TABLE, generation, torch_device_type, lookup)

    def verify(
        self, choice: AttentionChoice, request: AttentionRequest, shapes: Sequence[tuple[int, int, int, int]]
    ) -> VerifyResult:
        """As `TableAttention.verify`; where fusion attention fails, the operator is then run by itself, under arguments
        known to be right, so that the error says which is at fault: the operator, or how the library calls it.

        Raises:
            AttentionUnavailable: the kernel cannot serve the request.
            AttentionMismatch: the operator or the library's kernel is off by more than the tolerance.
        """
        try:
            return super().verify(choice, request, shapes)
        except AttentionMismatch as error:
            if choice.family != FUSION:
                raise
            fault = self._operator_fault(request, shapes)
            raise AttentionMismatch(
                f"{error.problem}; the operator by itself (torch_npu.npu_fusion_attention), called as documented, "
                f"{fault or 'is right, so the library calls it wrongly'}",
                remedy="check that CANN and torch_npu belong together; until then set device.attention."
                f"{request.component} to another family"
                if fault
                else error.remedy,
                choices=error.choices,
            ) from error

    def _operator_fault(self, request: AttentionRequest, shapes: Sequence[tuple[int, int, int, int]]) -> str:
        """What is wrong with the operator itself, as a clause; empty where it is right."""
        from omni_devices.ascend.fusion import fusion_attention
        from omni_devices.common.attention_check import TOLERANCES, larger, largest_errors

        errors = largest_errors(fusion_attention, request, shapes, device=self._torch_device_type)
        worst, tolerance = larger(errors.forward, errors.backward or 0.0), TOLERANCES[request.dtype]
        if not errors.repeatable:
            return "gives two results for one input"
        if not worst <= tolerance:  # a NaN error must fail too
            return f"differs from math attention by {worst:.3g}, more than {tolerance:g}, at {errors.where}"
        return ""
