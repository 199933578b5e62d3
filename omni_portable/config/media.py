"""Checks of `data.media` and `data.targets`: what rows bring along must be what the model and the engine take.

Capabilities that are read here, all optional:

* model: 'inputs' (names of the media that a diffusion family takes, or name -> modality; modalities for a family that
  reads media into its prompt, whose names are free), 'artifacts'
* algorithm: 'needs_log_probs'
* rollout engine: 'given_samples' (True: it can take samples from the dataset)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from omni_portable.config.convert import Source, suggest
from omni_portable.config.kinds import trained_kind
from omni_portable.config.plugins import gives_samples, plugin_spec
from omni_portable.config.schema import MediaConfig, RunConfig
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.contracts.registry import PluginSpec

MODALITIES = ("image", "video", "audio")
RESIZE = ("pad", "crop", "stretch")
MAX_SAMPLE_RATE = 1_000_000
"""Highest sample rate of sound, in Hz; nothing records faster, and what is beyond is a slip."""
_MOST: Mapping[str, float] = {
    "height": 16384,
    "width": 16384,
    "fps": 1000,
    "max_frames": 1_000_000,
    "sample_rate": MAX_SAMPLE_RATE,
    "max_seconds": 86400,
}
"""Number -> highest value, beyond every medium that fits into memory."""
_ONLY: Mapping[str, tuple[str, ...]] = {
    "height": ("image", "video"),
    "width": ("image", "video"),
    "fps": ("video",),
    "max_frames": ("video",),
    "sample_rate": ("audio",),
    "max_seconds": ("audio",),
}
"""Number -> modalities that it means something for."""


def check_media(config: RunConfig, source: Source) -> None:
    """Check both sections.

    Raises:
        ConfigError: an unknown modality, a value out of range, or one that means nothing for its modality.
        CapabilityError: media that the model does not take, targets that it does not make, or targets without an engine
            and an algorithm that can use them.
    """
    model = plugin_spec("model", config.model.family, "model.family")
    for name, media in config.data.media.items():
        _check_input(f"data.media.{name}", media, source)
        _check_taken(config, model, name, media)
    _check_targets(config, model)


def _check_input(key: str, media: MediaConfig, source: Source) -> None:
    _one_of(f"{key}.modality", media.modality, MODALITIES, source)
    _one_of(f"{key}.resize", media.resize, RESIZE, source)
    for name, modalities in _ONLY.items():
        value = getattr(media, name)
        if not (0 <= value < math.inf):
            raise ConfigError(f"{source.describe(f'{key}.{name}', value)}: it must be at least 0 and finite")
        if value > _MOST[name]:
            raise ConfigError(f"{source.describe(f'{key}.{name}', value)}: it must be at most {_MOST[name]}")
        if value and media.modality not in modalities:
            raise ConfigError(
                f"{source.describe(f'{key}.{name}', value)}: {name} means nothing for {media.modality}",
                remedy=f"remove {key}.{name}",
            )
    if bool(media.height) != bool(media.width):
        raise ConfigError(f"{key}.height and {key}.width go together; one of them is 0", remedy="set both or neither")


def _one_of(key: str, value: str, choices: Sequence[str], source: Source) -> None:
    if value not in choices:
        raise ConfigError(
            f"{source.describe(key, value)}: '{value}' is no valid {key}",
            remedy=suggest(value, choices),
            choices=choices,
        )


def _check_taken(config: RunConfig, model: PluginSpec, name: str, media: MediaConfig) -> None:
    inputs: Any = model.capabilities.get("inputs")
    if inputs is None:
        return
    key, modalities = f"data.media.{name}", None
    if trained_kind(config) == "autoregressive":
        fits, modalities = media.modality in inputs, list(inputs)
    else:
        fits = name in inputs
        if fits and isinstance(inputs, Mapping):
            fits, modalities = inputs[name] == media.modality, [inputs[name]]
    if fits:
        return
    if not inputs:
        raise CapabilityError(f"{key}: model family '{model.name}' takes no input media", remedy="remove data.media")
    if modalities is not None:
        raise CapabilityError(
            f"{key}.modality={media.modality}: model family '{model.name}' does not take it", choices=modalities
        )
    raise CapabilityError(
        f"{key}: model family '{model.name}' takes no medium of that name",
        remedy=suggest(name, list(inputs)),
        choices=list(inputs),
    )


def _check_targets(config: RunConfig, model: PluginSpec) -> None:
    targets, engine = config.data.targets, config.rollout.engine
    gives = gives_samples(config)
    if not targets:
        if gives:
            raise CapabilityError(
                f"rollout.engine={engine} takes samples from the dataset, but data.targets is empty",
                remedy="name the artifact and the field that holds it, e.g. data.targets.image.fields=[image]",
            )
        return
    if not gives:
        raise CapabilityError(
            f"data.targets is set, but rollout.engine={engine} draws its samples itself",
            remedy="set rollout.engine=dataset, or remove data.targets",
        )
    _check_made(config, model)
    algorithm = config.algorithm.get("name", "")
    if plugin_spec("algorithm", algorithm, "algorithm.name").capabilities.get("needs_log_probs"):
        raise CapabilityError(
            f"algorithm.name={algorithm} needs the log-probs of samples, which given ones do not have",
            remedy="use an algorithm that trains on clean samples (sft, diffusion_dpo, ...), or another rollout.engine",
        )
    for name, target in targets.items():
        _one_of(f"data.targets.{name}.resize", target.resize, ("none", *RESIZE), Source())
        if len(target.fields) != config.rollout.n:
            raise CapabilityError(
                f"data.targets.{name}.fields names {len(target.fields)} samples per prompt, but rollout.n="
                f"{config.rollout.n}",
                remedy=f"set rollout.n={len(target.fields)}" if target.fields else "name the fields",
            )
        if len(set(target.fields)) < len(target.fields):
            raise ConfigError(f"data.targets.{name}.fields={target.fields} names a field twice: a pair needs two sides")


def _check_made(config: RunConfig, model: PluginSpec) -> None:
    made = model.capabilities.get("artifacts")
    if made is None:
        return
    unknown = [name for name in config.data.targets if name not in made]
    missing = [name for name in made if name not in config.data.targets]
    if unknown or missing:
        what = f"makes no artifact '{unknown[0]}'" if unknown else f"makes '{missing[0]}' too, which no row would give"
        raise CapabilityError(
            f"data.targets: model family '{model.name}' {what}",
            choices=[f"{name} ({modality})" for name, modality in sorted(made.items())],
        )
