"""The native rollout engine: denoises or decodes in this process with the family's own adapter. Loads without torch."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec


@dataclass(frozen=True)
class NativeOptions:
    decode_batch_size: int = 0
    """Samples decoded to media at once, which bounds the memory of the VAE; 0 decodes a whole pack."""

    def __post_init__(self) -> None:
        if self.decode_batch_size < 0:
            raise ConfigError(
                f"decode_batch_size is {self.decode_batch_size}", remedy="set it to 0 (a whole pack) or more"
            )


SPEC = PluginSpec(
    name="native",
    summary="denoises or decodes in process with the model's own adapter; on-policy ratios are exactly 1",
    target="omni_backends.rollout.native.kinds:native_engine",
    options=NativeOptions,
    capabilities={
        "kinds": ("diffusion", "autoregressive"),
        "step_kinds": ("sde", "cps", "dance_sde"),
        "request_batching": True,
        "prompt_cache": True,
        "lora": True,
        "full_weights": True,
        "sleep_levels": (1, 2),
        "multi_process": False,
        "actor_kernels": True,
    },
)
