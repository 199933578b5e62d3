"""Attention kernels of Ascend as a table. Which operator stands behind each name, and what that operator cannot do.

`torch_npu.npu_fusion_attention` is the operator with a backward pass. diffusers' `_native_npu`, transformers'
`flash_attention_2` and, with MindIE-SD, vLLM-Omni's `FLASH_ATTN` all call it, each with fewer abilities than it has:
`_native_npu` drops `is_causal` and `enable_gqa` without a word and reads every mask as one of bools.

'Deterministic' holds once `determinism.enable()` was called: by itself the operator's backward pass is not.
"""

from __future__ import annotations

from omni_devices.ascend.facts import MINDIE_SD, TORCH, TORCH_NPU
from omni_devices.common.kernel_table import NO_ROLLOUT_KERNEL, KernelRow, KernelTable, Names
from omni_portable.contracts.device import Component, PackageNeed

FUSION = "fusion_attention"

_TORCH = PackageNeed(
    "torch",
    ">=2.10,<2.14",
    "attention kernels",
    f"pip install torch=={TORCH} --index-url https://download.pytorch.org/whl/cpu",
)
_TORCH_NPU = PackageNeed("torch-npu", ">=2.10,<2.14", "attention operators", f"pip install torch-npu=={TORCH_NPU}")
_MINDIE_SD = PackageNeed(
    "mindiesd", ">=3.1,<4", "vLLM-Omni's FLASH_ATTN on Ascend", f"pip install mindiesd=={MINDIE_SD}", optional=True
)

_OWN_BACKEND = (
    "vLLM-Ascend runs its own backend (npu_fused_infer_attention_score) whatever is asked for; runs measure the gap"
)
_BOOL_MASK = "masks must be of bools: an additive one would be read upside down"
_NO_SWITCH = "autoencoders of diffusers call scaled_dot_product_attention themselves and cannot be switched"
_IGNORED_MATH = (
    "torch_npu ignores the choice of math attention, so diffusers' _native_math would run the fused kernel unnoticed"
)
_NO_NAME = "neither diffusers nor transformers has a name for it, so no actor can run it"


def _all_components(why: str) -> dict[Component, str]:
    return {"transformer": why, "vae": why, "text_encoder": why, "language_model": why}


_SDPA = KernelRow(
    family="sdpa",
    names={
        "transformer": Names("native", "diffusers", "TORCH_SDPA"),
        "vae": Names("native", "diffusers", "TORCH_SDPA"),
        "text_encoder": Names("sdpa", "transformers", "TORCH_SDPA"),
        "language_model": Names("sdpa", "transformers", "CUSTOM", _OWN_BACKEND),
    },
    summary="scaled_dot_product_attention of torch, which torch_npu maps to its fused operator where it can",
    needs=(_TORCH, _TORCH_NPU),
    dtypes=("bfloat16", "float16", "float32"),
    masks=("none", "padding", "dense"),
)
_FUSION = KernelRow(
    family=FUSION,
    names={
        "transformer": Names(
            "_native_npu",
            "diffusers",
            "FLASH_ATTN",
            _BOOL_MASK,
            causal=False,
            grouped_query=False,
            variable_length=False,
        ),
        "text_encoder": Names("flash_attention_2", "transformers", "FLASH_ATTN"),
        "language_model": Names("flash_attention_2", "transformers", "CUSTOM", _OWN_BACKEND),
    },
    summary="npu_fusion_attention, the fused operator for training",
    needs=(_TORCH, _TORCH_NPU),
    rollout_needs=(_MINDIE_SD,),
    head_dim_max=768,
    masks=("none", "padding"),
    variable_length=True,
    withheld={"vae": _NO_SWITCH},
)
_MATH = KernelRow(
    family="math",
    names={
        "text_encoder": Names("eager", "transformers", NO_ROLLOUT_KERNEL, "vLLM-Omni has no math kernel"),
        "language_model": Names("eager", "transformers", NO_ROLLOUT_KERNEL, "vLLM has no math kernel"),
    },
    summary="attention in three steps: product, softmax, product",
    needs=(_TORCH, _TORCH_NPU),
    dtypes=("bfloat16", "float16", "float32"),
    masks=("none", "padding", "dense"),
    withheld={"transformer": _IGNORED_MATH, "vae": _NO_SWITCH},
)
_FUSED_INFER = KernelRow(
    family="fused_infer_attention",
    names={},
    summary="npu_fused_infer_attention_score, the fused operator for inference",
    needs=(_TORCH, _TORCH_NPU),
    head_dim_max=512,
    masks=("none", "padding", "dense"),
    variable_length=True,
    backward=False,
    withheld=_all_components(f"{_NO_NAME}; vLLM-Ascend runs it for language models of its own accord"),
)
_FLASH_ATTN_NPU = KernelRow(
    family="flash_attention_npu",
    names={},
    summary="flash-attn-npu, FlashAttention written for the A2 and A3",
    generations=("a2", "a3"),
    needs=(_TORCH, _TORCH_NPU),
    head_dim_max=256,
    variable_length=True,
    withheld=_all_components(f"{_NO_NAME}; vLLM-Ascend takes it in batch-invariant mode only"),
)

TABLE = KernelTable(
    device="ascend",
    rows=(_SDPA, _FUSION, _MATH, _FUSED_INFER, _FLASH_ATTN_NPU),
    defaults={"transformer": "sdpa", "vae": "sdpa", "text_encoder": "sdpa", "language_model": "sdpa"},
    elsewhere={
        "flash_attention_2": f"flash-attn has no Ascend kernel; transformers' flash_attention_2 is '{FUSION}' here",
        "flash_attention_3": "FlashAttention 3 is written for Hopper-class accelerators",
        "flash_attention_4": "FlashAttention 4 is written for Hopper- and Blackwell-class accelerators",
        "xformers": "xformers has no Ascend kernel",
        "sage": "SageAttention has no Ascend kernel and no backward pass",
        "cudnn": "cuDNN is a library of one accelerator vendor",
        "flex": "flex attention must be compiled, and this device runs eager kernels only",
        "aiter": "AITER is a library of one accelerator vendor",
        "prompt_flash_attention": "npu_prompt_flash_attention has no backward pass and raises on the 950",
        "incre_flash_attention": "npu_incre_flash_attention has no backward pass and raises on the 950",
    },
)
"""sdpa is every component's default: it needs nothing beside torch_npu, and both sides of its pair are one operator."""
