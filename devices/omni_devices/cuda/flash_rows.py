"""FlashAttention 2, 3 and 4 on NVIDIA GPUs as rows.

What vLLM and vLLM-Omni run behind the name FLASH_ATTN depends on the generation and on what is installed, so it is
paired per generation:

- vLLM-Omni: FlashAttention 4 on Blackwell; before it FlashAttention 3 as soon as fa3-fwd is installed, which vLLM-Omni
  itself requires, and FlashAttention 2 only where it is not. FLASH_ATTN_HUB is FlashAttention 2 for certain.
- vLLM: FlashAttention 3 on sm90, 4 on sm100 (2 for a head_dim above 128), 2 elsewhere.

None takes a dense mask. diffusers' dense kernels refuse any mask; its varlen kernels take padding, those from the hub
anywhere, those of local packages only behind the valid keys (they cut keys off by their number, silently), so of the
latter none is offered with a mask. Language models are packed instead of padded. Gradients are summed with atomics:
diffusers does not ask the kernels for their deterministic backward pass, and transformers only under
FLASH_ATTENTION_DETERMINISTIC=1.
"""

from __future__ import annotations

from collections.abc import Mapping

from omni_devices.common.gpu_families import LANGUAGE_MODEL_ONLY, NO_TEXT_ENCODER, NO_VAE, TRANSFORMER_ONLY
from omni_devices.common.kernel_table import KernelRow, Names
from omni_devices.cuda import packages
from omni_portable.contracts.device import Component, MaskKind, PackageNeed

_PADDING: tuple[MaskKind, ...] = ("none", "padding")
_NEITHER: Mapping[Component, str] = {"text_encoder": NO_TEXT_ENCODER, "vae": NO_VAE}
_HUB = (packages.KERNELS,)
_FA2_CERTAIN = "vLLM-Omni's FLASH_ATTN would run FlashAttention 3; its FLASH_ATTN_HUB is FlashAttention 2 for certain"
_FA2 = Names("flash", "diffusers", "FLASH_ATTN_HUB", _FA2_CERTAIN)
_FA2_LM = Names("flash_attention_2", "transformers", "FLASH_ATTN", "vLLM's own build of FlashAttention 2")
_NO_FA2_LM = "vLLM runs another FlashAttention on this generation unless its flash_attn_version is set"
_FA2_BEFORE_BLACKWELL = "vLLM-Omni has no FlashAttention 2 for Blackwell"


def _row(
    family: str,
    names: Mapping[Component, Names],
    withheld: Mapping[Component, str],
    generations: tuple[str, ...],
    needs: tuple[PackageNeed, ...],
    rollout_needs: tuple[PackageNeed, ...] = (),
    *,
    masks: tuple[MaskKind, ...] = ("none",),
    head_dim_max: int = 256,
) -> KernelRow:
    """What all of them share: half precision, head dimensions in eights, no promise of equal bits."""
    version = family.removeprefix("flash_attention_").split("_")[0]
    return KernelRow(
        family=family,
        summary=f"FlashAttention {version}{' from the hub' if '_hub' in family else ''}",
        names=names,
        generations=generations,
        needs=needs,
        rollout_needs=rollout_needs,
        head_dim_max=head_dim_max,
        head_dim_multiple=8,
        masks=masks,
        variable_length="language_model" in names,
        deterministic=False,
        withheld=withheld,
    )


_FA2_ROWS = (
    _row(
        "flash_attention_2",
        {"transformer": _FA2, "language_model": _FA2_LM},
        _NEITHER,
        ("sm80", "sm89"),
        (packages.FLASH_ATTN,),
        _HUB,
    ),
    _row(
        "flash_attention_2",
        {"transformer": _FA2},
        {**_NEITHER, "language_model": _NO_FA2_LM},
        ("sm90",),
        (packages.FLASH_ATTN,),
        _HUB,
    ),
    _row(
        "flash_attention_2",
        {"language_model": _FA2_LM},
        {**_NEITHER, "transformer": _FA2_BEFORE_BLACKWELL},
        ("sm120",),
        (packages.FLASH_ATTN,),
    ),
    _row(
        "flash_attention_2_hub",
        {"transformer": Names("flash_hub", "diffusers", "FLASH_ATTN_HUB", "one build on both sides")},
        TRANSFORMER_ONLY,
        ("sm80", "sm89", "sm90"),
        _HUB,
        _HUB,
    ),
    _row(
        "flash_attention_2_hub_varlen",
        {"transformer": Names("flash_varlen_hub", "diffusers", "FLASH_ATTN_HUB", "one build on both sides")},
        TRANSFORMER_ONLY,
        ("sm80", "sm89", "sm90"),
        _HUB,
        _HUB,
        masks=_PADDING,
    ),
)
_FA3_ROWS = (
    _row(
        "flash_attention_3",
        {
            # The dense '_flash_3' of diffusers 0.40 is an operator without a backward pass; this one has it.
            "transformer": Names("_flash_varlen_3", "diffusers", "FLASH_ATTN", "vLLM-Omni's comes with fa3-fwd"),
            "language_model": Names("flash_attention_3", "transformers", "FLASH_ATTN", "vLLM's own build of it"),
        },
        _NEITHER,
        ("sm90",),
        (packages.FLASH_ATTN_3,),
        (packages.FA3_FWD,),
    ),
    _row(
        "flash_attention_3_hub",
        {"transformer": Names("_flash_3_hub", "diffusers", "FLASH_ATTN_3_HUB", "one build on both sides")},
        TRANSFORMER_ONLY,
        ("sm90",),
        _HUB,
        _HUB,
    ),
    _row(
        "flash_attention_3_hub_varlen",
        {"transformer": Names("_flash_3_varlen_hub", "diffusers", "FLASH_ATTN_3_HUB", "one build on both sides")},
        TRANSFORMER_ONLY,
        ("sm90",),
        _HUB,
        _HUB,
        masks=_PADDING,
    ),
)
_FA4_ROWS = (
    _row(
        "flash_attention_4",
        {"language_model": Names("flash_attention_4", "transformers", "FLASH_ATTN", "vLLM's own build of it")},
        LANGUAGE_MODEL_ONLY,
        ("sm100",),
        (packages.FLASH_ATTN_4,),
        head_dim_max=128,
    ),
    _row(
        "flash_attention_4_hub",
        {"transformer": Names("flash_4_hub", "diffusers", "FLASH_ATTN", "vLLM-Omni's comes with flash-attn-4")},
        TRANSFORMER_ONLY,
        ("sm100",),
        _HUB,
        (packages.FLASH_ATTN_4,),
        head_dim_max=128,
    ),
)
FLASH_ROWS = (*_FA2_ROWS, *_FA3_ROWS, *_FA4_ROWS)
