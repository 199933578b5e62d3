"""The scorers 'audio_energy', 'audio_silence' and 'audio_clipping': is there sound, and is it sound? Specs only."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class AudioEnergyOptions:
    artifact: str = "audio"
    """Name of the audio artifact to listen to."""
    low_db: float = -35.0
    """Lower end of the levels that score 1, in dB below full scale (root mean square)."""
    high_db: float = -6.0
    """Upper end of the levels that score 1."""
    falloff_db: float = 20.0
    """Distance from that range, in dB, at which the score is 0."""

    def __post_init__(self) -> None:
        if not self.low_db <= self.high_db or not self.falloff_db > 0:
            raise ConfigError(
                f"the audio_energy scorer needs low_db <= high_db and falloff_db > 0, got {self.low_db}, "
                f"{self.high_db}, {self.falloff_db}"
            )


@dataclass(frozen=True)
class AudioSilenceOptions:
    artifact: str = "audio"
    """Name of the audio artifact to listen to."""
    threshold_db: float = -50.0
    """A window below this level, in dB below full scale, is silent."""
    window_s: float = 0.05
    """Seconds of a window."""

    def __post_init__(self) -> None:
        if not self.window_s > 0:
            raise ConfigError(f"the audio_silence scorer's option window_s={self.window_s} must be above 0")


@dataclass(frozen=True)
class AudioClippingOptions:
    artifact: str = "audio"
    """Name of the audio artifact to listen to."""
    level: float = 0.999
    """A sample of at least this size is clipped."""
    tolerance: float = 0.01
    """Share of clipped samples at which the score is 0."""

    def __post_init__(self) -> None:
        if not 0 < self.level <= 1 or not 0 < self.tolerance <= 1:
            raise ConfigError(
                f"the audio_clipping scorer needs level and tolerance above 0 and at most 1, got {self.level}, "
                f"{self.tolerance}"
            )


_NEEDS = {"artifacts": {"artifact": "audio"}}
ENERGY = PluginSpec(
    name="audio_energy",
    summary="1 where the level of the sound lies in a range, less the further it lies outside",
    target="omni_portable.reward.audio_scorers:AudioEnergyScorer",
    options=AudioEnergyOptions,
    capabilities=_NEEDS,
)
SILENCE = PluginSpec(
    name="audio_silence",
    summary="share of the sound that is not silent",
    target="omni_portable.reward.audio_scorers:AudioSilenceScorer",
    options=AudioSilenceOptions,
    capabilities=_NEEDS,
)
CLIPPING = PluginSpec(
    name="audio_clipping",
    summary="1 without clipped samples, 0 where a declared share of them is clipped",
    target="omni_portable.reward.audio_scorers:AudioClippingScorer",
    options=AudioClippingOptions,
    capabilities=_NEEDS,
)
