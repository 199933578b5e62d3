"""The FSDP2 train engine: loads without torch; the engine itself is in `engine`."""

from __future__ import annotations

from omni_portable.config.parallel import ACTOR_KEYS
from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="fsdp2",
    summary="trains a diffusion transformer or a language model (LoRA or all weights), sharded over processes",
    target="omni_backends.training.fsdp2.engine:Fsdp2TrainEngine",
    capabilities={
        "teacher_pool": "omni_backends.training.teaching:PoolTeacher",
        "kinds": ("diffusion", "autoregressive"),
        "lora": True,
        "full": True,
        "sharded": True,
        "fake_score": True,
        "rank_processes": True,
        "actor_keys": ACTOR_KEYS,
    },
)
