"""The vLLM-Omni rollout engine of diffusion models: its transformers and batching, our sampler. Loads without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec

SUPPORTED = ">=0.30,<0.31"
"""Versions of vLLM-Omni and of vLLM."""
LORA_MODES = ("auto", "adapter", "merged")


@dataclass(frozen=True)
class VllmOmniOptions:
    """Keys of `rollout.options` for the engine 'vllm_omni'."""

    step_execution: bool = False
    """Form a new batch at every denoising step, so that requests may join and leave under way; false forms batches of
    whole requests, which the actor can repeat exactly."""
    lora: Literal["auto", "adapter", "merged"] = "auto"
    """How a LoRA is applied: 'adapter' beside the weights, 'merged' into them; 'auto' merges only where a target is a
    layer that the engine cannot give an adapter."""
    decode_batch_size: int = 0
    """Samples decoded to media at once, which bounds the memory of the VAE; 0 decodes a whole batch."""
    sequence_parallel_size: int = 1
    """Devices that share the tokens of a sample."""
    cfg_parallel_size: int = 1
    """Devices that share the two halves of guidance; only 1, as both run in one forward."""
    vae_parallel_size: int = 1
    """Devices that share the decoding of a sample; only 1, as the adapter's autoencoder decodes."""
    vae_tiling: bool = False
    """Decode in tiles, which bounds the memory of the VAE; overlapping tiles are blended, so pixels differ a little."""
    keep_weights: bool = True
    """Keep a copy of the last weights on the host, to restart an engine whose process ended; a LoRA is always kept, and
    without a copy of full weights such an end stops the run."""
    bucket_mib: int = 64
    """Mebibytes: weights travel in pieces of at most this size."""
    start_timeout_s: float = 900.0
    """Seconds until the engine must have loaded the model."""
    call_timeout_s: float = 600.0
    """Seconds a control call (pause, sleep, weight update) may take."""

    def __post_init__(self) -> None:
        if self.lora not in LORA_MODES:
            raise ConfigError(f"rollout.options.lora is '{self.lora}'", choices=LORA_MODES)
        for name in ("sequence_parallel_size", "cfg_parallel_size", "vae_parallel_size", "bucket_mib"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rollout.options.{name} is {getattr(self, name)}", remedy="set it to 1 or more")
        if self.decode_batch_size < 0:
            raise ConfigError(
                f"decode_batch_size is {self.decode_batch_size}", remedy="set it to 0 (a whole batch) or more"
            )
        for name in ("start_timeout_s", "call_timeout_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"rollout.options.{name} is {getattr(self, name)}", remedy="set it to a number above 0"
                )

    @property
    def devices(self) -> int:
        """Worker processes, one per device."""
        return self.sequence_parallel_size


SPEC = PluginSpec(
    name="vllm_omni",
    summary="vLLM-Omni 0.30 in processes of its own: request- or step-level batching of its own transformers",
    target="omni_backends.rollout.vllm_omni.engine:VllmOmniEngine",
    options=VllmOmniOptions,
    capabilities={
        "requires": {"vllm": SUPPORTED},
        "kinds": ("diffusion",),
        "step_kinds": ("sde", "cps", "dance_sde"),
        "request_batching": True,
        "prompt_cache": True,
        "lora": True,
        "full_weights": True,
        "sleep_levels": (1,),
        "multi_process": True,
        "devices_option": "sequence_parallel_size",
        "families": ("sd3", "qwen_image", "qwen_image_edit", "flux", "wan22", "ltx2"),
        "refused_families": {
            "minimax_h3": "vLLM-Omni 0.30 computes most of its layers in bfloat16 whatever the run's dtype, the actor "
            "does not",
        },
    },
)
