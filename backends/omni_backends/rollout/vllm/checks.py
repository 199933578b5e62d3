"""What vLLM would find out in its own processes, tens of seconds later and often without saying it to us."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_backends.rollout.vllm import VllmOptions
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.contracts.tokens import AutoregressiveAdapter
from omni_portable.models.folders import read_json
from omni_portable.models.setup import EngineSetup

MIB = 1 << 20
CPU_BLOCK, BLOCK = 128, 16
"""Tokens per block of vLLM's KV cache on a CPU, and elsewhere at least."""


def require_head_size(adapter: type[AutoregressiveAdapter], setup: EngineSetup) -> None:
    """vLLM finds out at the first forward that its CPU attention has no kernel for a size of heads; this is earlier.

    Raises:
        CapabilityError: such a size; lists those that exist.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes: list[int] = CPUAttentionBackend.get_supported_head_sizes()
    dtype = str(setup.load.dtype).removeprefix("torch.")
    for request in adapter.attention_requests(setup.load.path, dtype, False):
        if request.component == "language_model" and request.head_dim not in sizes:
            raise CapabilityError(
                f"the model in {setup.load.path} has a head size of {request.head_dim}, for which vLLM has no "
                "attention kernel on a CPU",
                remedy="use rollout.engine=native, or a model of another head size",
                choices=[str(size) for size in sizes],
            )


def require_heads(setup: EngineSetup, options: VllmOptions) -> None:
    """vLLM finds out in its workers that it cannot share heads out among them; this is earlier.

    Raises:
        CapabilityError: names the key and the numbers of heads.
    """
    size = options.tensor_parallel_size
    text = _language_config(setup)
    if size > 1 and text.get("num_experts"):
        raise CapabilityError(
            f"rollout.options.tensor_parallel_size={size}: a mixture of experts is served by one worker, as "
            "updates of experts have not been shown to arrive in several",
            remedy="set rollout.options.tensor_parallel_size=1",
        )
    heads = int(text["num_attention_heads"])
    shared = int(text.get("num_key_value_heads") or heads)
    if heads % size or (shared % size and size % shared):
        raise CapabilityError(
            f"rollout.options.tensor_parallel_size={size} does not share out {heads} attention heads and {shared} key "
            "and value heads",
            remedy="choose a number that does",
            choices=[str(n) for n in range(1, heads + 1) if not heads % n and (not shared % n or not n % shared)],
        )


def require_room(setup: EngineSetup, options: VllmOptions) -> None:
    """One request of greatest length must fit, into the context and into the KV cache of a worker.

    Raises:
        ConfigError: it does not; gives the sizes.
    """
    text, rollout = _language_config(setup), setup.config.rollout
    length = options.max_model_len or int(text["max_position_embeddings"])
    if length <= rollout.max_new_tokens:
        key = f"rollout.options.max_model_len={length}" if options.max_model_len else f"the model's context of {length}"
        raise ConfigError(
            f"{key} leaves no room for a prompt beside rollout.max_new_tokens={rollout.max_new_tokens}",
            remedy="lower rollout.max_new_tokens, or raise rollout.options.max_model_len if the model takes more",
        )
    heads = int(text.get("num_key_value_heads") or text["num_attention_heads"])
    width = int(text.get("head_dim") or int(text["hidden_size"]) // int(text["num_attention_heads"]))
    local = max(1, heads // options.tensor_parallel_size)
    per_token = 2 * int(text["num_hidden_layers"]) * local * width * setup.load.dtype.itemsize
    block = CPU_BLOCK if setup.load.torch_device.type == "cpu" else BLOCK
    needed = -(-per_token * (-(-length // block) * block) // MIB)
    if options.kv_cache_mib and needed > options.kv_cache_mib:
        raise ConfigError(
            f"rollout.options.kv_cache_mib={options.kv_cache_mib}: one request of {length} tokens takes {needed} MiB",
            remedy=f"set rollout.options.kv_cache_mib={needed} or more (for requests side by side), or lower "
            f"rollout.options.max_model_len to the longest prompt and its response",
        )


def _language_config(setup: EngineSetup) -> Mapping[str, Any]:
    config: Mapping[str, Any] = read_json(setup.load.path / "config.json")
    found: Mapping[str, Any] = config.get("text_config") or config
    return found
