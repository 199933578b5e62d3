"""How a run draws its samples: in training as `rollout` says, in validation with what `validation` changes of it."""

from __future__ import annotations

from dataclasses import fields, replace

from omni_portable.config.convert import Source
from omni_portable.config.kinds import trained_kind
from omni_portable.config.plugins import algorithm_options, plugin_spec
from omni_portable.config.schema import DataConfig, RolloutConfig, RunConfig
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.contracts.registry import PluginSpec


def validation_changes(config: RunConfig) -> dict[str, int | float]:
    """Key of `validation` -> value, of those that are set."""
    return {key.name: value for key in fields(config.validation) if (value := getattr(config.validation, key.name))}


def validation_rollout(config: RunConfig) -> RolloutConfig:
    """`rollout` as validation draws."""
    changes: dict[str, int | float] = validation_changes(config)
    return replace(config.rollout, **changes)  # type: ignore[arg-type]


def validation_data(config: RunConfig) -> DataConfig:
    """`data` as validation reads it: input media that training brings to the size of its samples are brought to that of
    validation samples."""
    drawn, training = validation_rollout(config), config.rollout
    if (drawn.height, drawn.width) == (training.height, training.width):
        return config.data
    media = {
        name: replace(one, height=drawn.height, width=drawn.width)
        if (one.height, one.width) == (training.height, training.width)
        else one
        for name, one in config.data.media.items()
    }
    return replace(config.data, media=media)


def check_drawing(config: RunConfig, source: Source) -> None:
    """Check guidance of training and validation, and that `validation` means something.

    Raises:
        ConfigError: a key of `validation` for a model that writes tokens, or a negative prompt that nothing reads.
        CapabilityError: guidance for a model that has none.
    """
    changes = validation_changes(config)
    if changes and trained_kind(config) == "autoregressive":
        key, value = next(iter(changes.items()))
        raise ConfigError(
            f"{source.describe(f'validation.{key}', value)}: it means nothing for a model that writes tokens",
            remedy=f"remove validation.{key}; rollout.validation_temperature is the sampler of validation",
        )
    model = plugin_spec("model", config.model.family, "model.family")
    _check_guidance(model, "rollout.guidance_scale", config.rollout.guidance_scale)
    drawn = validation_rollout(config)
    _check_guidance(model, "validation.guidance_scale", drawn.guidance_scale)
    guided_teacher = getattr(algorithm_options(config, source), "teacher_guidance_scale", 1.0) != 1.0
    unguided = config.rollout.guidance_scale == drawn.guidance_scale == 1.0 and not guided_teacher
    if config.rollout.negative_prompt and unguided:
        raise ConfigError(
            "rollout.negative_prompt is set, but rollout.guidance_scale=1 turns guidance off and would ignore it",
            remedy="raise rollout.guidance_scale or remove rollout.negative_prompt",
        )


def _check_guidance(model: PluginSpec, key: str, scale: float) -> None:
    if scale != 1.0 and model.capabilities.get("guidance") is False:
        raise CapabilityError(
            f"{key}={scale:g}: model family '{model.name}' has no classifier-free guidance",
            remedy=f"set {key}=1",
        )
