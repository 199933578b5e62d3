"""Which frames a prompt brings, and conditionings of different lengths in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Conditioning, Extent
from omni_portable.models.diffusers_adapter import stack_conditionings
from omni_portable.models.inputs import image_pixels
from omni_portable.models.minimax_h3 import Keyframes
from omni_portable.models.padding import pad_to

FRAMES = {"first": "first_frame", "last": "last_frame"}
"""Anchor -> name of the medium."""
_ANCHORS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "first": ("first",),
    "last": ("last",),
    "first_last": ("first", "last"),
}
_OF_TEXT, _OF_KEYFRAMES = ("prompt_embeds", "text_tags"), ("keyframe_rows", "keyframe_positions")


def given_frames(media: Mapping[str, MediaArtifact], wanted: Keyframes, extent: Extent) -> dict[str, torch.Tensor]:
    """Anchor ('first', 'last') -> uint8 (3, H, W), in this order.

    Raises:
        ArtifactError: other media than `wanted` asks for, or frames of another size than the video.
    """
    unknown = sorted(set(media) - set(FRAMES.values()))
    if unknown:
        raise ArtifactError(f"MiniMax-H3 takes no input '{unknown[0]}'", choices=tuple(FRAMES.values()))
    anchors = tuple(anchor for anchor, name in FRAMES.items() if name in media)
    if wanted != "any" and anchors != _ANCHORS[wanted]:
        brings = " and ".join(FRAMES[anchor] for anchor in anchors) or "no frame"
        raise ArtifactError(
            f"model.options.keyframes is '{wanted}', but a prompt brings {brings}",
            remedy="give every prompt the frames that are asked for (data.media), or set model.options.keyframes=any",
        )
    frames: dict[str, torch.Tensor] = {}
    for anchor in anchors:
        image_pixels(media, FRAMES[anchor], extent)  # checks kind and size
        data = media[FRAMES[anchor]].data
        assert isinstance(data, torch.Tensor)
        frames[anchor] = data
    return frames


def pad_conditionings(conditionings: Sequence[Conditioning]) -> Conditioning:
    """Stack B conditionings; what differs in length is padded with zeros to the longest."""
    longest = {
        name: max(conditioning[name].shape[0] for conditioning in conditionings) for name in (*_OF_TEXT, *_OF_KEYFRAMES)
    }
    return stack_conditionings(
        [{name: pad_to(t, longest[name]) if name in longest else t for name, t in c.items()} for c in conditionings]
    )


def row_conditioning(batch: Conditioning, row: int, text: int, given: int) -> Conditioning:
    """One row of a batch without its padding: `text` tokens and `given` rows of frames."""
    lengths = {name: text for name in _OF_TEXT} | {name: given for name in _OF_KEYFRAMES}
    return {name: tensor[row, : lengths[name]] if name in lengths else tensor[row] for name, tensor in batch.items()}
