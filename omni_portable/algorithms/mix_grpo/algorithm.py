"""MixGRPO: Flow-GRPO's loss on the steps of a sliding window."""

from __future__ import annotations

from omni_portable.algorithms.flow_grpo.algorithm import FlowGRPO


class MixGRPO(FlowGRPO):
    """What differs from Flow-GRPO is in the options' defaults."""

    name = "mix_grpo"
