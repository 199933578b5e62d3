"""Samples with pictures of text, drawn with the fonts that come with matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.reward import RewardSample


def draw(text: str, width: int = 48, height: int = 32, size: int = 22, font: str = "DejaVuSans-Bold") -> torch.Tensor:
    """Dark `text` in the middle of a light (3, H, W) uint8 image."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    image = Image.new("RGB", (width, height), (240, 240, 240))
    pen = ImageDraw.Draw(image)
    pen.text((width / 2, height / 2), text, font=ImageFont.truetype(str(path), size), fill=(20, 20, 20), anchor="mm")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def sample(pixels: torch.Tensor | None, truth: object = None, *, index: int = 0, group: str = "g0") -> RewardSample:
    artifacts = {} if pixels is None else {"image": MediaArtifact("image", "image", pixels, "CHW")}
    metadata = {} if truth is None else {"ground_truth": truth}
    return RewardSample(f"{group}/{index}", group, f'the text "{truth}"', artifacts, metadata)
