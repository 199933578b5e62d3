"""The Megatron train engine: loads without torch and without Megatron; the engine itself is in `engine`."""

from __future__ import annotations

from omni_backends.training.megatron.options import MegatronOptions
from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="megatron",
    summary="trains all weights of a Qwen3 language model in Megatron-Core's layers, split over processes",
    target="omni_backends.training.megatron.engine:MegatronTrainEngine",
    options=MegatronOptions,
    capabilities={
        "teacher_pool": "omni_backends.training.teaching:PoolTeacher",
        "kinds": ("autoregressive",),
        "families": ("qwen3",),
        "lora": False,
        "full": True,
        "rank_processes": True,
        "actor_keys": ("world_size", "tensor_parallel", "rank_timeout_s"),
        "evidence": {"cpu": "tests/backends/training/megatron"},
    },
)
