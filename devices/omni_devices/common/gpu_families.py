"""Attention kernels that torch brings to every GPU, as rows; the same names on both vendors' builds.

Spellings are those of diffusers 0.40 and transformers 5.13-5.14 for the actor, of vLLM-Omni 0.30 (transformer,
text_encoder, vae) and vLLM 0.30 (language_model) for the rollout.
"""

from __future__ import annotations

from collections.abc import Mapping

from omni_devices.common.kernel_table import NO_ROLLOUT_KERNEL, KernelRow, Names
from omni_portable.contracts.device import Component

ALL_DTYPES = ("bfloat16", "float16", "float32", "float64")
THREE_DTYPES = ("bfloat16", "float16", "float32")
"""Also those of eager attention, which takes its softmax in fp32: fp64 would be so in name only."""

OWN_LIBRARY = "vLLM and vLLM-Omni have no such kernel, so only an engine that runs the actor's library can serve it"
NO_TEXT_ENCODER = "text encoders are small, masked and not trained: they run sdpa on both sides"
NO_VAE = "autoencoders of diffusers call sdpa themselves and cannot be switched"
NO_LANGUAGE_MODEL = "vLLM runs language models with kernels of its own, and this one is none of them"
NO_TRANSFORMER = "diffusers or vLLM-Omni has no such kernel for diffusion transformers"
TRANSFORMER_ONLY: Mapping[Component, str] = {
    "text_encoder": NO_TEXT_ENCODER,
    "vae": NO_VAE,
    "language_model": NO_LANGUAGE_MODEL,
}
LANGUAGE_MODEL_ONLY: Mapping[Component, str] = {
    "transformer": NO_TRANSFORMER,
    "text_encoder": NO_TEXT_ENCODER,
    "vae": NO_VAE,
}
_PICKED = "torch picks one of its kernels by dtype, shape and mask, so both sides run the same one for the same shapes"

SDPA = KernelRow(
    family="sdpa",
    summary="torch's scaled_dot_product_attention",
    names={
        "transformer": Names("native", "diffusers", "TORCH_SDPA", _PICKED),
        "vae": Names("native", "diffusers", "TORCH_SDPA", "autoencoders call it themselves"),
        "text_encoder": Names("sdpa", "transformers", "TORCH_SDPA", _PICKED),
        "language_model": Names("sdpa", "transformers", NO_ROLLOUT_KERNEL, OWN_LIBRARY),
    },
    dtypes=ALL_DTYPES,
    masks=("none", "padding", "dense"),
)
"""Deterministic because `determinism.enable()` makes torch refuse or replace the kernels that are not."""

MATH = KernelRow(
    family="math",
    summary="attention in three plain steps",
    names={
        "transformer": Names("_native_math", "diffusers", NO_ROLLOUT_KERNEL, OWN_LIBRARY),
        "text_encoder": Names("eager", "transformers", NO_ROLLOUT_KERNEL, OWN_LIBRARY, THREE_DTYPES),
        "language_model": Names("eager", "transformers", NO_ROLLOUT_KERNEL, OWN_LIBRARY, THREE_DTYPES),
    },
    dtypes=ALL_DTYPES,
    masks=("none", "padding", "dense"),
    withheld={"vae": NO_VAE},
)

FLEX = KernelRow(
    family="flex",
    summary="torch's flex attention, compiled by Triton",
    names={
        "language_model": Names(
            "flex_attention",
            "transformers",
            "FLEX_ATTENTION",
            "the one kernel that transformers and vLLM both take from torch itself",
        )
    },
    dtypes=THREE_DTYPES,
    masks=("none", "padding", "dense"),
    variable_length=True,
    deterministic=False,
    withheld={
        "transformer": "diffusers' flex backend drops the causal flag and misreads masks, and vLLM-Omni has none",
        "text_encoder": NO_TEXT_ENCODER,
        "vae": NO_VAE,
    },
)

DEFAULTS: Mapping[Component, str] = {
    "transformer": "sdpa",
    "text_encoder": "sdpa",
    "vae": "sdpa",
    "language_model": "flex",
}
"""What 'auto' means on every generation, with nothing beyond the pinned stack. For language models sdpa has no
counterpart in vLLM, and each FlashAttention needs a package that is outside of the stack; flex is one kernel on both
sides, and slower than those."""
