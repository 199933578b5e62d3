"""Where media stand in a prompt, and what a tower makes of them.

A prompt may mark the places of its media with '<image>', '<video>' and '<audio>', each standing for the next one of its
kind; a prompt without marks shows all media first, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from omni_portable.contracts.errors import ArtifactError, DataError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.tokens import TokenInputs

MARK = re.compile(r"<(image|video|audio)>")


@dataclass(frozen=True)
class EncodedMedium:
    """One medium as the language model reads it.

    Args:
        text: what stands for it in the prompt, placeholders expanded.
        embeds: (M, width), one for each placeholder.
        deepstack: (K, M, width), or None.
        grid: (1, 3) int64 patches of an image or video, else None.
        kind: 'image', 'video' or 'audio'.
        seconds: of one temporal patch (videos).
        frames: of features (audio).
    """

    text: str
    embeds: torch.Tensor
    kind: str
    deepstack: torch.Tensor | None = None
    grid: torch.Tensor | None = None
    seconds: float = 0.0
    frames: int = 0


def arrange(prompt: str, media: Mapping[str, MediaArtifact], accepted: Iterable[str]) -> list[str | MediaArtifact]:
    """Text and media of a prompt in reading order.

    Raises:
        ArtifactError: a medium of a modality that is not accepted.
        DataError: marks that do not match the media.
    """
    for name, artifact in media.items():
        if artifact.modality not in accepted:
            raise ArtifactError(
                f"the model reads no {artifact.modality} ('{name}' of the prompt {prompt[:80]!r})",
                choices=sorted(accepted),
            )
    marks = MARK.findall(prompt)
    if not marks:
        return [*media.values(), prompt]
    given: list[str] = [artifact.modality for artifact in media.values()]
    if sorted(marks) != sorted(given):
        raise DataError(
            f"the prompt {prompt[:80]!r} marks the media {marks}, but has {given}",
            remedy="mark each medium once, or none of them",
        )
    waiting: dict[str, Iterator[MediaArtifact]] = {
        kind: iter([a for a in media.values() if a.modality == kind]) for kind in set(given)
    }
    pieces = MARK.split(prompt)  # text, kind, text, kind, ..., text
    return [next(waiting[piece]) if index % 2 else piece for index, piece in enumerate(pieces)]


def media_inputs(ids: torch.Tensor, encoded: list[EncodedMedium], placeholders: Iterable[int]) -> TokenInputs:
    """'media_embeds', 'media_at', and 'deepstack' with 'deepstack_at', for the placeholders of `ids` (P,) in order.

    Raises:
        ArtifactError: another number of placeholders than embeddings.
    """
    if not encoded:
        return {}
    wanted = torch.tensor(sorted(placeholders))
    at = torch.isin(ids, wanted).nonzero().flatten()
    counts = [len(medium.embeds) for medium in encoded]
    if sum(counts) != len(at):
        raise ArtifactError(f"the prompt has {len(at)} media tokens for {sum(counts)} embeddings of media")
    inputs = {"media_embeds": torch.cat([medium.embeds for medium in encoded]), "media_at": at}
    deep = [(medium.deepstack, part) for medium, part in zip(encoded, at.split(counts), strict=True)]
    found = [(layers, part) for layers, part in deep if layers is not None]
    if found:
        inputs["deepstack"] = torch.cat([layers for layers, _ in found], dim=1)
        inputs["deepstack_at"] = torch.cat([part for _, part in found])
    return inputs
