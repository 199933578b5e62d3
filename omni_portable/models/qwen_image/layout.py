"""Qwen-Image's tensor names in the rollout engine: as `QwenImageTransformer2DModel.load_weights` of vLLM-Omni 0.30 maps
them. Its output projection of image tokens is a layer of its own, where diffusers has a list of two."""

from __future__ import annotations

from omni_portable.models.fused_layout import ADDED_ATTENTION, SELF_ATTENTION, FusedLayout

LAYOUT = FusedLayout({**SELF_ATTENTION, **ADDED_ATTENTION}, renamed={"to_out.0": "to_out"})
