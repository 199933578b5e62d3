"""Attention kernel families of the CPU as data: both spellings per component, and why others cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from omni_portable.contracts.device import Component

COMPONENTS: tuple[Component, ...] = get_args(Component)
DEFAULT = "sdpa"
"""Family of every component when nothing is asked for."""
DTYPES = ("float32", "float64", "bfloat16")
EAGER_DTYPES = ("float32", "bfloat16")
"""Eager attention of transformers takes its softmax in fp32 whatever the inputs: fp64 would be so in name only."""
NO_ROLLOUT_KERNEL = "NO_MATH_KERNEL"
"""Stands for the rollout spelling where vLLM and vLLM-Omni have no such kernel. It is in neither registry, so an
engine that looks it up fails; an engine that runs the actor's library uses the actor's spelling instead."""


@dataclass(frozen=True)
class Names:
    """One family's spellings for one component, the dtypes it is exact in, and a note for people."""

    actor: str
    actor_library: Literal["diffusers", "transformers"]
    rollout: str
    note: str = ""
    dtypes: tuple[str, ...] = DTYPES


_NO_MATH = "vLLM and vLLM-Omni have no math kernel, so only an engine that runs the actor's library can serve it"
_CPU_ATTN = "vLLM's CPU build runs its own CPU_ATTN whatever is asked for; each run measures the gap to sdpa"

FAMILIES: Mapping[str, Mapping[Component, Names]] = {
    "sdpa": {
        "transformer": Names("native", "diffusers", "TORCH_SDPA"),
        "vae": Names("native", "diffusers", "TORCH_SDPA"),
        "text_encoder": Names("sdpa", "transformers", "TORCH_SDPA"),
        "language_model": Names("sdpa", "transformers", "CPU_ATTN", _CPU_ATTN),
    },
    "math": {
        "transformer": Names("_native_math", "diffusers", NO_ROLLOUT_KERNEL, _NO_MATH),
        "text_encoder": Names("eager", "transformers", NO_ROLLOUT_KERNEL, _NO_MATH, EAGER_DTYPES),
        "language_model": Names("eager", "transformers", NO_ROLLOUT_KERNEL, _NO_MATH, EAGER_DTYPES),
    },
}
"""Family -> component -> spellings. sdpa is torch's fused CPU kernel, math the plain three-step one. Autoencoders of
diffusers call sdpa themselves and cannot be switched, so math is not offered for them."""

ELSEWHERE: Mapping[str, str] = {
    "flash_attention_2": "flash-attn has no CPU kernel",
    "flash_attention_3": "FlashAttention 3 is written for Hopper-class accelerators",
    "flash_attention_4": "FlashAttention 4 is written for Hopper- and Blackwell-class accelerators",
    "xformers": "xformers' memory-efficient attention has no CPU kernel",
    "sage": "SageAttention quantises on an accelerator and has no backward pass",
    "cudnn": "cuDNN is a library of one accelerator vendor",
    "flex": "flex attention must be compiled, and this device runs eager kernels only",
    "aiter": "AITER is a library of one accelerator vendor",
    "fusion_attention": "fusion attention is an operator of one accelerator vendor",
}
"""Families that other devices offer -> why this one does not."""


def spelled(name: str) -> str | None:
    """The family of which `name` is a library's spelling ('native' -> 'sdpa'); None where it is none."""
    for family, components in FAMILIES.items():
        if any(name in (names.actor, names.rollout) for names in components.values()):
            return family
    return None


def offered(component: Component) -> list[str]:
    """Families that serve `component`."""
    return [family for family, components in FAMILIES.items() if component in components]
