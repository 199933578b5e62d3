"""Where in space and time the tokens of a sample are: what the transformer cannot read off flat latents."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.transformers.transformer_ltx2 import LTX2AudioVideoRotaryPosEmbed

from omni_portable.contracts.rollout import Conditioning, Extent
from omni_portable.models.ltx2.folder import LTX2Folder

VIDEO, AUDIO = "video_coords", "audio_coords"


def token_positions(folder: LTX2Folder, extent: Extent, device: torch.device) -> Conditioning:
    """'video_coords' (3, tokens, 2) and 'audio_coords' (1, tokens, 2) fp32: bounds of each token in pixels and seconds,
    computed by the transformer's own code without its weights."""
    config = folder.transformer
    common: dict[str, Any] = {"causal_offset": config.get("causal_offset", 1), "patch_size": 1, "patch_size_t": 1}
    video = LTX2AudioVideoRotaryPosEmbed(
        dim=6, modality="video", scale_factors=tuple(config["vae_scale_factors"]), **common
    )
    audio = LTX2AudioVideoRotaryPosEmbed(
        dim=2,
        modality="audio",
        sampling_rate=config["audio_sampling_rate"],
        hop_length=config["audio_hop_length"],
        scale_factors=[config.get("audio_scale_factor", 4)],
        **common,
    )
    return {
        VIDEO: video.prepare_video_coords(1, *folder.grid(extent), device=device, fps=extent.frame_rate)[0],
        AUDIO: audio.prepare_audio_coords(1, folder.audio_frames(extent), device=device)[0].contiguous(),
    }
