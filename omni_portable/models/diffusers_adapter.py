"""What the adapters of diffusers families have in common: which parts are loaded, and everything that is the same
whatever the transformer computes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning, Extent, RolloutRequest
from omni_portable.models.fused_layout import FusedLayout
from omni_portable.models.lora import trainable_named_tensors

COMPONENTS = ("transformer", "text_encoder", "vae")

OptionsT = TypeVar("OptionsT")


class DiffusersAdapter(ABC):
    """One loaded model of a diffusers family (see :class:`omni_portable.contracts.model.DiffusionAdapter`).

    Encoders and VAE are frozen; the transformer is left trainable, in evaluation mode.

    Raises:
        ConfigError: a component that no diffusers family has.
        ModelError: a folder that is missing, incomplete, corrupt, of another family, or does not fit together.
        AttentionUnavailable: a kernel that a part cannot use.
    """

    family: ClassVar[str]
    layout: ClassVar[FusedLayout]

    def __init__(self, load: ModelLoad) -> None:
        unknown = sorted(set(load.components) - set(COMPONENTS))
        if unknown:
            raise ConfigError(f"family '{self.family}' has no component '{unknown[0]}'", choices=COMPONENTS)
        self.path, self.torch_device, self.dtype = load.path, load.torch_device, load.dtype
        self.attention_in_use: dict[str, str] = {}
        """Part of the model -> attention kernel it computes with, in its library's spelling."""
        self._transformer = self._load_transformer(load) if "transformer" in load.components else None
        self._text: Any = self._load_text(load) if "text_encoder" in load.components else None
        self._vae: Any = self._load_vae(load) if "vae" in load.components else None

    @staticmethod
    @abstractmethod
    def read_folder(path: Path) -> Any:
        """The checked config files of a folder, which know `attention_requests(dtype, training)`."""

    @classmethod
    def attention_requests(cls, path: Path, dtype: str, training: bool) -> list[AttentionRequest]:
        """Needs of each part by its config files; a component comes twice where its models differ in head_dim."""
        found: list[AttentionRequest] = cls.read_folder(path).attention_requests(dtype, training)
        return found

    @abstractmethod
    def latent_shape(self, extent: Extent) -> tuple[int, ...]: ...

    @abstractmethod
    def _load_transformer(self, load: ModelLoad) -> torch.nn.Module: ...

    @abstractmethod
    def _load_text(self, load: ModelLoad) -> Any: ...

    @abstractmethod
    def _load_vae(self, load: ModelLoad) -> Any: ...

    @property
    def transformer(self) -> torch.nn.Module:
        """The policy; `ModelError` where it was not loaded."""
        found: torch.nn.Module = self._loaded("transformer", self._transformer)
        return found

    def collate(self, conditionings: Sequence[Conditioning]) -> Conditioning:
        """Stack; all conditionings of one folder have the same shapes, unless the family says otherwise."""
        return stack_conditionings(conditionings)

    def latent_streams(self, extent: Extent) -> Mapping[str, tuple[int, int]]:
        """One stream."""
        return {"latents": (0, math.prod(self.latent_shape(extent)))}

    def initial_latents(self, requests: Sequence[RolloutRequest], noise: torch.Tensor) -> torch.Tensor:
        """Unit noise as it is, whatever the first sigma."""
        if len(requests) != noise.shape[0]:
            raise ModelError(f"{len(requests)} requests, but noise for {noise.shape[0]}")
        return noise.to(device=self.torch_device, dtype=torch.float32)

    def rollout_layout(self, name: str, tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
        """Name in vLLM-Omni's transformer; a shard of a fused tensor is called 'FUSED:q', ':k' or ':v'."""
        return self.layout.tensors(name, tensor)

    def trainable_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Canonical name and parameter of everything in the transformer that requires a gradient."""
        return trainable_named_tensors(self.transformer)

    def _refuse_media(self, media: Sequence[Mapping[str, MediaArtifact]] | None) -> None:
        if media is not None and any(media):
            raise ConfigError(f"model family '{self.family}' takes no input media", remedy="use prompts without media")

    def _loaded(self, component: str, part: Any) -> Any:
        if part is None:
            raise ModelError(
                f"the {component} of {self.path} was not loaded",
                remedy=f"add '{component}' to the components asked for",
            )
        return part


def family_options(load: ModelLoad, kind: type[OptionsT], family: str) -> OptionsT:
    """The load's options, or the defaults of `kind`; `ConfigError` for those of another family."""
    options = load.options if load.options is not None else kind()
    if not isinstance(options, kind):
        raise ConfigError(f"model.options of family '{family}' must be {kind.__name__}, got {type(options).__name__}")
    return options


def stack_conditionings(conditionings: Sequence[Conditioning]) -> Conditioning:
    """Named tensors (...) of B prompts -> (B, ...); `ModelError` where names or shapes differ."""
    first = {name: tensor.shape for name, tensor in conditionings[0].items()}
    for other in conditionings[1:]:
        if {name: tensor.shape for name, tensor in other.items()} != first:
            raise ModelError("conditionings of different shapes cannot be stacked; encode them with one model")
    return {name: torch.stack([conditioning[name] for conditioning in conditionings]) for name in first}
