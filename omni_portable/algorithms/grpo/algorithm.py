"""GRPO as an algorithm of the house."""

from __future__ import annotations

from omni_portable.algorithms.token_base import DualClipAlgorithm


class GRPO(DualClipAlgorithm):
    """Everything is in the options."""

    name = "grpo"
