"""What scorers need of every sample: known from their specs before anything loads, checked before they are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from omni_portable.config.plugins import declared_modality
from omni_portable.contracts.errors import ConfigError, DataError
from omni_portable.contracts.media import Modality, require_artifact
from omni_portable.contracts.registry import PluginSpec
from omni_portable.contracts.reward import RewardSample, ScorerRequirements


def declared_requirements(spec: PluginSpec, options: Any) -> ScorerRequirements:
    """Requirements of a scorer as its spec declares them, without loading it.

    A name in `capabilities` that is also an option stands for that option's value; so does one in place of a modality.
    """
    artifacts = spec.capabilities.get("artifacts", {})
    return ScorerRequirements(
        artifacts={
            str(getattr(options, name, name)): declared_modality(kind, options) for name, kind in artifacts.items()
        },
        fields=tuple(str(getattr(options, name, name)) for name in spec.capabilities.get("fields", ())),
    )


def merge_requirements(parts: Iterable[ScorerRequirements]) -> ScorerRequirements:
    """The union, fields in order of first mention.

    Raises:
        ConfigError: two scorers want one artifact to be of different modalities.
    """
    artifacts: dict[str, str] = {}
    fields: dict[str, None] = {}
    for part in parts:
        for name, modality in part.artifacts.items():
            if artifacts.setdefault(name, modality) != modality:
                raise ConfigError(
                    f"scorers need the artifact '{name}' both as {artifacts[name]} and as {modality}",
                    remedy="set the scorers' artifact options to different artifacts",
                )
        fields.update(dict.fromkeys(part.fields))
    return ScorerRequirements(artifacts=artifacts, fields=tuple(fields))


def require_field(sample: RewardSample, name: str, asked_by: str) -> Any:
    """The value of a metadata field.

    Raises:
        DataError: the prompt has no such field or leaves it empty; names the prompt.
    """
    value = sample.metadata.get(name)
    if value is None or value == "":
        raise DataError(
            f"{asked_by} needs the field '{name}', which the prompt {sample.prompt!r} "
            f"(sample '{sample.sample_id}') does not have",
            remedy="add the field to the dataset, or name another one in the scorer's options",
            choices=sorted(sample.metadata),
        )
    return value


def check_samples(samples: Sequence[RewardSample], requires: ScorerRequirements, asked_by: str) -> None:
    """Every sample has every artifact, of the right modality, and every field.

    Raises:
        ArtifactError, DataError: name the sample.
    """
    for sample in samples:
        who = f"{asked_by} (sample '{sample.sample_id}')"
        for name, modality in requires.artifacts.items():
            require_artifact(sample.artifacts, name, cast(Modality, modality), who)
        for name in requires.fields:
            require_field(sample, name, asked_by)
