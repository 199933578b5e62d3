"""Pictures of one colour and sounds of one pitch, drawn from a seed: what tiny models are asked about."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

from omni_portable.contracts.media import MediaArtifact

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (200, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 70, 210),
    "yellow": (220, 200, 40),
}
TONES: Mapping[str, float] = {"low": 250.0, "middle": 1000.0, "high": 4000.0}
"""Name -> Hz in the middle of its range of half an octave."""

SIDE, GRAIN, STEP = 32, 20, 8
"""Pixels of a side; largest deviation of a pixel, in multiples of a step (so that files stay small)."""
SAMPLE_RATE, SAMPLES = 16000, 3200

COLOUR_QUESTION, TONE_QUESTION = "Which colour?", "Which pitch?"


def colour_picture(colour: str, seed: int) -> MediaArtifact:
    """uint8 (3, 32, 32): one colour with grain."""
    grain = np.random.default_rng(seed).integers(-GRAIN // STEP, GRAIN // STEP + 1, (3, SIDE, SIDE)) * STEP
    pixels = np.array(COLOURS[colour])[:, None, None] + grain
    return MediaArtifact("image", "image", torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)), "CHW")


def tone(pitch: str, seed: int) -> MediaArtifact:
    """float32 (1, 3200) at 16 kHz: a sine near the pitch, of a random loudness and phase."""
    draw = np.random.default_rng(seed)
    hertz = TONES[pitch] * 2.0 ** draw.uniform(-0.25, 0.25)
    loudness, phase = draw.uniform(0.2, 0.8), draw.uniform(0.0, 2.0 * math.pi)
    wave = loudness * np.sin(phase + 2.0 * math.pi * hertz * np.arange(SAMPLES) / SAMPLE_RATE)
    return MediaArtifact(
        "sound", "audio", torch.from_numpy(wave.astype(np.float32))[None], "CT", sample_rate=SAMPLE_RATE
    )


Drawer = Callable[[str, int], MediaArtifact]
QUESTIONS: Mapping[str, tuple[Drawer, tuple[str, ...]]] = {
    COLOUR_QUESTION: (colour_picture, tuple(COLOURS)),
    TONE_QUESTION: (tone, tuple(TONES)),
}
"""Question -> what draws its medium, and the answers there are."""
