"""What vLLM-Omni finds of us by entry point. Called in each of its processes; nothing happens at import."""

from __future__ import annotations

ARCHITECTURE = "OmniPortablePolicy"
"""Under which our pipeline is known to vLLM-Omni (`model_class_name`)."""
PIPELINE = ("omni_backends.rollout.vllm_omni.pipeline", "PolicyPipeline")
PLATFORM = "omni_backends.rollout.vllm_omni.platform.CpuOmniPlatform"
NAME = "omni_portable"
"""Of both entry points, as `VLLM_PLUGINS` lists them."""


def platform() -> str | None:
    """The class of a platform for vLLM-Omni where vLLM itself runs on the CPU; None on every other machine.

    Group `vllm_omni.platform_plugins`. vLLM-Omni 0.30 has no platform for the CPU and prefers a plugin's platform to
    its own, so this one stays out of the way wherever vLLM or torch has found an accelerator.
    """
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or torch.accelerator.is_available():
        return None
    return PLATFORM


def register() -> None:
    """Make our pipeline known under :data:`ARCHITECTURE`; group `vllm_omni.general_plugins`, may be called again."""
    from vllm_omni.diffusion.registry import register_diffusion_model

    register_diffusion_model(ARCHITECTURE, *PIPELINE)
