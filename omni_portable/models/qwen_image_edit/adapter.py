"""Qwen-Image-Edit on diffusers' own classes: Qwen-Image's transformer is shown the latents of the input images beside
the ones it draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning, Extent
from omni_portable.models.attention import text_encoder_attention
from omni_portable.models.diffusers_folder import SIDE
from omni_portable.models.packing import pack
from omni_portable.models.qwen_image.base import Grid, QwenImageBase
from omni_portable.models.qwen_image.vae import encode_image
from omni_portable.models.qwen_image_edit import IMAGES, QwenImageEditOptions
from omni_portable.models.qwen_image_edit.folder import read_folder
from omni_portable.models.qwen_image_edit.pictures import input_images, resized
from omni_portable.models.qwen_image_edit.text import InstructionEncoder


class QwenImageEditAdapter(QwenImageBase):
    """Images and an instruction to an image."""

    family = "qwen_image_edit"
    options_type = QwenImageEditOptions
    read_folder = staticmethod(read_folder)
    padded = ("prompt_embeds", "image_tokens", "image_grids")

    def encode(
        self, prompts: Sequence[str], media: Sequence[Mapping[str, MediaArtifact]] | None, extent: Extent
    ) -> list[Conditioning]:
        """Per prompt 'prompt_embeds' (tokens, hidden size of the text encoder), 'image_tokens' (tokens of all input
        images, 4 C) and 'image_grids' (images, 2) int64, the rows and columns of tokens of each.

        Raises:
            ArtifactError: a prompt without an image, or with more than the release takes.
        """
        given = media if media is not None else [{}] * len(prompts)
        if len(given) != len(prompts):
            raise ArtifactError(f"{len(prompts)} prompts came with the media of {len(given)}")
        return [self._encode_one(prompt, named) for prompt, named in zip(prompts, given, strict=True)]

    def _encode_one(self, prompt: str, media: Mapping[str, MediaArtifact]) -> Conditioning:
        text: InstructionEncoder = self._loaded("text_encoder", self._text)
        vae = self._loaded("vae", self._vae)
        plus, options = self.folder.plus, self._options
        images = input_images(media, len(IMAGES) if plus else 1)
        shown = [resized(image, options.vae_pixels) for image in images]
        read = [resized(image, options.condition_pixels) for image in images] if plus else shown
        with torch.no_grad():
            latents = [encode_image(vae, image.float() / 127.5 - 1.0) for image in shown]
        return {
            "prompt_embeds": text.encode(prompt, read),
            "image_tokens": torch.cat([pack(one[None])[0] for one in latents]).to(self.dtype),
            "image_grids": torch.tensor([[one.shape[1] // SIDE, one.shape[2] // SIDE] for one in latents]),
        }

    def _packed(
        self, tokens: torch.Tensor, timesteps: torch.Tensor, conditioning: Conditioning, height: int, width: int
    ) -> torch.Tensor:
        """Rows whose input images have equal sizes share a forward: positions follow from the sizes."""
        own = (1, height // SIDE, width // SIDE)
        rows_of: dict[tuple[Grid, ...], list[int]] = {}
        for row, images in enumerate(conditioning["image_grids"].tolist()):
            rows_of.setdefault(tuple((1, r, c) for r, c in images if r), []).append(row)
        if len(rows_of) == 1:
            return self._beside(tokens, timesteps, conditioning, [own, *next(iter(rows_of))])
        output = torch.empty_like(tokens, dtype=torch.float32)
        for images, rows in rows_of.items():
            chosen = torch.tensor(rows, device=tokens.device)
            part = {name: tensor[rows] for name, tensor in conditioning.items()}
            result = self._beside(tokens[chosen], timesteps[chosen], part, [own, *images])
            output = output.index_copy(0, chosen, result)
        return output

    def _beside(
        self, tokens: torch.Tensor, timesteps: torch.Tensor, conditioning: Conditioning, grids: list[Grid]
    ) -> torch.Tensor:
        """Velocity of `tokens`, with the input images' tokens after them."""
        count = sum(rows * columns for _, rows, columns in grids[1:])
        given = conditioning["image_tokens"][:, :count].to(tokens.device, tokens.dtype)
        both = torch.cat([tokens, given], dim=1)
        return self._transform(both, timesteps, conditioning, [grids] * len(tokens))[:, : tokens.shape[1]]

    def _load_text(self, load: ModelLoad) -> InstructionEncoder:
        kernel = text_encoder_attention(load.attention.get("text_encoder"))
        self.attention_in_use["text_encoder"] = kernel
        return InstructionEncoder(self.folder, load, kernel)
