"""Seeds, and the switch to deterministic kernels, as torch offers them on every device."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from omni_portable.contracts.device import DeterminismReport

NUMPY_SEEDS = 2**32
"""numpy takes seeds below this."""


def enable_deterministic(
    seed: int, extra: Mapping[str, str], not_promised: Sequence[str], *, warn_only: bool = False
) -> DeterminismReport:
    """Ask for deterministic kernels and seed torch (on the host and on every accelerator), numpy and random.

    Args:
        seed: any non-negative integer; numpy takes it modulo 2^32.
        extra: what the device has set besides (name -> value), for the report.
        not_promised: one sentence each.
        warn_only: an operation without a deterministic kernel warns; else it raises.

    Raises:
        ValueError: a negative seed.
    """
    import numpy as np
    import torch

    if seed < 0:
        raise ValueError(f"the seed {seed} is negative")
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.manual_seed(seed)
    np.random.seed(seed % NUMPY_SEEDS)
    random.seed(seed)
    return DeterminismReport(
        applied={
            "torch.use_deterministic_algorithms": "True, warn only" if warn_only else "True",
            "torch.manual_seed": str(seed),
            "numpy.random.seed": str(seed % NUMPY_SEEDS),
            "random.seed": str(seed),
            **extra,
        },
        not_promised=tuple(not_promised),
    )
