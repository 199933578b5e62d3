"""From a model's config file and the `actor` section to Megatron's configuration; torch-free.

What Megatron's layers would compute differently, or not at all, is refused here, before anything is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_backends.training.megatron.layout_shape import Shape
from omni_backends.training.megatron.options import MegatronOptions
from omni_portable.contracts.errors import CapabilityError, ConfigError

ARCHITECTURE = "Qwen3ForCausalLM"
PLAIN = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
}
"""Keys of the model's configuration that must have these values (the library's defaults)."""


@dataclass(frozen=True)
class Settings:
    """What the model is built from; Megatron's own words are those of its `TransformerConfig`.

    Args:
        layers / width / feed_forward / head_width: num_layers, hidden_size, ffn_hidden_size, kv_channels.
        epsilon: of the norms (layernorm_epsilon).
        shape: heads, groups and vocabulary, on which the layout of tensors depends.
        tensor_parallel: processes that share every layer (tensor_model_parallel_size).
        tied: the output layer is the embedding.
        max_positions: tokens of a sequence at most.
        rotary_base: of the rotary positions.
    """

    layers: int
    width: int
    feed_forward: int
    head_width: int
    epsilon: float
    shape: Shape
    tensor_parallel: int
    tied: bool
    max_positions: int
    rotary_base: float


def settings(model: Mapping[str, Any], options: MegatronOptions, *, tensor_parallel: int, where: str) -> Settings:
    """The mapping.

    Args:
        model: `config.json` of a transformers folder, defaults filled in.
        tensor_parallel: processes that share every layer.
        where: the folder, for messages.

    Raises:
        CapabilityError: a model, or a setting of it, that Megatron's layers do not compute.
        ConfigError: sizes that do not divide.
    """
    _check_model(model, where)
    _check_parallel(model, tensor_parallel)
    size = tensor_parallel
    heads, groups = int(model["num_attention_heads"]), int(model["num_key_value_heads"])
    vocabulary = int(model["vocab_size"])
    return Settings(
        layers=int(model["num_hidden_layers"]),
        width=int(model["hidden_size"]),
        feed_forward=int(model["intermediate_size"]),
        head_width=int(model.get("head_dim") or model["hidden_size"] // heads),
        epsilon=float(model["rms_norm_eps"]),
        shape=Shape(heads, groups, vocabulary, -(-vocabulary // size) * size, options.layers == "transformer_engine"),
        tensor_parallel=size,
        tied=bool(model.get("tie_word_embeddings")),
        max_positions=int(model["max_position_embeddings"]),
        rotary_base=float(_rotary(model)["rope_theta"]),
    )


def _check_model(model: Mapping[str, Any], where: str) -> None:
    found = (model.get("architectures") or ["nothing"])[0]
    if found != ARCHITECTURE:
        raise CapabilityError(
            f"train engine 'megatron' builds {ARCHITECTURE}, but {where} holds a {found}",
            remedy="set actor.engine to one of the choices",
            choices=("fsdp2", "single"),
        )
    for key, value in PLAIN.items():
        if model.get(key, value) != value:
            raise CapabilityError(
                f"{where}: {key} is {model[key]!r}; train engine 'megatron' computes models with {value!r} only",
                remedy="set actor.engine to one of the choices",
                choices=("fsdp2", "single"),
            )
    kind = _rotary(model).get("rope_type", "default")
    if kind != "default":
        raise CapabilityError(
            f"{where}: rotary positions of type '{kind}'; train engine 'megatron' computes 'default' only",
            remedy="set actor.engine to one of the choices",
            choices=("fsdp2", "single"),
        )


def _rotary(model: Mapping[str, Any]) -> Mapping[str, Any]:
    found = model.get("rope_parameters") or {"rope_theta": model.get("rope_theta", 10000.0)}
    return dict(found)


def _check_parallel(model: Mapping[str, Any], size: int) -> None:
    for key in ("num_key_value_heads", "num_attention_heads", "intermediate_size"):
        if int(model[key]) % size:
            raise ConfigError(
                f"actor.tensor_parallel is {size}, which does not divide the model's {key}={model[key]}",
                remedy="lower actor.tensor_parallel",
            )
