"""The one sequence that MiniMax-H3 attends over: text, given frames, sound, video; and where its rows are in time and
space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3PrepareLayoutStep

from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.minimax_h3.folder import STEREO, Geometry

VIDEO, TEXT, AUDIO = 0, 1, 2
"""Tags of the rows, as the transformer's modulation tables are numbered."""
KEYFRAME_TIME = 0.999
"""Time at which given frames are held (1 is clean): the model was trained with a trace of noise in them."""


def positions(text_tags: torch.Tensor, geometry: Geometry, anchors: Sequence[str]) -> Conditioning:
    """'keyframe_positions', 'audio_positions' and 'video_positions' (rows, 3) fp32, by the stock pipeline's layout.

    Args:
        text_tags: (tokens,) of the prompt, which the media follow on the time axis.
        anchors: 'first' or 'last' for each given frame.
    """
    layout = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        text_tags.cpu(),
        geometry.frames,
        geometry.height,
        geometry.width,
        geometry.audio,
        (1, geometry.patch, geometry.patch),
        STEREO,
        AUDIO,
        VIDEO,
        tuple(anchors),
    )
    rows, text = layout[0].float(), text_tags.shape[0]
    given, sound = len(anchors) * geometry.tokens_per_frame, geometry.audio * STEREO
    keyframes, audio, video = rows[text:].split([given, sound, rows.shape[0] - text - given - sound])
    return {"keyframe_positions": keyframes, "audio_positions": audio, "video_positions": video}


def packed_inputs(
    conditioning: Conditioning, video: torch.Tensor, audio: torch.Tensor, sigma: torch.Tensor, level: torch.Tensor
) -> dict[str, Any]:
    """Everything the transformer is called with for one sample.

    Args:
        conditioning: of the sample, without padding or batch dimension.
        video / audio: (rows, channels) fp32 as the model knows them.
        sigma / level: () fp32 noise levels of video and audio; the model's time is 1 - level.
    """
    text, given = conditioning["prompt_embeds"].shape[0], conditioning["keyframe_rows"].shape[0]
    counts = (text, given, audio.shape[0], video.shape[0])
    device = video.device
    first = [sum(counts[:index]) for index in range(5)]
    time = 1.0 - sigma
    generated = torch.arange(first[3], first[4], device=device)
    return {
        "hidden_states": torch.cat([conditioning["keyframe_rows"], video]).unsqueeze(0),
        "audio_hidden_states": audio.unsqueeze(0),
        "encoder_hidden_states": conditioning["prompt_embeds"].unsqueeze(0),
        "timestep": torch.stack([time, 1.0 - level, time.clamp(min=KEYFRAME_TIME)]),
        "timestep_indices": _by_part(counts, (0, 2, 1, 0), device),
        "token_tags": torch.cat([conditioning["text_tags"], _by_part(counts[1:], (VIDEO, AUDIO, VIDEO), device)]),
        "position_ids": torch.cat(
            [
                _text_positions(text, device),
                *(conditioning[f"{part}_positions"] for part in ("keyframe", "audio", "video")),
            ]
        ),
        "video_indices": torch.cat([torch.arange(first[1], first[2], device=device), generated]),
        "audio_indices": torch.arange(first[2], first[3], device=device),
        "text_indices": torch.arange(text, device=device),
    }


def _by_part(counts: Sequence[int], values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.cat([torch.full((n,), v, device=device) for n, v in zip(counts, values, strict=True)])


def _text_positions(count: int, device: torch.device) -> torch.Tensor:
    """(count, 3): one unit of time per token."""
    time = torch.arange(count, device=device, dtype=torch.float32)
    return torch.stack([time, torch.zeros_like(time), torch.zeros_like(time)], dim=1)
