"""What may be known of a model without loading it: parts, sizes, attention, and the memory that its passes take.

Torch-free. A family's spec names its outline as the capability 'outline', 'module:function'; the function is called as
``function(path, options, dtype, training)`` with the model's folder, or with the recipe's `model.path` where that is
not on this machine (a hub's id that was not downloaded, a 'tiny:' name that was not built), the family's options
object, the dtype's name, and whether the transformer is trained. It reads config files and headers of weight files,
never tensors. A family without one can be trained, but not planned; those without formulas share `folder_outline`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from omni_portable.config.loader import find_model_path, plugin_options
from omni_portable.config.plugins import plugin_spec
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.device import AttentionRequest, Component

DTYPE_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element, by dtype name."""


@dataclass(frozen=True)
class Part:
    """One module of a model.

    Args:
        component: what it counts as.
        name: its folder ('text_encoder_2').
        elements: of all its tensors, what it takes in memory.
        parameters: of them those that full training would change.
        source: where the numbers are from.
        wide: of the elements those that the library keeps in fp32 in the dtype asked for.
    """

    component: Component
    name: str
    elements: int
    parameters: int
    source: str
    wide: int = 0

    def bytes(self, dtype: str) -> int:
        """In memory, loaded in `dtype`."""
        return (self.elements - self.wide) * DTYPE_BYTES[dtype] + self.wide * DTYPE_BYTES["float32"]


@dataclass(frozen=True)
class Workload:
    """One forward pass of the transformer.

    Args:
        rows: samples, each twice under guidance.
        height / width: pixels.
        dtype: of the transformer, by name.
        lora_rank: 0 where all weights are trained.
        lora_targets: module name suffixes.
        checkpointing: activations are computed again in the backward pass.
        attention: kernel family of the transformer; '' takes one that stores no attention matrix.
    """

    rows: int
    height: int
    width: int
    dtype: str
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    checkpointing: bool = False
    attention: str = ""


@dataclass(frozen=True)
class TrainingBytes:
    """Activations of one forward and backward pass.

    Args:
        saved: kept by the forward pass until the backward pass has used them.
        working: further bytes at the moment of the peak: a block computed again, gradients of activations.
    """

    saved: int
    working: int


class ModelSizes(Protocol):
    """Memory of a family's passes; each estimate has a documented formula and is compared with torch in tests."""

    def latent_elements(self, height: int, width: int) -> int:
        """Of one sample (`ConfigError` for a size that the model cannot draw)."""
        ...

    def tokens(self, height: int, width: int) -> int:
        """Media tokens of the transformer for one sample."""
        ...

    def conditioning_elements(self) -> int:
        """Of one prompt, in the transformer's dtype."""
        ...

    def lora_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """`ConfigError` for a target that matches no module, or one that is no linear layer."""
        ...

    def training_bytes(self, work: Workload) -> TrainingBytes: ...

    def inference_bytes(self, work: Workload) -> int:
        """Largest sum of tensors that live at once in a forward pass without gradients, weights and inputs aside."""
        ...

    def encode_bytes(self, dtype: str) -> int:
        """As `inference_bytes`, for encoding prompts the way the family's adapter does."""
        ...

    def decode_bytes(self, height: int, width: int, dtype: str) -> int:
        """As `inference_bytes`, for decoding latents to media the way the family's adapter does."""
        ...

    def kv_cache_bytes(self, work: Workload) -> int:
        """Keys and values that are kept from step to step; 0 for models that do not generate token by token."""
        ...

    def formulas(self) -> tuple[str, ...]:
        """What the estimates count, one sentence each."""
        ...


@dataclass(frozen=True)
class ModelOutline:
    """A model as its config files describe it.

    Args:
        family / name: as in the recipe.
        attention: what each component needs of a kernel; None where that is not known.
        parts: every module, empty where sizes are not known.
        trainable: the component that is trained.
        blocks / width / heads / head_dim: of the trained component; 0 where not known.
        lora_targets: default targets.
        sizes: None where not known, and then `unknown` says why.
        notes: what was assumed.
    """

    family: str
    name: str
    attention: tuple[AttentionRequest, ...] | None = None
    parts: tuple[Part, ...] = ()
    trainable: Component = "transformer"
    blocks: int = 0
    width: int = 0
    heads: int = 0
    head_dim: int = 0
    lora_targets: tuple[str, ...] = ()
    sizes: ModelSizes | None = None
    unknown: str = ""
    notes: tuple[str, ...] = field(default=())

    def elements(self, *components: Component) -> int:
        """Elements of all parts of the named components."""
        return sum(part.elements for part in self.parts if part.component in components)

    @property
    def trainable_parameters(self) -> int:
        """What full training changes."""
        return sum(part.parameters for part in self.parts if part.component == self.trainable)


def read_outline(config: RunConfig, dtype: str, training: bool = True) -> ModelOutline:
    """The outline of a recipe's model.

    Raises:
        ModelError: the folder is here, but incomplete, damaged or of another family.
        ConfigError: an unknown 'builtin:' name.
    """
    family = config.model.family
    spec = plugin_spec("model", family, "model.family")
    target = spec.capabilities.get("outline")
    if target is None:
        why = f"model family '{family}' has no outline (capability 'outline' of its spec)"
        return ModelOutline(family, config.model.path, unknown=why)
    module, _, attribute = str(target).partition(":")
    outline = cast(
        Callable[[str, object, str, bool], ModelOutline], getattr(importlib.import_module(module), attribute)
    )
    options = plugin_options("model", family, config.model.options, key="model.options")
    found = find_model_path(config.model.path)
    return outline(config.model.path if found is None else str(found), options, dtype, training)
