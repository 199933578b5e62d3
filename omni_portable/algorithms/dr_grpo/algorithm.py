"""Dr. GRPO: GRPO's loss with another aggregation and plain differences as advantages."""

from __future__ import annotations

from omni_portable.algorithms.token_base import DualClipAlgorithm


class DrGRPO(DualClipAlgorithm):
    """What differs from GRPO is in the options' defaults."""

    name = "dr_grpo"
