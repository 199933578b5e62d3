"""The VeOmni train engine: loads without torch and without VeOmni; the engine itself is in `engine`."""

from __future__ import annotations

from omni_backends.training.veomni.options import VeOmniOptions
from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="veomni",
    summary="trains a diffusion transformer or a language model (LoRA or all weights), sharded by VeOmni",
    target="omni_backends.training.veomni.engine:VeOmniTrainEngine",
    options=VeOmniOptions,
    capabilities={
        "teacher_pool": "omni_backends.training.teaching:PoolTeacher",
        "kinds": ("diffusion", "autoregressive"),
        "lora": True,
        "full": True,
        "sharded": True,
        "rank_processes": True,
        "actor_keys": (
            "world_size",
            "sharding",
            "offload",
            "reduce_dtype",
            "gradient_sync",
            "sequence_parallel",
            "rank_timeout_s",
        ),
        "evidence": {"cpu": "tests/backends/training/veomni"},
    },
)
