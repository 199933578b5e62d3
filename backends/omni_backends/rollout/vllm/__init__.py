"""The rollout engine on vLLM: responses of autoregressive models, drawn in processes of their own. Loads without torch
and without vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec

SUPPORTED = ">=0.30,<0.31"
"""Versions of vLLM."""
MOE_UPDATES = ("in_place", "rebuild", "refuse")


@dataclass(frozen=True)
class VllmOptions:
    max_model_len: int = 0
    """Tokens of a prompt and its response together; 0 takes what the model's folder says."""
    kv_cache_mib: int = 256
    """Memory of the KV cache in MiB; 0 lets vLLM take a share of the device's memory."""
    tensor_parallel_size: int = 1
    """Workers that hold a part of every layer each, one per device; it must divide the attention heads, and divide the
    key and value heads or be a multiple of them. On a CPU the threads are shared out among them."""
    max_batched_tokens: int = 0
    """Tokens computed in one forward at most; 0 is vLLM's own choice."""
    prefix_caching: bool = True
    """Keep the KV cache of prompts that several requests share; it is cleared at every weight update."""
    compile: bool = False
    """Let vLLM compile the model (slow to start, quicker per token)."""
    moe_update: str = "in_place"
    """How full weights of a mixture of experts are updated on a CPU, where vLLM's own reload mixes them up: 'in_place'
    packs the experts again after the reload and reads them back, 'rebuild' starts the engine anew from an exported
    folder, 'refuse' raises."""
    merge_lora: bool = False
    """Multiply a LoRA into the base weights and update these, where vLLM cannot apply one (beside experts on a CPU)."""
    bucket_mib: int = 16
    """Size of the pieces in which weights travel, through shared memory: with room for two whole updates it holds the
    last one, too; otherwise two pieces, and every worker puts them together in memory of its own."""
    keep_weights: bool = True
    """Keep the last weights on the host, to restart an engine whose process ended; without it such an end
    stops the run."""
    start_timeout_s: float = 600.0
    """Seconds the engine may take to start."""
    call_timeout_s: float = 300.0
    """Seconds one call to the engine may take (a generation has no limit)."""
    log_level: str = "ERROR"
    """What vLLM's own log shows."""

    def __post_init__(self) -> None:
        """Refuse values that cannot be."""
        if self.moe_update not in MOE_UPDATES:
            raise ConfigError(
                f"rollout.options.moe_update='{self.moe_update}'", remedy="choose one of these", choices=MOE_UPDATES
            )
        for name, least in (
            ("max_model_len", 0),
            ("kv_cache_mib", 0),
            ("tensor_parallel_size", 1),
            ("max_batched_tokens", 0),
            ("bucket_mib", 1),
            ("start_timeout_s", 1),
            ("call_timeout_s", 1),
        ):
            if not least <= getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"rollout.options.{name}={getattr(self, name)}", remedy=f"set it to a number of {least} or more"
                )


SPEC = PluginSpec(
    name="vllm",
    summary="draws responses with vLLM in processes of its own, by the same sampler as 'native' (docs/engines.md)",
    target="omni_backends.rollout.vllm.engine:VllmEngine",
    options=VllmOptions,
    capabilities={
        "requires": {"vllm": SUPPORTED},
        "kinds": ("autoregressive",),
        "request_batching": True,
        "prompt_cache": True,
        "lora": True,
        "full_weights": True,
        "sleep_levels": (1, 2),
        "sleeps_on_host": False,
        "multi_process": True,
        "devices_option": "tensor_parallel_size",
    },
)
