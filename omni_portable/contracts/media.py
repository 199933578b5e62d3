"""Named media artifacts: what a rollout made, labelled by whoever made it.

A trajectory carries artifacts under ``media_artifact__<name>``; ``metadata.media_artifacts`` lists the names. Rewards
and exporters ask by name. Nothing ever guesses a modality from the shape of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from omni_portable.contracts.errors import ArtifactError

if TYPE_CHECKING:
    import torch

Modality = Literal["image", "video", "audio", "latents", "text"]

LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "image": ("CHW",),
    "video": ("TCHW",),
    "audio": ("CT",),
    "latents": ("any",),
    "text": ("str",),
}
"""Accepted layouts for each modality; pixels are uint8 RGB, audio is float32 in [-1, 1]."""

PREFIX = "media_artifact__"


@dataclass(frozen=True)
class MediaArtifact:
    """One labelled piece of media.

    Args:
        name: what rewards and exporters ask for, e.g. 'image'.
        modality: 'image', 'video', 'audio', 'latents' or 'text'.
        data: uint8 (3, H, W) for images, uint8 (T, 3, H, W) for video, float32 (channels, samples) for audio, any
            float tensor for latents, str for text.
        layout: one of :data:`LAYOUTS` for the modality.
        sample_rate: Hz, audio only.
        fps: frames per second, video only.
    """

    name: str
    modality: Modality
    data: torch.Tensor | str
    layout: str
    sample_rate: int | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        if self.modality not in LAYOUTS:
            raise ArtifactError(
                f"artifact '{self.name}' has the unknown modality '{self.modality}'", choices=sorted(LAYOUTS)
            )
        if self.layout not in LAYOUTS[self.modality]:
            raise ArtifactError(
                f"artifact '{self.name}' ({self.modality}) has the layout '{self.layout}'",
                choices=LAYOUTS[self.modality],
            )
        if self.modality == "audio" and not self.sample_rate:
            raise ArtifactError(f"audio artifact '{self.name}' has no sample_rate")
        if self.modality == "video" and not self.fps:
            raise ArtifactError(f"video artifact '{self.name}' has no fps")
        self._check_data()

    def _check_data(self) -> None:
        if self.modality == "text":
            if not isinstance(self.data, str):
                raise ArtifactError(f"text artifact '{self.name}' holds {type(self.data).__name__}, not str")
            return
        dims = {"image": 3, "video": 4, "audio": 2}.get(self.modality)
        shape = getattr(self.data, "shape", None)
        if shape is None:
            raise ArtifactError(
                f"{self.modality} artifact '{self.name}' holds {type(self.data).__name__}, not a tensor"
            )
        if dims is not None and len(shape) != dims:
            raise ArtifactError(
                f"{self.modality} artifact '{self.name}' has shape {tuple(shape)}, expected {dims} dimensions"
            )
        if self.modality in ("image", "video") and str(getattr(self.data, "dtype", "")) != "torch.uint8":
            raise ArtifactError(f"{self.modality} artifact '{self.name}' must hold uint8 pixels, got {self.data.dtype}")  # type: ignore[union-attr]


class DistantArtifact(MediaArtifact):
    """An artifact whose data another process holds: its labels are here, its data come when they are looked at.

    Args:
        like: the labels, with data of no consequence.
        source: fetches the data, once or each time, and tells whoever passes the artifact on where they are.
    """

    source: DistantMedia

    def __init__(self, like: MediaArtifact, source: DistantMedia) -> None:
        labels = {name: getattr(like, name) for name in ("name", "modality", "layout", "sample_rate", "fps")}
        for name, value in (labels | {"source": source}).items():
            object.__setattr__(self, name, value)

    @property
    def data(self) -> torch.Tensor | str:
        """The data themselves, fetched."""
        return self.here().data

    def here(self) -> MediaArtifact:
        """The whole artifact, fetched."""
        return self.source.artifact(self.name)


class DistantMedia(Protocol):
    """Artifacts of one sample, in another process."""

    def artifact(self, name: str) -> MediaArtifact:
        """Fetch one of them."""
        ...


def require_artifact(artifacts: Mapping[str, Any], name: str, modality: Modality, asked_by: str) -> MediaArtifact:
    """The artifact called `name`, checked to be labelled and of the wanted modality.

    Raises:
        ArtifactError: it is missing, is a bare tensor, or is of another modality.
    """
    if name not in artifacts:
        raise ArtifactError(
            f"{asked_by} asks for the artifact '{name}', which the sample does not have", choices=sorted(artifacts)
        )
    artifact = artifacts[name]
    if not isinstance(artifact, MediaArtifact):
        raise ArtifactError(
            f"{asked_by} was given an unlabelled {type(artifact).__name__} as '{name}'",
            remedy="wrap it in MediaArtifact(name, modality, data, layout): a modality is never guessed from a shape",
        )
    if artifact.modality != modality:
        raise ArtifactError(f"{asked_by} needs '{name}' to be {modality}, but it is {artifact.modality}")
    return artifact
