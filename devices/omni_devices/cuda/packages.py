"""The pinned stack of NVIDIA GPUs, and what single kernels need besides, as data."""

from __future__ import annotations

from omni_devices.common.gpu_packages import hub_kernels, pip, shared
from omni_portable.contracts.device import PackageNeed

CONSTRAINTS = "dockerfiles/constraints/cuda.txt"
IMAGE = "dockerfiles/Dockerfile.cuda"


TORCH_INDEX = "https://download.pytorch.org/whl/cu130"

TORCH = PackageNeed("torch", "==2.13.0", "everything", pip(CONSTRAINTS, "torch==2.13.0", "--index-url", TORCH_INDEX))
VLLM = PackageNeed(
    "vllm",
    "==0.30.0",
    "rollout of language models, and engines that sleep",
    pip(CONSTRAINTS, "vllm==0.30.0"),
    optional=True,
)
KERNELS = hub_kernels(CONSTRAINTS)
FLASH_ATTN = PackageNeed(
    "flash-attn",
    ">=2.8.3,<2.9",
    "attention 'flash_attention_2'",
    "pip install --no-build-isolation flash-attn==2.8.3.post2",
    optional=True,
)
FLASH_ATTN_3 = PackageNeed(
    "flash-attn-3",
    ">=3.0.0b1,<4",
    "attention 'flash_attention_3'",
    "pip install --no-build-isolation "
    "'git+https://github.com/Dao-AILab/flash-attention.git@v2.8.3#subdirectory=hopper'",
    optional=True,
)
FA3_FWD = PackageNeed(
    "fa3-fwd", "==0.0.3", "vLLM-Omni's FlashAttention 3", pip(CONSTRAINTS, "fa3-fwd==0.0.3"), optional=True
)
FLASH_ATTN_4 = PackageNeed(
    "flash-attn-4",
    "==4.0.0b18",
    "FlashAttention 4, of the actor's language models and of vLLM-Omni",
    pip(CONSTRAINTS, "flash-attn-4[cu13]==4.0.0b18"),
    optional=True,
)
XFORMERS = PackageNeed(
    "xformers", "==0.0.35", "attention 'xformers'", pip(CONSTRAINTS, "xformers==0.0.35", "--no-deps"), optional=True
)
SAGE = PackageNeed(
    "sageattention",
    ">=2.1.1,<3",
    "attention 'sage'; the package index has older ones only",
    "pip install --no-build-isolation 'git+https://github.com/thu-ml/SageAttention.git@v2.2.0'",
    optional=True,
)

PACKAGES = (TORCH, *shared(CONSTRAINTS), VLLM, KERNELS, FLASH_ATTN, FLASH_ATTN_3, FA3_FWD, FLASH_ATTN_4, XFORMERS, SAGE)
