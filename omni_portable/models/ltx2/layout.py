"""LTX-2's tensor names in the rollout engine (vLLM-Omni 0.30): the projections of the video stream's self-attention are
fused. Those of the audio stream are not, although the engine's mapping names them, and all other names are diffusers'
own."""

from __future__ import annotations

from omni_portable.models.self_attention_layout import self_attention_layout

LAYOUT = self_attention_layout("attn1")
