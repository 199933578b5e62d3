"""Tensors of Stable Diffusion 3 as its config files imply them: shapes of the transformer's, counts of the others'.

Read from the module definitions of diffusers 0.40 (`SD3Transformer2DModel`, `AutoencoderKL`) and transformers 5.14
(`CLIPTextModelWithProjection`, `T5EncoderModel`); tests compare them with the modules themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from omni_portable.contracts.errors import ModelError
from omni_portable.models.folders import Shapes

BUFFERS = ("pos_embed.pos_embed",)
"""Tensors of the transformer's weight file that are no parameters."""

TIME_CHANNELS = 256
FEED_FORWARD = 4
"""Width of the feed-forward layers in widths of the transformer."""

Shape = tuple[int, ...]


def transformer_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    """Name and shape of every tensor in the weights of an `SD3Transformer2DModel` with this config.

    Raises:
        ModelError: a normalisation of queries and keys that is not known here.
    """
    head_dim, heads = int(config["attention_head_dim"]), int(config["num_attention_heads"])
    width, patch, blocks = heads * head_dim, int(config["patch_size"]), int(config["num_layers"])
    channels, dual = int(config["in_channels"]), config.get("dual_attention_layers") or ()
    if config.get("qk_norm") not in (None, "rms_norm"):
        raise ModelError(f"the transformer's config has qk_norm {config['qk_norm']!r}", choices=("null", "rms_norm"))
    norm_dim = head_dim if config.get("qk_norm") else 0
    shapes: dict[str, Shape] = {
        "pos_embed.pos_embed": (1, int(config["pos_embed_max_size"]) ** 2, width),
        "pos_embed.proj.weight": (width, channels, patch, patch),
        "pos_embed.proj.bias": (width,),
    }
    shapes |= _linear("time_text_embed.timestep_embedder.linear_1", TIME_CHANNELS, width)
    shapes |= _linear("time_text_embed.timestep_embedder.linear_2", width, width)
    shapes |= _linear("time_text_embed.text_embedder.linear_1", int(config["pooled_projection_dim"]), width)
    shapes |= _linear("time_text_embed.text_embedder.linear_2", width, width)
    shapes |= _linear("context_embedder", int(config["joint_attention_dim"]), int(config["caption_projection_dim"]))
    for index in range(blocks):
        shapes |= _block(f"transformer_blocks.{index}", width, norm_dim, index in dual, index == blocks - 1)
    shapes |= _linear("norm_out.linear", width, 2 * width)
    return shapes | _linear("proj_out", width, patch * patch * int(config.get("out_channels") or channels))


def _block(name: str, width: int, norm_dim: int, dual: bool, last: bool) -> dict[str, Shape]:
    """One joint block; the last one drops the text stream after attention."""
    shapes = _linear(f"{name}.norm1.linear", width, (9 if dual else 6) * width)
    shapes |= _linear(f"{name}.norm1_context.linear", width, (2 if last else 6) * width)
    joint = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj"]
    for projection in joint if last else [*joint, "to_add_out"]:
        shapes |= _linear(f"{name}.attn.{projection}", width, width)
    norms = [f"attn.{norm}" for norm in ("norm_q", "norm_k", "norm_added_q", "norm_added_k")]
    if dual:
        for projection in ("to_q", "to_k", "to_v", "to_out.0"):
            shapes |= _linear(f"{name}.attn2.{projection}", width, width)
        norms += ["attn2.norm_q", "attn2.norm_k"]
    if norm_dim:
        shapes |= {f"{name}.{norm}.weight": (norm_dim,) for norm in norms}
    for stream in ("ff",) if last else ("ff", "ff_context"):
        shapes |= _linear(f"{name}.{stream}.net.0.proj", width, FEED_FORWARD * width)
        shapes |= _linear(f"{name}.{stream}.net.2", FEED_FORWARD * width, width)
    return shapes


def _linear(name: str, inputs: int, outputs: int) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def elements(shapes: Shapes) -> int:
    """Of all tensors."""
    return sum(map(prod, shapes.values()))


def parameters(shapes: Shapes) -> int:
    """Elements of the transformer's parameters."""
    return sum(prod(shape) for name, shape in shapes.items() if name not in BUFFERS)


def clip_elements(config: Mapping[str, Any]) -> int:
    """Elements of a `CLIPTextModelWithProjection`."""
    width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    embeddings = (int(config["vocab_size"]) + int(config["max_position_embeddings"])) * width
    attention = 4 * (width * width + width)
    feed_forward = width * inner + inner + inner * width + width
    layer = attention + feed_forward + 2 * 2 * width
    return embeddings + int(config["num_hidden_layers"]) * layer + 2 * width + width * int(config["projection_dim"])


def t5_elements(config: Mapping[str, Any]) -> int:
    """Elements of a `T5EncoderModel`, the embedding that two names share counted once."""
    width, inner = int(config["d_model"]), int(config["num_heads"]) * int(config["d_kv"])
    gated = str(config.get("feed_forward_proj", "relu")).startswith("gated-")
    layer = 4 * width * inner + (3 if gated else 2) * width * int(config["d_ff"]) + 2 * width
    position_bias = int(config.get("relative_attention_num_buckets", 32)) * int(config["num_heads"])
    return int(config["vocab_size"]) * width + int(config["num_layers"]) * layer + position_bias + width


def t5_wide_elements(config: Mapping[str, Any]) -> int:
    """What transformers keeps in fp32 of a `T5EncoderModel` in float16: the last weights of its feed-forward layers."""
    return int(config["num_layers"]) * int(config["d_ff"]) * int(config["d_model"])


def vae_elements(config: Mapping[str, Any]) -> int:
    """Elements of an `AutoencoderKL` of plain down and up blocks, encoder and decoder."""
    channels, layers = [int(c) for c in config["block_out_channels"]], int(config.get("layers_per_block", 1))
    latent, media = int(config["latent_channels"]), int(config.get("in_channels", 3))
    total = sum(_vae_half(channels, layers)) + sum(_vae_half(channels[::-1], layers + 1))
    last = channels[-1]
    attention = 2 * last + 4 * (last * last + last) if config.get("mid_block_add_attention", True) else 0
    total += 2 * (2 * _resnet(last, last) + attention)  # both middle blocks
    total += _conv(media, channels[0], 3) + 2 * last + _conv(last, 2 * latent, 3)  # ends of the encoder
    total += _conv(latent, last, 3) + 2 * channels[0] + _conv(channels[0], int(config.get("out_channels", 3)), 3)
    total += _conv(2 * latent, 2 * latent, 1) if config.get("use_quant_conv", True) else 0
    return total + (_conv(latent, latent, 1) if config.get("use_post_quant_conv", True) else 0)


def _vae_half(channels: list[int], layers: int) -> Iterator[int]:
    """Elements of the down or up blocks: residual layers, and a convolution that resamples in all but the last."""
    previous = channels[0]
    for index, width in enumerate(channels):
        for layer in range(layers):
            yield _resnet(previous if layer == 0 else width, width)
        if index < len(channels) - 1:
            yield _conv(width, width, 3)
        previous = width


def _resnet(inputs: int, outputs: int) -> int:
    shortcut = _conv(inputs, outputs, 1) if inputs != outputs else 0
    return 2 * inputs + _conv(inputs, outputs, 3) + 2 * outputs + _conv(outputs, outputs, 3) + shortcut


def _conv(inputs: int, outputs: int, kernel: int) -> int:
    return kernel * kernel * inputs * outputs + outputs
