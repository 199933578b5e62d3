"""Named media of finished samples, on the host and independent of the pack they were decoded in."""

from __future__ import annotations

from dataclasses import replace

import torch

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Extent


def decode(adapter: DiffusionAdapter, latents: torch.Tensor, extent: Extent) -> list[dict[str, MediaArtifact]]:
    """Artifacts of each sample of (B, ...) clean latents; every tensor is a contiguous host copy of its own.

    Raises:
        ArtifactError: the family returned another number of samples than it was given.
    """
    decoded = adapter.decode(latents, extent)
    if len(decoded) != latents.shape[0]:
        raise ArtifactError(f"family '{adapter.family}' decoded {latents.shape[0]} samples into {len(decoded)}")
    return [{name: _owned(artifact) for name, artifact in sample.items()} for sample in decoded]


def _owned(artifact: MediaArtifact) -> MediaArtifact:
    """A view of a batch would keep (and, when it is sent, carry) the whole batch."""
    if isinstance(artifact.data, str):
        return artifact
    return replace(artifact, data=artifact.data.detach().to("cpu", copy=True).contiguous())
