"""DanceGRPO: Flow-GRPO's loss under another step kernel."""

from __future__ import annotations

from omni_portable.algorithms.flow_grpo.algorithm import FlowGRPO


class DanceGRPO(FlowGRPO):
    """What differs from Flow-GRPO is in the options' defaults."""

    name = "dance_grpo"
