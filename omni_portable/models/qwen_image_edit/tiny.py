"""Tiny Qwen-Image-Edit folders with random weights, made offline in a second: same classes, same file layout.

For tests and smoke runs; they draw noise. All components are fp32.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline
from transformers import Qwen2VLImageProcessorPil

from omni_portable.models.loading import quiet_libraries
from omni_portable.models.qwen_image.tiny import published_scheduler, tiny_transformer, tiny_vae
from omni_portable.models.qwen_image_edit.text import EDIT
from omni_portable.models.tiny_qwen_vl import tiny_qwen_vl, word_tokenizer

PROCESSOR_CLASS = "Qwen2VLProcessor"


def build_tiny_qwen_image_edit_plus(path: Path, *, seed: int = 0, zero_cond_t: bool = True) -> Path:
    """A folder of the releases that take several images; equal arguments give equal bytes of weights.

    Args:
        path: where to; created. It is returned.
        zero_cond_t: input images are modulated as clean ones, as in the release of 2511.
    """
    return _build(path, QwenImageEditPlusPipeline, seed, zero_cond_t)


def build_tiny_qwen_image_edit(path: Path, *, seed: int = 0) -> Path:
    """A folder of the first release."""
    return _build(path, QwenImageEditPipeline, seed, zero_cond_t=False)


def _build(
    path: Path, pipeline: type[QwenImageEditPipeline | QwenImageEditPlusPipeline], seed: int, zero_cond_t: bool
) -> Path:
    channels, hidden = 4, 32
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(seed)
        tokenizer = word_tokenizer([EDIT.text])
        pipeline(
            transformer=tiny_transformer(2, 2, channels, hidden, zero_cond_t=zero_cond_t),
            vae=tiny_vae(channels, 2),
            text_encoder=tiny_qwen_vl(tokenizer, hidden=hidden, layers=2),
            tokenizer=tokenizer,
            processor=None,
            scheduler=published_scheduler(),
        ).save_pretrained(path)
        _save_processor(path, tokenizer)
    return path


def _save_processor(path: Path, tokenizer: object) -> None:
    """Its parts and its entry in the index. transformers' own class cannot be made without a reader of videos."""
    Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=448 * 448).save_pretrained(path / "processor")
    tokenizer.save_pretrained(path / "processor")  # type: ignore[attr-defined]
    index = path / "model_index.json"
    content = json.loads(index.read_text()) | {"processor": ["transformers", PROCESSOR_CLASS]}
    index.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
