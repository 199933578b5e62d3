"""The single-process train engine: loads without torch; the engine itself is in `engine`."""

from __future__ import annotations

from omni_portable.contracts.registry import PluginSpec

SPEC = PluginSpec(
    name="single",
    summary="trains a diffusion transformer or a language model (LoRA or all weights) in one process on one device",
    target="omni_backends.training.single.engine:SingleTrainEngine",
    capabilities={
        "teacher_pool": "omni_backends.training.teaching:PoolTeacher",
        "kinds": ("diffusion", "autoregressive"),
        "lora": True,
        "full": True,
        "ranks": 1,
        "actor_keys": (),
        "fake_score": True,
    },
)
