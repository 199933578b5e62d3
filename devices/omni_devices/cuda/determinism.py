"""Deterministic kernels, full precision and seeds on NVIDIA GPUs, and what they cannot promise."""

from __future__ import annotations

import os

from omni_devices.common.gpu_precision import full_precision
from omni_devices.cuda.environment import COMMON
from omni_portable.contracts.device import DeterminismReport
from omni_portable.contracts.errors import DeviceError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = (":4096:8", ":16:8")
"""Workspaces with which cuBLAS repeats its results on several streams."""

NOT_PROMISED = (
    "Equal bits on another model of GPU, or with another version of torch, CUDA, cuBLAS or cuDNN.",
    "Equal bits of one row in batches of another size: matrix kernels split their work by shape.",
    "Equal bits of sums over another number or placement of ranks: NCCL picks its algorithm by topology.",
    "Equal bits of kernels from outside of torch: FlashAttention's gradients are summed with atomics by default.",
    "Equal bits of a rollout engine: it is batch-invariant only if it was started so (VLLM_BATCH_INVARIANT=1).",
    "A fixed order of events between streams, threads or processes.",
)


class CudaDeterminism:
    """Sets what torch and its libraries offer."""

    def enable(self, seed: int) -> DeterminismReport:
        """Deterministic kernels (an operation without one raises), no TF32, no reduced-precision sums, seeds.

        Args:
            seed: any non-negative integer; numpy takes it modulo 2^32.

        Raises:
            DeviceError: CUBLAS_WORKSPACE_CONFIG has another value than cuBLAS needs, or is unset and can no longer be
                set, as the process uses its GPU already.
        """
        from omni_devices.common.seeding import enable_deterministic

        return enable_deterministic(seed, {WORKSPACE: _fix_workspace(), **full_precision()}, NOT_PROMISED)


def _fix_workspace() -> str:
    import torch

    value = os.environ.get(WORKSPACE)
    if value is None and not torch.cuda.is_initialized():
        os.environ[WORKSPACE] = value = COMMON[WORKSPACE]
    if value not in FIXED:
        state = "is not set, and this process uses its GPU already" if value is None else f"is '{value}'"
        raise DeviceError(
            f"{WORKSPACE} {state}, so cuBLAS may give different results for equal inputs",
            remedy=f"start the process with {WORKSPACE}={COMMON[WORKSPACE]}",
            choices=FIXED,
        )
    return value
