"""Megatron's GPT model of one rank, built without weights, and the process groups that it needs."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from omni_backends.training.megatron.attention import CausalAttention
from omni_backends.training.megatron.settings import Settings
from omni_portable.contracts.errors import LifecycleError


def join_groups(tensor_parallel: int) -> None:
    """Make Megatron's groups out of this process's default group: neighbours share layers, the others share samples.

    Raises:
        LifecycleError: this process has groups of another layout already.
    """
    from megatron.core import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tensor_parallel, create_gloo_process_groups=False
        )
    found = parallel_state.get_tensor_model_parallel_world_size()
    if found != tensor_parallel:
        raise LifecycleError(
            f"this process shares layers among {found} ranks already, train engine 'megatron' was asked for "
            f"{tensor_parallel}",
            remedy="use one layout per process",
        )


def tensor_group() -> Any:
    """Ranks that share every layer with this one."""
    from megatron.core import parallel_state

    return parallel_state.get_tensor_model_parallel_group()


def data_group() -> Any:
    """Ranks that hold the same shares of the layers as this one, and other samples."""
    from megatron.core import parallel_state

    return parallel_state.get_data_parallel_group()


def build_gpt(settings: Settings, dtype: torch.dtype) -> Any:
    """`GPTModel` on the CPU, its parameters unset; rotary positions are the caller's."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=settings.layers,
        hidden_size=settings.width,
        ffn_hidden_size=settings.feed_forward,
        num_attention_heads=settings.shape.heads,
        num_query_groups=settings.shape.groups,
        kv_channels=settings.head_width,
        normalization="RMSNorm",
        layernorm_epsilon=settings.epsilon,
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
        tensor_model_parallel_size=settings.tensor_parallel,
        use_cpu_initialization=True,
        perform_initialization=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about packages that are not installed, and not asked for
        if settings.shape.fused_norms:
            spec = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=True)
        else:
            spec = _attending(get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"))
        return GPTModel(
            config,
            spec,
            vocab_size=settings.shape.padded,
            max_sequence_length=settings.max_positions,
            position_embedding_type="none",
            parallel_output=True,
            share_embeddings_and_output_weights=settings.tied,
        )


def _attending(spec: Any) -> Any:
    """A layer's specification with attention that runs on every device."""
    spec.submodules.self_attention.submodules.core_attention = CausalAttention
    return spec
