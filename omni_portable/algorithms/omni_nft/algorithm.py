"""OmniNFT as an algorithm: a weighted mean of DiffusionNFT's loss over the streams of the latents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from omni_portable.algorithms.base import as_denoising
from omni_portable.algorithms.diffusion_nft.algorithm import DiffusionNFT
from omni_portable.algorithms.omni_nft import OmniNFTOptions
from omni_portable.contracts.algorithm import Denoising, LossRows, Replay, Rows
from omni_portable.contracts.errors import CapabilityError

TENSORS = ("velocity", "clean", "noise", "noisy", "old_velocity", "reference_velocity", "teacher_velocity")


class OmniNFT(DiffusionNFT):
    """Video has many times the elements of audio; a joint mean would hardly train the audio."""

    name = "omni_nft"
    options: OmniNFTOptions

    def loss(self, replay: Replay | Denoising, rows: Rows) -> LossRows:
        """sum_s w_s L_s / sum_s w_s, with L_s DiffusionNFT's loss on stream s alone.

        Raises:
            CapabilityError: a weight for a stream that the model's latents do not have, or no weight above 0.
        """
        joint = as_denoising(replay)
        unknown = sorted(set(self.options.stream_weights) - set(joint.streams))
        weights = {name: self.options.stream_weights.get(name, 1.0) for name in joint.streams}
        total = sum(weights.values())
        if unknown or total <= 0.0:
            problem = f"names '{unknown[0]}'" if unknown else "leaves no stream a weight above 0"
            raise CapabilityError(f"algorithm.stream_weights {problem}", choices=sorted(joint.streams))
        loss = torch.zeros_like(rows.weight)
        metrics: dict[str, torch.Tensor] = {}
        for name, weight in weights.items():
            part = super().loss(stream(joint, name), rows)
            loss = loss + weight / total * part.loss
            metrics |= {f"{metric}/{name}": value for metric, value in part.metrics.items()}
        return LossRows(loss, metrics)


def stream(joint: Denoising, name: str) -> Denoising:
    """The rows' elements that belong to one stream, flattened: (R, elements)."""
    start, stop = joint.streams[name]
    parts: dict[str, Any] = {}
    for field in TENSORS:
        tensor = getattr(joint, field)
        parts[field] = None if tensor is None else tensor.flatten(1)[:, start:stop]
    return replace(joint, **parts)
