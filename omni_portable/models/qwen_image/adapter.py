"""Qwen-Image on diffusers' own classes: any folder of a `QwenImagePipeline`, any of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning, Extent
from omni_portable.models.attention import text_encoder_attention
from omni_portable.models.qwen_image import QwenImageOptions
from omni_portable.models.qwen_image.base import QwenImageBase
from omni_portable.models.qwen_image.folder import read_folder
from omni_portable.models.qwen_image.text import PromptEncoder


class QwenImageAdapter(QwenImageBase):
    """Text to image."""

    family = "qwen_image"
    options_type = QwenImageOptions
    read_folder = staticmethod(read_folder)

    def encode(
        self, prompts: Sequence[str], media: Sequence[Mapping[str, MediaArtifact]] | None, extent: Extent
    ) -> list[Conditioning]:
        """Per prompt 'prompt_embeds' (tokens, hidden size of the text encoder), model dtype."""
        text: PromptEncoder = self._loaded("text_encoder", self._text)
        self._refuse_media(media)
        return [text.encode(prompt) for prompt in prompts]

    def _load_text(self, load: ModelLoad) -> PromptEncoder:
        kernel = text_encoder_attention(load.attention.get("text_encoder"))
        text = PromptEncoder(self.folder, load, self._options.max_sequence_length, kernel)
        self.attention_in_use["text_encoder"] = kernel
        return text
