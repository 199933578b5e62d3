"""The attention table of NVIDIA GPUs. Limits are those that the kernels' sources state."""

from __future__ import annotations

from omni_devices.common.gpu_families import DEFAULTS, FLEX, MATH, OWN_LIBRARY, SDPA, THREE_DTYPES, TRANSFORMER_ONLY
from omni_devices.common.kernel_table import NO_ROLLOUT_KERNEL, KernelRow, KernelTable, Names
from omni_devices.cuda import packages
from omni_devices.cuda.flash_rows import FLASH_ROWS
from omni_devices.cuda.generations import NAME
from omni_devices.cuda.torch_rows import TORCH_ROWS

_XFORMERS = KernelRow(
    family="xformers",
    summary="xFormers' memory-efficient attention",
    names={"transformer": Names("xformers", "diffusers", NO_ROLLOUT_KERNEL, OWN_LIBRARY)},
    generations=("sm80", "sm89", "sm90"),  # what its wheel is compiled for
    needs=(packages.XFORMERS,),
    dtypes=THREE_DTYPES,
    masks=("none",),  # diffusers adds a boolean (batch, heads, queries, keys) mask to the scores as zeros and ones
    deterministic=False,
    withheld=TRANSFORMER_ONLY,
)
_SAGE = KernelRow(
    family="sage",
    summary="SageAttention, which quantises queries and keys to 8 bits",
    names={"transformer": Names("sage", "diffusers", "SAGE_ATTN", "one package on both sides")},
    generations=("sm80", "sm89", "sm90", "sm120"),
    needs=(packages.SAGE,),
    rollout_needs=(packages.SAGE,),
    head_dim_max=128,
    backward=False,
    deterministic=False,
    withheld=TRANSFORMER_ONLY,
)

TABLE = KernelTable(
    device=NAME,
    rows=(SDPA, MATH, *TORCH_ROWS, *FLASH_ROWS, _XFORMERS, _SAGE, FLEX),
    defaults=DEFAULTS,
    elsewhere={
        "aiter": "AITER is AMD's kernel library",
        "flash_attention_2_triton": "FlashAttention's Triton build is for AMD GPUs",
        "fusion_attention": "fusion attention is an operator of Ascend NPUs",
    },
)
