"""Sanity of sound: level, silence, clipping. They tell broken sound from sound, not good sound from bad."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import require_artifact
from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.audio import AudioClippingOptions, AudioEnergyOptions, AudioSilenceOptions

SILENT_DB = -120.0
"""Level of digital silence, and the least that is reported."""
Sound = np.ndarray[Any, np.dtype[np.float32]]
"""(channels, samples) float32."""


def sample_sound(sample: RewardSample, artifact: str, asked_by: str) -> tuple[Sound, int]:
    """The sample's sound and its rate in Hz.

    Raises:
        ArtifactError: it is missing, no audio, empty, or not finite.
    """
    found = require_artifact(sample.artifacts, artifact, "audio", f"{asked_by} (sample '{sample.sample_id}')")
    data: Any = found.data
    sound = np.asarray(data.detach().cpu().float().numpy())
    if not sound.size or not np.isfinite(sound).all() or not found.sample_rate:
        raise ArtifactError(f"{asked_by}: the sound '{artifact}' of sample '{sample.sample_id}' is empty or not finite")
    return sound, found.sample_rate


def level_db(sound: Sound) -> float:
    """Root mean square over all channels and samples, in dB below full scale, at least :data:`SILENT_DB`."""
    power = float(np.mean(np.square(sound, dtype=np.float64)))
    return max(SILENT_DB, 10.0 * math.log10(power)) if power > 0 else SILENT_DB


class AudioEnergyScorer:
    """score = 1 inside [low_db, high_db], falling linearly to 0 over falloff_db outside; component 'level_db'."""

    name = "audio_energy"

    def __init__(self, options: AudioEnergyOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={options.artifact: "audio"})

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        options = self.options
        levels = [level_db(sample_sound(s, options.artifact, "the audio_energy scorer")[0]) for s in batch]
        outside = [max(options.low_db - level, level - options.high_db, 0.0) for level in levels]
        return RewardOutput([max(0.0, 1.0 - d / options.falloff_db) for d in outside], {"level_db": levels})


class AudioSilenceScorer:
    """score = 1 - share of silent windows; component 'silent_share'. A last window that is not full counts as one."""

    name = "audio_silence"

    def __init__(self, options: AudioSilenceOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={options.artifact: "audio"})

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        shares = [self._share(*sample_sound(s, self.options.artifact, "the audio_silence scorer")) for s in batch]
        return RewardOutput([1.0 - share for share in shares], {"silent_share": shares})

    def _share(self, sound: Sound, rate: int) -> float:
        size = max(1, round(self.options.window_s * rate))
        windows = [sound[:, start : start + size] for start in range(0, sound.shape[1], size)]
        return sum(level_db(window) < self.options.threshold_db for window in windows) / len(windows)


class AudioClippingScorer:
    """score = 1 - clipped share / tolerance, at least 0; components 'clipped_share' and 'peak'."""

    name = "audio_clipping"

    def __init__(self, options: AudioClippingOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={options.artifact: "audio"})

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        sounds = [np.abs(sample_sound(s, self.options.artifact, "the audio_clipping scorer")[0]) for s in batch]
        shares = [float((sound >= self.options.level).mean()) for sound in sounds]
        scores = [max(0.0, 1.0 - share / self.options.tolerance) for share in shares]
        return RewardOutput(scores, {"clipped_share": shares, "peak": [float(sound.max()) for sound in sounds]})
