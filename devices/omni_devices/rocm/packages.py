"""The pinned stack of AMD GPUs, and what single kernels need besides, as data.

torch, vLLM, flash-attn and AITER are the builds of vLLM's container image for ROCm, whose wheels have an index of their
own; the package index has none of them for ROCm.
"""

from __future__ import annotations

from omni_devices.common.gpu_packages import hub_kernels, pip, shared
from omni_portable.contracts.device import PackageNeed

CONSTRAINTS = "dockerfiles/constraints/rocm.txt"
IMAGE = "dockerfiles/Dockerfile.rocm"
WHEELS = "https://wheels.vllm.ai/rocm/0.30.0/rocm723"


def _image(distribution: str, release: str, purpose: str, *, optional: bool = True) -> PackageNeed:
    """A build of the image: its release, whatever local label it carries."""
    install = pip(CONSTRAINTS, f"{distribution}=={release}", "--extra-index-url", WHEELS)
    return PackageNeed(distribution, f"=={release}", purpose, install, optional)


TORCH = _image("torch", "2.12.0", "everything", optional=False)
VLLM = _image("vllm", "0.30.0", "rollout of language models, and engines that sleep")
KERNELS = hub_kernels(CONSTRAINTS)
FLASH_ATTN = _image("flash-attn", "2.8.3", "attention 'flash_attention_2' and 'flash_attention_2_triton'")
AITER = _image("amd-aiter", "0.1.21.post2", "vLLM-Omni's FlashAttention on AMD GPUs")

PACKAGES = (TORCH, *shared(CONSTRAINTS), VLLM, KERNELS, FLASH_ATTN, AITER)
