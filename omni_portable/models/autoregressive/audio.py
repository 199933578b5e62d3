"""Sound as an audio tower reads it: log-mel features by the extractor that a model folder describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import WhisperFeatureExtractor

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.models.folders import read_json, whole_numbers

KEYS = ("feature_size", "sampling_rate", "hop_length", "chunk_length", "n_fft", "padding_value", "dither")


class AudioFeatures:
    """The extractor of `preprocessor_config.json`.

    Raises:
        ModelError: the file is missing, or lacks the keys of an audio extractor.
    """

    def __init__(self, path: Path) -> None:
        config = read_json(path)
        whole_numbers(path, config, ("feature_size", "sampling_rate", "hop_length", "n_fft"))
        self.sampling_rate = int(config["sampling_rate"])
        self._extractor: Any = WhisperFeatureExtractor(**{key: config[key] for key in KEYS if key in config})

    def extract(self, artifact: MediaArtifact) -> Mapping[str, torch.Tensor]:
        """'input_features' (1, mel bins, frames) fp32 and 'feature_attention_mask' (1, frames); channels are averaged.

        Raises:
            ArtifactError: another sample rate than the model's, or no samples.
        """
        if artifact.sample_rate != self.sampling_rate:
            raise ArtifactError(
                f"the audio '{artifact.name}' has {artifact.sample_rate} samples per second, the model hears "
                f"{self.sampling_rate}",
                remedy=f"resample it to {self.sampling_rate} Hz when the dataset is made or read",
            )
        assert isinstance(artifact.data, torch.Tensor)
        wave = artifact.data.float().mean(dim=0)
        if len(wave) < self._extractor.hop_length:
            raise ArtifactError(f"the audio '{artifact.name}' has only {len(wave)} samples")
        found = self._extractor(
            wave.numpy(),
            sampling_rate=self.sampling_rate,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return {"input_features": found.input_features, "feature_attention_mask": found.attention_mask}
