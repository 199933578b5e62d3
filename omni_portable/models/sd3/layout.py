"""SD3's tensor names in the rollout engine: joint attention with fused projections, all other names diffusers' own."""

from __future__ import annotations

from omni_portable.models.fused_layout import JOINT_ATTENTION

LAYOUT = JOINT_ATTENTION
"""As `SD3Transformer2DModel.load_weights` of vLLM-Omni 0.30 maps them."""

rollout_name = LAYOUT.rollout_name
fuse = LAYOUT.fuse
