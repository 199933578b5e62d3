"""Prompt encoding of MiniMax-H3: a hidden state of Qwen3-VL over labelled frames and the prompt as it is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, Qwen3VLForConditionalGeneration

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning
from omni_portable.models.loading import load_tokenizer
from omni_portable.models.minimax_h3.folder import MiniMaxH3Folder
from omni_portable.models.minimax_h3.packing import TEXT, VIDEO
from omni_portable.models.text_encoding import load_encoder, load_matching_tokenizer

logger = logging.getLogger(__name__)

TOKENIZER_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))
PROCESSOR_FILES = (("preprocessor_config.json",),)


class TextEncoder:
    """The frozen Qwen3-VL of one folder.

    Args:
        load: where and in what it computes.
        layer: whose output is taken; the encoder must have more.
        max_sequence_length: tokens of a prompt at most.
        kernel: attn_implementation.

    Raises:
        ConfigError: too few layers.
    """

    def __init__(
        self, folder: MiniMaxH3Folder, load: ModelLoad, layer: int, max_sequence_length: int, kernel: str
    ) -> None:
        layers = int(folder.text["num_hidden_layers"])
        if layer >= layers:
            raise ConfigError(
                f"model.options.text_encoder_layer is {layer}, but the text encoder of {folder.path} has {layers} "
                "layers (the last one's output is normalised and conditions nothing)",
                remedy=f"set it to at most {layers - 1}; 50 as published",
            )
        self._device, self._dtype = load.torch_device, load.dtype
        self._layer, self._longest = layer, max_sequence_length
        encoder = load_encoder(Qwen3VLForConditionalGeneration, folder.path / "text_encoder", load, kernel)
        self._tokenizer = load_matching_tokenizer(
            Qwen2Tokenizer,
            folder.path / "tokenizer",
            TOKENIZER_FILES,
            "the text encoder",
            int(folder.text["vocab_size"]),
        )
        self._images = load_tokenizer(Qwen2VLImageProcessorPil, folder.path / "processor", PROCESSOR_FILES)
        self._encoder: Any = encoder.model  # the language head would score every token for nothing
        self._image_token = int(encoder.config.image_token_id)

    @torch.no_grad()
    def encode(self, prompt: str, frames: Sequence[torch.Tensor]) -> Conditioning:
        """'prompt_embeds' (tokens, text width) in the model's dtype and 'text_tags' (tokens,) int64.

        Args:
            frames: uint8 (3, H, W) each, in order; before the prompt stands for each its label and what it shows.
        """
        ids, tags, vision = self._pictures(frames)
        own = self._tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if len(own) > self._longest:
            logger.warning("the text encoder reads %d of the %d tokens of %r", self._longest, len(own), prompt)
        own = own[: self._longest] or self._tokenizer(" ", add_special_tokens=False)["input_ids"]
        ids, tags = [*ids, *own], [*tags, *[TEXT] * len(own)]
        tokens = torch.tensor([ids], device=self._device)
        output = self._encoder(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=(tokens == self._image_token).long(),
            use_cache=False,
            output_hidden_states=True,
            **vision,
        )
        states = output.hidden_states[self._layer][0].to(self._dtype)
        return {"prompt_embeds": states, "text_tags": torch.tensor(tags, device=self._device)}

    def _pictures(self, frames: Sequence[torch.Tensor]) -> tuple[list[int], list[int], dict[str, torch.Tensor]]:
        """Token ids and tags of labels and vision blocks, and the vision inputs."""
        if not frames:
            return [], [], {}
        pictures = [Image.fromarray(frame.permute(1, 2, 0).contiguous().cpu().numpy()) for frame in frames]
        seen = self._images(images=pictures, return_tensors="pt")
        ids: list[int] = []
        tags: list[int] = []
        start, pad, end = self._tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"])
        for index, grid in enumerate(seen["image_grid_thw"]):
            label = self._tokenizer(f"<Picture {index + 1}>: ", add_special_tokens=False)["input_ids"]
            block = [start, *[pad] * (int(grid.prod()) // self._images.merge_size**2), end]
            ids += [*label, *block]
            tags += [TEXT] * len(label) + [VIDEO] * len(block)
        pixels = seen["pixel_values"].to(self._device, self._dtype)
        return ids, tags, {"pixel_values": pixels, "image_grid_thw": seen["image_grid_thw"].to(self._device)}
