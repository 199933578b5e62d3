"""What adapters of families with media share: from a prompt and its media to one :data:`TokenInputs`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.tokens import TokenInputs
from omni_portable.models.autoregressive.adapter import LanguageAdapter
from omni_portable.models.autoregressive.media import EncodedMedium, arrange, media_inputs


class MultimodalAdapter(LanguageAdapter):
    """A language model with frozen towers. Towers compute without gradient, once per prompt; what they give travels
    with the trajectory, so the actor needs none."""

    accepted: ClassVar[tuple[str, ...]]
    """Modalities that the towers read."""

    @torch.no_grad()
    def build_inputs(self, prompt: str, media: Mapping[str, MediaArtifact], system_prompt: str = "") -> TokenInputs:
        """'ids', three-axis 'positions', and the embeddings of media."""
        self.chat.refuse_special(prompt, system_prompt)
        encoded: list[EncodedMedium] = []
        text = ""
        for piece in arrange(prompt, media, self.accepted):
            if isinstance(piece, str):
                text += piece
            else:
                encoded.append(self._encode_medium(piece))
                text += encoded[-1].text
        ids = self.chat.encode(self.chat.conversation(text, system_prompt))
        inputs = media_inputs(ids, encoded, self._placeholders().values())
        return {"ids": ids, "positions": self._positions(ids, encoded).cpu(), **inputs}

    @abstractmethod
    def _encode_medium(self, artifact: MediaArtifact) -> EncodedMedium:
        """One medium through its tower."""

    @abstractmethod
    def _placeholders(self) -> Mapping[str, int]:
        """Kind of medium -> its placeholder token."""

    @abstractmethod
    def _positions(self, ids: torch.Tensor, encoded: Sequence[EncodedMedium]) -> torch.Tensor:
        """(3, P) rotary positions of (P,) ids."""

    def _token(self, kind: str) -> str:
        token: str = self.chat.tokenizer.convert_ids_to_tokens(self._placeholders()[kind])
        return token


def grids(encoded: Sequence[EncodedMedium], kind: str) -> torch.Tensor | None:
    """(count, 3) patches of all media of a kind, in order; None without any."""
    found = [medium.grid for medium in encoded if medium.kind == kind and medium.grid is not None]
    return torch.cat(found) if found else None


def frames_of(artifact: MediaArtifact) -> torch.Tensor:
    """(T, 3, H, W) uint8 of an image or a video."""
    assert isinstance(artifact.data, torch.Tensor)
    return artifact.data[None] if artifact.modality == "image" else artifact.data
