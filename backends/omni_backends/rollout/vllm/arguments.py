"""What vLLM is started with: arguments of its engine, and variables of its processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from omni_backends.rollout.vllm import VllmOptions
from omni_backends.rollout.vllm.media import ACCEPTED
from omni_backends.rollout.vllm.plugin import PLUGIN, TRANSFER
from omni_backends.rollout.vllm.serving import Policy
from omni_portable.contracts.errors import CapabilityError
from omni_portable.models.setup import EngineSetup

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM reserves room for."""
MIB = 1 << 20
PACKAGE = "omni_backends.rollout.vllm"


def engine_arguments(setup: EngineSetup, options: VllmOptions, folder: Path, policy: Policy) -> dict[str, Any]:
    """Keyword arguments of vLLM's `AsyncEngineArgs`.

    Args:
        folder: model folder as vLLM reads it.
        policy: what is trained in it.

    Raises:
        CapabilityError: a rank for which vLLM has no room.
    """
    on_host = setup.load.torch_device.type == "cpu"
    arguments: dict[str, Any] = {
        "model": str(folder),
        # vLLM's preparation of media, which is made and never used, asks for a tokenizer
        "skip_tokenizer_init": setup.config.model.family not in ACCEPTED,
        "dtype": str(setup.load.dtype).removeprefix("torch."),
        "mm_device_do_normalize": False,  # pixels come normalized; some towers of vLLM would do it once more
        "enforce_eager": not options.compile,
        "max_num_seqs": setup.config.rollout.max_num_seqs,
        "seed": setup.config.trainer.seed,
        "enable_prefix_caching": options.prefix_caching,
        "logprobs_mode": "processed_logits",
        "logits_processors": [f"{PACKAGE}.sampler:OwnSampler"],
        "generation_config": "vllm",
        "worker_extension_cls": f"{PACKAGE}.worker.WorkerExtension",
        "weight_transfer_config": {"backend": TRANSFER},
        "async_scheduling": False,
        "disable_log_stats": True,
        "enable_log_requests": False,
        "enable_sleep_mode": not on_host,
    }
    if options.tensor_parallel_size > 1:
        arguments |= {"tensor_parallel_size": options.tensor_parallel_size, "distributed_executor_backend": "mp"}
    elif on_host:  # a single worker needs no process beside the engine's
        arguments["distributed_executor_backend"] = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    if options.max_model_len:
        arguments["max_model_len"] = options.max_model_len
    if options.max_batched_tokens:
        arguments["max_num_batched_tokens"] = options.max_batched_tokens
    if options.kv_cache_mib:
        arguments["kv_cache_memory_bytes"] = options.kv_cache_mib * MIB
    if policy.lora is not None:
        arguments |= {
            "enable_lora": True,
            "max_loras": 1,
            "max_cpu_loras": 1,
            "max_lora_rank": _room(policy.lora.rank),
            # only these: what vLLM wraps besides may need kernels that are not there (experts on a CPU)
            "lora_target_modules": policy.inventory.adapted_modules(),
        }
    return arguments


def process_environment(setup: EngineSetup, options: VllmOptions) -> dict[str, str]:
    """Variables of the engine's processes: the device's, where nothing else is set, and vLLM's own."""
    device = {name: value for name, value in setup.device.environment("rollout").items() if name not in os.environ}
    if not options.compile:  # vLLM compiles small functions of its own even where it runs the model eagerly
        device["TORCH_COMPILE_DISABLE"] = "1"
    if setup.load.torch_device.type == "cpu" and options.tensor_parallel_size > 1:
        device["OMP_NUM_THREADS"] = str(max(1, torch.get_num_threads() // options.tensor_parallel_size))
    return device | {
        "VLLM_PLUGINS": PLUGIN,
        "VLLM_LOGGING_LEVEL": options.log_level,
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this program has threads, and processes are known by their variables
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(options.start_timeout_s)),
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore:resource_tracker"),  # of what ends with the process
    }


def _room(rank: int) -> int:
    for size in RANKS:
        if rank <= size:
            return size
    raise CapabilityError(
        f"model.lora.rank={rank}: rollout.engine=vllm serves ranks up to {RANKS[-1]}",
        remedy=f"set model.lora.rank={RANKS[-1]} or less",
    )


def describe(arguments: Mapping[str, Any]) -> str:
    """For the log."""
    return json.dumps({name: str(value) for name, value in arguments.items()}, sort_keys=True)
