"""The tokens of a sample split over ranks by VeOmni's own code for a family (Ulysses), on this module alone.

VeOmni replaces the forward of a diffusers class for the whole process; here the same function is bound to the one
module that is trained, so that a teacher of the same class is left as it is.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any

import torch

from omni_portable.contracts.errors import CapabilityError
from omni_portable.models.wan22.experts import Experts

FLASH = "veomni_flash_attention_2_with_sp"
"""VeOmni's attention that gathers a sequence; the only one that its Wan transformer splits sequences with."""


def enable_sequence_parallel(family: str, module: torch.nn.Module, degree: int, device: torch.device) -> None:
    """Make a module split its tokens over the ranks of VeOmni's sequence group.

    Raises:
        CapabilityError: VeOmni has no such code for the family's class, or it does not run here.
    """
    if family not in FAMILIES:
        raise CapabilityError(
            f"actor.sequence_parallel={degree}: VeOmni splits sequences of model.family={family} in a class of its own "
            "only, which train engine 'veomni' does not train",
            remedy="set actor.sequence_parallel=1; samples are then divided instead",
            choices=sorted(FAMILIES),
        )
    for model in _models(module):
        heads = int(model.config.num_attention_heads)
        if heads % degree:
            raise CapabilityError(
                f"actor.sequence_parallel={degree} does not divide the {heads} heads of {type(model).__name__}",
                choices=[str(size) for size in range(1, heads + 1) if heads % size == 0],
            )
        FAMILIES[family](model, device)


def _models(module: torch.nn.Module) -> Iterator[Any]:
    yield from (module.transformer, module.transformer_2) if isinstance(module, Experts) else (module,)


def _qwen_image(model: Any, device: torch.device) -> None:
    from veomni.models.diffusers.qwen_image.qwen_image_transformer.modeling_qwen_image_transformer import (
        QwenImageSPAttnProcessor,
        QwenImageTransformer2DModel_forward,
    )

    for block in model.transformer_blocks:
        processor = QwenImageSPAttnProcessor()
        processor._attention_backend = block.attn.processor._attention_backend  # the kernel that was chosen
        block.attn.set_processor(processor)
    model.forward = MethodType(QwenImageTransformer2DModel_forward, model)


def _wan(model: Any, device: torch.device) -> None:
    from veomni.models.diffusers.wan_t2v.wan_transformer.modeling_wan_transformer import (
        WanSPAttnProcessor,
        WanTransformer3DModel_forward,
    )

    if device.type == "cpu" or importlib.util.find_spec("flash_attn") is None or model.dtype != torch.bfloat16:
        raise CapabilityError(
            f"actor.sequence_parallel: VeOmni splits sequences of {type(model).__name__} inside FlashAttention, which "
            f"needs an accelerator, the package flash-attn and bfloat16; here are {device.type} and {model.dtype}",
            remedy="set actor.sequence_parallel=1, or use actor.engine=fsdp2",
        )
    for block in model.blocks:
        block.attn1.set_processor(WanSPAttnProcessor(attn_implementation=FLASH))
        block.attn2.set_processor(WanSPAttnProcessor(attn_implementation=FLASH))

    @functools.wraps(WanTransformer3DModel_forward)
    def forward(self: Any, *arguments: Any, **named: Any) -> tuple[torch.Tensor]:
        return (WanTransformer3DModel_forward(self, *arguments, **named),)

    model.forward = MethodType(forward, model)


FAMILIES: Mapping[str, Callable[[Any, torch.device], None]] = {
    "qwen_image": _qwen_image,
    "qwen_image_edit": _qwen_image,
    "wan22": _wan,
}
