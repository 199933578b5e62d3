"""What vLLM-Omni is started with: its own arguments, what our pipeline reads of them, and variables of its process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from omni_backends.rollout.vllm_omni import VllmOmniOptions
from omni_backends.rollout.vllm_omni.bridges import family_bridge
from omni_backends.rollout.vllm_omni.model import encode_load
from omni_backends.rollout.vllm_omni.plugin import ARCHITECTURE, NAME
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.models.setup import EngineSetup
from omni_portable.models.weights import dtype_name

EXTENSION = "omni_backends.rollout.vllm_omni.extension.PolicyWorkerExtension"
ENGINE = "omni_backends.rollout.vllm_omni.scheduling.PackEngine"
WAVE_WAIT_MS = 5000.0
"""Longest time that the engine waits for the rest of a pack that was sent at once; it goes on when all are there."""


def check_options(setup: EngineSetup, options: VllmOmniOptions) -> None:
    """Refuse, before anything starts, what this device or family cannot do.

    Raises:
        CapabilityError: names the key.
    """
    config = setup.config
    family_bridge(config.model.family)
    if config.rollout.sleep_level > 1:
        raise CapabilityError(
            f"rollout.sleep_level={config.rollout.sleep_level}: vLLM-Omni 0.30 cannot wake after level 2",
            remedy="set rollout.sleep_level=1",
            choices=("0", "1"),
        )
    for key, reason in (
        ("cfg_parallel_size", "both halves of guidance run in one forward here"),
        ("vae_parallel_size", "the adapter's own autoencoder decodes here, on one device"),
    ):
        if getattr(options, key) > 1:
            raise CapabilityError(
                f"rollout.options.{key}={getattr(options, key)}: {reason}", remedy=f"set rollout.options.{key}=1"
            )
    if setup.load.torch_device.type == "cpu" and options.sequence_parallel_size > 1:
        raise CapabilityError(
            f"rollout.options.sequence_parallel_size={options.sequence_parallel_size}: a CPU has one worker",
            remedy="set rollout.options.sequence_parallel_size=1",
        )


def engine_arguments(setup: EngineSetup, options: VllmOmniOptions) -> dict[str, Any]:
    """Keyword arguments of `AsyncOmni`."""
    config, load = setup.config, setup.load
    on_host = load.torch_device.type == "cpu"
    return {
        "model": str(load.path),
        "model_class_name": ARCHITECTURE,
        "dtype": dtype_name(load.dtype),
        "enforce_eager": True,
        "max_num_seqs": config.rollout.max_num_seqs,
        "step_execution": options.step_execution,
        "request_batch_max_wait_ms": 0.0 if options.step_execution else WAVE_WAIT_MS,
        "engine_backend": ENGINE,
        "distributed_executor_backend": "uni" if options.devices == 1 else "mp",
        "worker_extension_cls": EXTENSION,
        "enable_sleep_mode": bool(config.rollout.sleep_level) and not on_host,
        "num_gpus": options.devices,
        "ulysses_degree": options.sequence_parallel_size,
        "vae_use_tiling": options.vae_tiling,
        "custom_pipeline_args": pipeline_arguments(setup, options),
        "stage_init_timeout": int(options.start_timeout_s),
        "init_timeout": int(options.start_timeout_s),
        "log_stats": False,
        **_attention(setup),
    }


def pipeline_arguments(setup: EngineSetup, options: VllmOmniOptions) -> dict[str, Any]:
    """What `PolicyPipeline` and the worker extension read: plain values."""
    config = setup.config
    return {
        "family": config.model.family,
        "load": encode_load(setup.load),
        "prompt_cache_size": config.rollout.prompt_cache_size,
        "decode_batch_size": options.decode_batch_size,
        "lora": _lora(config, options),
    }


def process_environment(environment: Mapping[str, str], port: int) -> dict[str, str]:
    """All variables of the engine's processes: those given, and defaults beside them.

    Args:
        port: at which its workers meet. A MASTER_PORT that was given is that of the processes which this one belongs
            to.

    Raises:
        ConfigError: `VLLM_PLUGINS` leaves out what this engine needs.
    """
    allowed = environment.get("VLLM_PLUGINS")
    if allowed is not None and NAME not in [name.strip() for name in allowed.split(",")]:
        raise ConfigError(
            f"the environment variable VLLM_PLUGINS={allowed!r} keeps vLLM-Omni from loading '{NAME}'",
            remedy=f"unset VLLM_PLUGINS, or add '{NAME}' to it",
        )
    wanted = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONWARNINGS": "ignore:resource_tracker",  # it complains about what ends with the process anyway
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    return {**wanted, **environment, "MASTER_PORT": str(port)}


def _lora(config: RunConfig, options: VllmOmniOptions) -> dict[str, Any] | None:
    lora = config.model.lora
    if not lora.rank:
        return None
    return {"rank": lora.rank, "alpha": float(lora.alpha or 2.0 * lora.rank), "mode": options.lora}


def _attention(setup: EngineSetup) -> dict[str, Any]:
    """The transformer's kernel in the engine's spelling."""
    choice = setup.load.attention.get("transformer")
    if choice is None or not choice.rollout:
        return {}
    return {"diffusion_attention_config": {"default": {"backend": choice.rollout}}}
