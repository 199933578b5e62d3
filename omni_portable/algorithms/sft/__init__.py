"""Supervised fine-tuning by flow matching, the warm start of a policy. Loads without torch.

Samples of the dataset are noised, x_s = (1 - s) clean + s noise, at levels s as the options say:

    L = mean((v(x_s, s) - (noise - clean))^2)

Source: rectified flow (arXiv 2209.03003). Rewards play no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.algorithms.options import NoiseLevelOptions
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class SFTOptions(NoiseLevelOptions):
    """Keys of `algorithm` for 'sft'. Rewards are only logged."""

    timesteps: Literal["schedule", "logit_normal"] = "logit_normal"
    """'logit_normal': sigmoid of a normal number; 'schedule': sigmas of the rollout's schedule."""


SPEC = PluginSpec(
    name="sft",
    summary="Supervised fine-tuning: flow matching on the media of a dataset (rollout.engine=dataset)",
    target="omni_portable.algorithms.sft.algorithm:SFT",
    options=SFTOptions,
    capabilities={"kind": "diffusion", "needs_log_probs": False, "min_group_size": 1, "needs_given_samples": True},
)
