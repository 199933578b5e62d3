"""What a validation leaves for people to look at and listen to: one sample's media as files, its texts as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.export import write_media
from omni_portable.data.media import write_image

IMAGES, MEDIA, INPUTS = "images", "media", "inputs"
"""Folders of a validation: PNG files; MP4 and WAV files; what the model was given."""


@dataclass(frozen=True)
class SampleFiles:
    """Files of one sample, relative to the validation's folder.

    Args:
        image: of its first image; None without one.
        media: name of a video or audio artifact (or a further image) -> file.
        picture: what stands for the sample on a grid: its image, or the middle frame of its video.
    """

    image: str | None = None
    media: Mapping[str, str] = field(default_factory=dict)
    picture: MediaArtifact | None = None


def write_sample(artifacts: Mapping[str, MediaArtifact], folder: Path, index: int) -> SampleFiles:
    """Write the media of sample `index`; latents and texts are no files."""
    stem = f"{index:04d}"
    first = next((name for name in sorted(artifacts) if artifacts[name].modality == "image"), None)
    image = None
    if first is not None:
        image = f"{IMAGES}/{stem}.png"
        (folder / IMAGES).mkdir(parents=True, exist_ok=True)
        write_image(artifacts[first], folder / image)
    others = {n: a for n, a in artifacts.items() if n != first and a.modality in ("image", "video", "audio")}
    files: dict[str, str] = {}
    if others:
        (folder / MEDIA).mkdir(parents=True, exist_ok=True)
        files = {name: f"{MEDIA}/{file}" for name, file in write_media(others, folder / MEDIA, stem).items()}
    return SampleFiles(image, files, artifacts[first] if first is not None else _middle_frame(artifacts))


def write_inputs(media: Mapping[str, MediaArtifact], folder: Path, index: int) -> dict[str, str]:
    """Input media of sample `index`, as they were given to the model; name -> file, relative to `folder`."""
    if media:
        (folder / INPUTS).mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    for name in sorted(media):
        written = write_media({name: media[name]}, folder / INPUTS, f"{index:04d}-{name}")
        files |= {name: f"{INPUTS}/{file}" for name, file in written.items()}
    return files


def texts(artifacts: Mapping[str, MediaArtifact]) -> dict[str, str]:
    """Name -> text of every text artifact, such as a response."""
    return {name: str(a.data) for name, a in sorted(artifacts.items()) if a.modality == "text"}


def _middle_frame(artifacts: Mapping[str, MediaArtifact]) -> MediaArtifact | None:
    for _, artifact in sorted(artifacts.items()):
        if artifact.modality == "video" and not isinstance(artifact.data, str):
            middle = artifact.data[artifact.data.shape[0] // 2]
            return MediaArtifact(artifact.name, "image", middle, "CHW")
    return None
