"""Everything that can be refused before weights load: device, attention, prompts, scorers, capabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from omni_portable.config.device_choice import choose_device
from omni_portable.config.drawing import validation_data
from omni_portable.config.loader import plugin_options, resolve_model_path
from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.device import AttentionChoice, AttentionRequest, Device, VerifyResult
from omni_portable.contracts.errors import CapabilityError
from omni_portable.contracts.model import DiffusionAdapter, ModelLoad
from omni_portable.contracts.tokens import AnyAlgorithm
from omni_portable.data.fields import input_media, training_media
from omni_portable.data.prompts import PromptRow, PromptSampler, load_prompts, refuse_overlap
from omni_portable.models.companions import check_companions
from omni_portable.models.extents import check_extents, extent_of
from omni_portable.reward.compose import RewardComposer


@dataclass
class PreparedModel:
    """How the run's model will be loaded, and why; no weights, prompts or scorers yet."""

    device: Device
    dtype: str
    load: ModelLoad
    attention_requests: list[AttentionRequest]


@dataclass
class Prepared(PreparedModel):
    """What a run has settled before anything heavy loads."""

    algorithm: AnyAlgorithm
    composer: RewardComposer
    train_rows: list[PromptRow]
    validation_rows: list[PromptRow]
    sampler: PromptSampler[PromptRow]


def prepare(config: RunConfig, device: Device | None = None) -> Prepared:
    """Resolve and check; every problem is an error that says what to change.

    Args:
        device: chosen already; None chooses what the configuration names.
    """
    model = prepare_model(config, device)
    check_extents(config, model.load.path)
    check_companions(config, model.load.path)
    algorithm = prepare_algorithm(config)
    composer = RewardComposer.from_config(config.reward)
    _check_artifacts(config, composer)
    required = (*config.data.fields, *composer.requirements().fields)
    needed_by = {name: "data.fields names it" for name in config.data.fields} | composer.needed_by()
    artifacts = registry.spec("model", config.model.family).capabilities.get("artifacts", {})
    train = load_prompts(
        config.data.train,
        split="train",
        prompt_key=config.data.prompt_key,
        required_fields=(*required, config.model.teacher_field) if config.model.teacher_field else required,
        needed_by=needed_by,
        names={config.model.teacher_field: ("model.teachers", tuple(config.model.teachers))},
        media=training_media(config.data, artifacts, extent_of(config.rollout)),
    )
    sampler = PromptSampler(train, config.data.train_batch_size, config.data.shuffle, config.trainer.seed)
    validation: list[PromptRow] = []
    if config.data.validation:
        validation = load_prompts(
            config.data.validation,
            split="validation",
            prompt_key=config.data.prompt_key,
            required_fields=required,
            needed_by=needed_by,
            media=input_media(validation_data(config)),
        )
        refuse_overlap(train, validation)
        validation = validation[: config.data.max_validation_prompts or None]
    return Prepared(
        model.device,
        model.dtype,
        model.load,
        model.attention_requests,
        algorithm,
        composer,
        train,
        validation,
        sampler,
    )


def prepare_model(config: RunConfig, device: Device | None = None) -> PreparedModel:
    """Device, dtype, attention kernels and options of the model; its config files are read, its weights are not.

    Args:
        device: chosen already; None chooses what the configuration names.
    """
    device = device or choose_device(config.device.name)
    dtype = _dtype(config, device)
    path = resolve_model_path(config.model.path)
    requests = registry.load("model", config.model.family).attention_requests(path, dtype, training=True)
    load = ModelLoad(
        path=path,
        torch_device=device.torch_device(),
        dtype=getattr(torch, dtype),
        attention=_select_attention(config, device, requests),
        options=plugin_options("model", config.model.family, config.model.options),
    )
    return PreparedModel(device, dtype, load, requests)


def prepare_algorithm(config: RunConfig) -> AnyAlgorithm:
    """The run's algorithm with its options."""
    name, options = split_name(config.algorithm)
    algorithm: AnyAlgorithm = registry.load("algorithm", name)(plugin_options("algorithm", name, options))
    return algorithm


def split_name(section: dict) -> tuple[str, dict]:
    """{'name': NAME, ...options} -> (NAME, options)."""
    return section["name"], {key: value for key, value in section.items() if key != "name"}


def _dtype(config: RunConfig, device: Device) -> str:
    capabilities = device.capabilities()
    if config.device.dtype == "auto":
        return capabilities.default_dtype
    if config.device.dtype not in capabilities.dtypes:
        raise CapabilityError(
            f"device.dtype={config.device.dtype} has no usable arithmetic on '{device.name}'",
            choices=capabilities.dtypes,
        )
    return config.device.dtype


def _check_artifacts(config: RunConfig, composer: RewardComposer) -> None:
    """What the scorers ask for, as they say themselves once they exist, must be something the model makes."""
    produced = registry.spec("model", config.model.family).capabilities.get("artifacts")
    if produced is None:
        return
    for name, modality in composer.requirements().artifacts.items():
        if produced.get(name) != modality:
            raise CapabilityError(
                f"reward.scorers need the {modality} artifact '{name}', which model family '{config.model.family}' "
                "does not produce",
                remedy="use a scorer for what the model makes, or set the scorer's artifact option",
                choices=[f"{made} ({kind})" for made, kind in sorted(produced.items())],
            )


def _select_attention(
    config: RunConfig, device: Device, requests: list[AttentionRequest]
) -> dict[str, AttentionChoice]:
    components = [request.component for request in requests]
    for named in config.device.attention:
        if named not in components:
            raise CapabilityError(
                f"device.attention names the component '{named}', which the model does not have", choices=components
            )
    return {
        request.component: device.attention.select(request, config.device.attention.get(request.component, "auto"))
        for request in requests
    }


def attention_tokens(adapter: DiffusionAdapter | None, config: RunConfig) -> int:
    """Tokens of a shape of the run, between 16 and 1024; without a diffusion model, those of a response."""
    if adapter is None:
        return max(16, min(1024, config.rollout.max_new_tokens))
    shape = adapter.latent_shape(extent_of(config.rollout))
    return max(16, min(1024, math.prod(shape[-2:]) // 4))


def verify_attention(
    prepared: PreparedModel, adapter: DiffusionAdapter | None, config: RunConfig
) -> list[VerifyResult]:
    """Compare each chosen kernel with fp32 math attention on a shape of the run (two rows, two heads)."""
    return [
        prepared.device.attention.verify(
            prepared.load.attention[request.component], request, [attention_shape(adapter, config, request)]
        )
        for request in prepared.attention_requests
    ]


def attention_shape(
    adapter: DiffusionAdapter | None, config: RunConfig, request: AttentionRequest
) -> tuple[int, int, int, int]:
    """(batch, heads, tokens, head_dim) that a kernel is compared on: the run's tokens, two rows, two heads."""
    return 2, 2, attention_tokens(adapter, config), request.head_dim or 64
