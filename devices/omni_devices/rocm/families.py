"""The attention table of AMD GPUs.

flash-attn is one package with two sets of kernels: Composable Kernel, and Triton where
FLASH_ATTENTION_TRITON_AMD_ENABLE is TRUE when it is imported. They share every spelling, so
:class:`omni_devices.rocm.attention.RocmAttention` holds the family asked for against that variable. vLLM's FLASH_ATTN
runs this package; vLLM-Omni's runs AITER, and sdpa where AITER is missing, with a warning only.
"""

from __future__ import annotations

from omni_devices.common.gpu_families import (
    DEFAULTS,
    FLEX,
    MATH,
    NO_TEXT_ENCODER,
    NO_VAE,
    SDPA,
    TRANSFORMER_ONLY,
)
from omni_devices.common.kernel_table import NO_ROLLOUT_KERNEL, KernelRow, KernelTable, Names
from omni_devices.rocm import packages
from omni_devices.rocm.generations import NAME

COMPOSABLE = "flash_attention_2"
TRITON = "flash_attention_2_triton"


def _flash_attn(family: str, summary: str) -> KernelRow:
    return KernelRow(
        family=family,
        summary=summary,
        names={
            "transformer": Names(
                "flash",
                "diffusers",
                NO_ROLLOUT_KERNEL,
                "vLLM-Omni runs AITER instead, so only an engine that runs the actor's library can serve it",
            ),
            "language_model": Names("flash_attention_2", "transformers", "FLASH_ATTN", "one package on both sides"),
        },
        needs=(packages.FLASH_ATTN,),
        rollout_needs=(packages.FLASH_ATTN,),
        head_dim_max=256,
        head_dim_multiple=8,
        variable_length=True,
        deterministic=False,
        withheld={"text_encoder": NO_TEXT_ENCODER, "vae": NO_VAE},
    )


_AITER = KernelRow(
    family="aiter",
    summary="AITER's FlashAttention on Composable Kernel, from the hub",
    names={"transformer": Names("aiter_fa2_hub", "diffusers", "FLASH_ATTN", "vLLM-Omni's comes with amd-aiter")},
    generations=("gfx942", "gfx950"),
    needs=(packages.KERNELS,),
    rollout_needs=(packages.AITER,),
    dtypes=("bfloat16",),
    head_dim_max=256,
    head_dim_multiple=8,
    backward=False,  # the hub's build holds forward kernels only, as diffusers notes
    deterministic=False,
    withheld=TRANSFORMER_ONLY,
)

_NVIDIA_ONLY = "it is written for NVIDIA GPUs"

TABLE = KernelTable(
    device=NAME,
    rows=(
        SDPA,
        MATH,
        _AITER,
        _flash_attn(COMPOSABLE, "FlashAttention 2 on Composable Kernel"),
        _flash_attn(TRITON, "FlashAttention 2 on Triton"),
        FLEX,
    ),
    defaults=DEFAULTS,
    elsewhere={
        "cudnn": "cuDNN is NVIDIA's library",
        "native_flash": "behind sdpa, ROCm's torch runs AOTriton, which sdpa picks by itself",
        "native_efficient": "behind sdpa, ROCm's torch runs AOTriton, which sdpa picks by itself",
        "flash_attention_2_hub": "vLLM-Omni replaces hub kernels by AITER on AMD GPUs, with a warning only",
        "flash_attention_2_hub_varlen": "vLLM-Omni replaces hub kernels by AITER on AMD GPUs, with a warning only",
        "flash_attention_3": _NVIDIA_ONLY,
        "flash_attention_3_hub": _NVIDIA_ONLY,
        "flash_attention_3_hub_varlen": _NVIDIA_ONLY,
        "flash_attention_4": _NVIDIA_ONLY,
        "flash_attention_4_hub": _NVIDIA_ONLY,
        "xformers": "the wheels of xFormers hold kernels for NVIDIA GPUs only",
        "sage": "SageAttention's kernels are written for NVIDIA GPUs, and it has no backward pass",
        "fusion_attention": "fusion attention is an operator of Ascend NPUs",
    },
)
