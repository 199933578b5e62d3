"""Deterministic kernels, full precision and seeds on AMD GPUs, and what they cannot promise."""

from __future__ import annotations

from omni_devices.common.gpu_precision import full_precision
from omni_portable.contracts.device import DeterminismReport

NOT_PROMISED = (
    "Equal bits on another model of GPU, or with another version of torch, ROCm, rocBLAS, hipBLASLt or MIOpen.",
    "Equal bits of one row in batches of another size: matrix kernels split their work by shape.",
    "Equal bits of matrix products between processes whose libraries were tuned differently (TunableOp, hipBLASLt).",
    "Equal bits of convolutions: MIOpen is asked for deterministic solvers, but documents no guarantee.",
    "Equal bits of sums over another number or placement of ranks: RCCL picks its algorithm by topology.",
    "Equal bits of kernels from outside of torch: flash-attn's gradients are summed with atomics by default.",
    "Equal bits of a rollout engine: vLLM's batch-invariant mode has no branch for AMD GPUs.",
    "A fixed order of events between streams, threads or processes.",
)


class RocmDeterminism:
    """Sets what torch and its libraries offer; nothing has to be set before the process uses its GPU."""

    def enable(self, seed: int) -> DeterminismReport:
        """Deterministic kernels (an operation without one raises), no TF32, no reduced-precision sums, seeds.

        Args:
            seed: any non-negative integer; numpy takes it modulo 2^32.
        """
        from omni_devices.common.seeding import enable_deterministic

        return enable_deterministic(seed, full_precision(), NOT_PROMISED)
