"""Attention kernel families of the CPU as data: both spellings per component, and why others cannot be had."""

from __future__ import annotations

from omni_devices.common.kernel_table import COMPONENTS, NO_ROLLOUT_KERNEL, KernelRow, KernelTable, Names
from omni_devices.common.selector import TableAttention
from omni_portable.contracts.device import MaskKind, PackageNeed

DTYPES = ("float32", "float64", "bfloat16")
EAGER_DTYPES = ("float32", "bfloat16")
"""Eager attention of transformers takes its softmax in fp32 whatever the inputs: fp64 would be so in name only."""
MASKS: tuple[MaskKind, ...] = ("none", "padding", "dense")

TORCH = PackageNeed(
    "torch",
    ">=2.10",
    "both CPU kernels are torch's own",
    "pip install --constraint dockerfiles/constraints/cpu.txt torch",
)

_NO_MATH = "vLLM and vLLM-Omni have no math kernel, so only an engine that runs the actor's library can serve it"
_CPU_ATTN = "vLLM's CPU build runs its own CPU_ATTN whatever is asked for; each run measures the gap to sdpa"

TABLE = KernelTable(
    device="cpu",
    rows=(
        KernelRow(
            family="sdpa",
            summary="torch's fused CPU kernel",
            names={
                "transformer": Names("native", "diffusers", "TORCH_SDPA"),
                "vae": Names("native", "diffusers", "TORCH_SDPA"),
                "text_encoder": Names("sdpa", "transformers", "TORCH_SDPA"),
                "language_model": Names("sdpa", "transformers", "CPU_ATTN", _CPU_ATTN),
            },
            needs=(TORCH,),
            dtypes=DTYPES,
            masks=MASKS,
        ),
        KernelRow(
            family="math",
            summary="the plain three-step kernel",
            names={
                "transformer": Names("_native_math", "diffusers", NO_ROLLOUT_KERNEL, _NO_MATH),
                "text_encoder": Names("eager", "transformers", NO_ROLLOUT_KERNEL, _NO_MATH, EAGER_DTYPES),
                "language_model": Names("eager", "transformers", NO_ROLLOUT_KERNEL, _NO_MATH, EAGER_DTYPES),
            },
            needs=(TORCH,),
            dtypes=DTYPES,
            masks=MASKS,
            withheld={"vae": "diffusers' autoencoders call sdpa themselves and cannot be switched"},
        ),
    ),
    defaults=dict.fromkeys(COMPONENTS, "sdpa"),
    elsewhere={
        **dict.fromkeys(("flash_attention_2", "flash_attention_2_triton"), "flash-attn has no CPU kernel"),
        **dict.fromkeys(
            (
                *("flash_attention_2_hub", "flash_attention_2_hub_varlen", "flash_attention_3_hub"),
                *("flash_attention_3_hub_varlen", "flash_attention_4_hub"),
            ),
            "the hub's FlashAttention kernels are built for accelerators",
        ),
        "flash_attention_3": "FlashAttention 3 is written for Hopper-class accelerators",
        "flash_attention_4": "FlashAttention 4 is written for Hopper- and Blackwell-class accelerators",
        **dict.fromkeys(
            ("native_flash", "native_efficient"), "torch's sdpa picks its own CPU kernel, and none can be asked for"
        ),
        "xformers": "xformers' memory-efficient attention has no CPU kernel",
        "sage": "SageAttention quantises on an accelerator and has no backward pass",
        "cudnn": "cuDNN is a library of one accelerator vendor",
        "flex": "flex attention must be compiled, and this device runs eager kernels only",
        "aiter": "AITER is a library of one accelerator vendor",
        **dict.fromkeys(
            ("fusion_attention", "fused_infer_attention", "flash_attention_npu"),
            "fusion attention is an operator of one accelerator vendor",
        ),
    },
)


def selector(*, installed: bool = True) -> TableAttention:
    """The selector of the 'cpu' device; one for planning, which looks at no package, where not `installed`."""
    return TableAttention(TABLE, "", "cpu") if installed else TableAttention(TABLE, "", "cpu", lookup=None)
