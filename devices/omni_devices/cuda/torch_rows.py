"""The kernels behind torch's sdpa on NVIDIA GPUs, each by itself, as rows."""

from __future__ import annotations

from omni_devices.common.gpu_families import NO_TEXT_ENCODER, NO_VAE, OWN_LIBRARY, THREE_DTYPES, TRANSFORMER_ONLY
from omni_devices.common.kernel_table import NO_ROLLOUT_KERNEL, KernelRow, Names
from omni_portable.contracts.device import MaskKind

_MASKS: tuple[MaskKind, ...] = ("none", "padding", "dense")
_CUDNN = Names("_native_cudnn", "diffusers", "CUDNN_ATTN", "torch's call into cuDNN on both sides")
_FLASH = Names("_native_flash", "diffusers", NO_ROLLOUT_KERNEL, OWN_LIBRARY)
_EFFICIENT = Names("_native_efficient", "diffusers", NO_ROLLOUT_KERNEL, OWN_LIBRARY)


def _cudnn(generations: tuple[str, ...], head_dim_max: int) -> KernelRow:
    return KernelRow(
        family="cudnn",
        summary="cuDNN's fused attention",
        names={"transformer": _CUDNN},
        generations=generations,
        head_dim_max=head_dim_max,
        head_dim_multiple=8,
        masks=_MASKS,
        deterministic=False,
        withheld={
            "text_encoder": NO_TEXT_ENCODER,
            "vae": NO_VAE,
            "language_model": "neither transformers nor vLLM has a name for cuDNN's attention",
        },
    )


def _native_flash(generations: tuple[str, ...], head_dim_max: int) -> KernelRow:
    return KernelRow(
        family="native_flash",
        summary="torch's own build of FlashAttention 2",
        names={"transformer": _FLASH},
        generations=generations,
        head_dim_max=head_dim_max,
        withheld=TRANSFORMER_ONLY,
    )


TORCH_ROWS = (
    # torch hands cuDNN head dimensions above 128 on sm90 only.
    _cudnn(("sm90",), 256),
    _cudnn(("sm80", "sm89", "sm100", "sm120"), 128),
    # Blocks of sm89 and sm120 have 100 KB of shared memory: torch refuses backward passes above 192 there.
    _native_flash(("sm80", "sm90", "sm100"), 256),
    _native_flash(("sm89", "sm120"), 192),
    KernelRow(
        family="native_efficient",
        summary="torch's memory-efficient attention",
        names={"transformer": _EFFICIENT},
        dtypes=THREE_DTYPES,
        masks=_MASKS,
        grouped_query=False,
        withheld=TRANSFORMER_ONLY,
    ),
)
"""The last two are deterministic where `torch.use_deterministic_algorithms` is on, which they look at; cuDNN's backward
pass is not, and torch does not offer it then."""
