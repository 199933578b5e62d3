"""Deterministic kernels and seeds on the CPU, and what they cannot promise."""

from __future__ import annotations

from omni_devices.common.seeding import enable_deterministic
from omni_portable.contracts.device import DeterminismReport

NOT_PROMISED = (
    "Equal bits under another number of threads: parallel sums are split by thread count.",
    "Equal bits on a processor with another instruction set: torch and oneDNN choose other kernels there.",
    "Equal bits with another version of torch, MKL or oneDNN.",
    "Equal bits of one row in batches of another size: matrix kernels split their work by shape.",
    "A fixed order of events between threads or processes.",
)


class CpuDeterminism:
    """Sets what torch offers and seeds the three generators that libraries draw from."""

    def enable(self, seed: int) -> DeterminismReport:
        """Ask for deterministic kernels (an operation without one raises) and seed torch, numpy and random.

        Args:
            seed: any non-negative integer; numpy takes it modulo 2^32.
        """
        import torch

        found = {
            "torch.get_num_threads (found)": str(torch.get_num_threads()),
            "torch.get_num_interop_threads (found)": str(torch.get_num_interop_threads()),
        }
        return enable_deterministic(seed, found, NOT_PROMISED)
