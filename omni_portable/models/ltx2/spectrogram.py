"""Log-mel spectrograms as LTX-2's audio autoencoder was trained on."""

from __future__ import annotations

import torch
from transformers.audio_utils import mel_filter_bank

WINDOW = 1024
"""Samples per window."""
FLOOR = 1e-5
"""Least magnitude before the logarithm."""


def log_mel(samples: torch.Tensor, sample_rate: int, hop: int, bins: int) -> torch.Tensor:
    """(channels, samples) fp32 -> (channels, 1 + samples // hop, bins) fp32.

    Magnitudes of a Hann-windowed, centred Fourier transform of 1024 samples, in Slaney's mel bands from 0 Hz to half
    the sample rate, with Slaney's normalisation; natural logarithm, floored.

    Source: the audio processor of LTX-2 (github.com/Lightricks/LTX-2).
    """
    window = torch.hann_window(WINDOW, device=samples.device)
    padded = torch.nn.functional.pad(samples, (WINDOW // 2, WINDOW // 2), mode=_padding(samples.shape[1]))
    spectrum = torch.stft(padded, WINDOW, hop, window=window, center=False, return_complex=True).abs()
    bands = mel_filter_bank(
        num_frequency_bins=WINDOW // 2 + 1,
        num_mel_filters=bins,
        min_frequency=0.0,
        max_frequency=sample_rate / 2,
        sampling_rate=sample_rate,
        norm="slaney",
        mel_scale="slaney",
    )
    mel = spectrum.transpose(1, 2) @ torch.from_numpy(bands).to(spectrum)
    return mel.clamp(min=FLOOR).log()


def _padding(count: int) -> str:
    """Mirrored ends, or silence around a sound too short to be mirrored."""
    return "reflect" if count > WINDOW // 2 else "constant"
