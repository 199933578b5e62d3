"""The attention selector of AMD GPUs: the table's, and a check of the variable by which flash-attn picks kernels."""

from __future__ import annotations

import os

from omni_devices.common.packages import Lookup, installed_version
from omni_devices.common.selector import TableAttention
from omni_devices.common.torch_cuda_api import TORCH_DEVICE_TYPE
from omni_devices.rocm.families import COMPOSABLE, TABLE, TRITON
from omni_portable.contracts.device import AttentionChoice, AttentionRequest
from omni_portable.contracts.errors import AttentionUnavailable

SWITCH = "FLASH_ATTENTION_TRITON_AMD_ENABLE"


class RocmAttention(TableAttention):
    """As :class:`TableAttention`; where packages are looked at, so is the process' environment."""

    def __init__(self, generation: str, lookup: Lookup | None = installed_version) -> None:
        super().__init__(TABLE, generation, TORCH_DEVICE_TYPE, lookup)
        self._looks = lookup is not None

    def select(self, request: AttentionRequest, choice: str = "auto") -> AttentionChoice:
        """The table's choice.

        Raises:
            AttentionUnavailable: as for every table; or flash-attn would run other kernels than those asked for.
        """
        chosen = super().select(request, choice)
        runs = TRITON if os.environ.get(SWITCH) == "TRUE" else COMPOSABLE  # flash-attn accepts no other spelling
        if self._looks and chosen.family in (COMPOSABLE, TRITON) and chosen.family != runs:
            raise AttentionUnavailable(
                f"attention '{chosen.family}' for {request.component}: flash-attn would run '{runs}' in this process, "
                f"as {SWITCH} is {os.environ.get(SWITCH) or 'not set'}",
                remedy=f"start every process with {SWITCH}={'TRUE' if chosen.family == TRITON else 'FALSE'}",
                choices=[runs],
            )
        return chosen
