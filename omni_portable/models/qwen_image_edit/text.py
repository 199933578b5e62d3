"""Instruction encoding of Qwen-Image-Edit: Qwen2.5-VL reads the input images and the instruction in one template.

Image tokens have positions in rows and columns, as the model was trained with. (The pipelines of diffusers 0.40 do not
hand transformers 5 what it needs for them, and then give image tokens positions of text.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_portable.contracts.model import ModelLoad
from omni_portable.models.autoregressive.vision import patches
from omni_portable.models.qwen_image.text import Template, last_hidden, load_text_encoder
from omni_portable.models.qwen_image_edit.folder import EditFolder

PLACE = "<|image_pad|>"
SHOWN = f"<|vision_start|>{PLACE}<|vision_end|>"
_TASK = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
EDIT = Template(_TASK, dropped=64)


class InstructionEncoder:
    """The text encoder of one folder, with its vision tower."""

    def __init__(self, folder: EditFolder, load: ModelLoad, kernel: str) -> None:
        self.model, self._tokenizer = load_text_encoder(folder, load, kernel)
        self._folder = folder
        self._device, self._dtype = load.torch_device, load.dtype
        self._place = int(self._tokenizer.convert_tokens_to_ids(PLACE))

    @torch.no_grad()
    def encode(self, prompt: str, images: Sequence[torch.Tensor]) -> torch.Tensor:
        """(tokens, hidden size) in the model's dtype of an instruction about uint8 images (3, H, W)."""
        seen = [patches(image[None], self._folder.vision) for image in images]
        pixels, grids = (torch.cat(parts) for parts in zip(*seen, strict=True))
        counts = [int(grid.prod()) // self._folder.vision.merge**2 for grid in grids]
        ids = self._tokenizer(EDIT.text.format(self._shown(counts) + prompt), return_tensors="pt").input_ids
        hidden = last_hidden(
            self.model,
            ids.to(self._device),
            pixel_values=pixels.to(self._device, self._dtype),
            image_grid_thw=grids.to(self._device),
            mm_token_type_ids=(ids == self._place).int().to(self._device),
        )
        return hidden[0, EDIT.dropped :].to(self._dtype)

    def _shown(self, counts: Sequence[int]) -> str:
        """What stands for the images before the instruction; later releases number them."""
        shown = [SHOWN.replace(PLACE, PLACE * count) for count in counts]
        if not self._folder.plus:
            return "".join(shown)
        return "".join(f"Picture {number}: {image}" for number, image in enumerate(shown, 1))
