"""A rollout engine that takes samples from the dataset instead of drawing them. Loads without torch."""

from __future__ import annotations

from omni_backends.rollout.native import NativeOptions
from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="dataset",
    summary="takes the samples that the dataset gives (data.targets); draws only for validation, as 'native' does",
    target="omni_backends.rollout.dataset.kinds:dataset_engine",
    options=NativeOptions,
    capabilities={
        "kinds": ("diffusion", "autoregressive"),
        "step_kinds": (),
        "given_samples": True,
        "request_batching": True,
        "prompt_cache": True,
        "lora": True,
        "full_weights": True,
        "sleep_levels": (1, 2),
        "multi_process": False,
    },
)
