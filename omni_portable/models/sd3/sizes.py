"""Memory of Stable Diffusion 3's passes, from its config files (see `models.outline.ModelSizes`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_portable.contracts.errors import ConfigError
from omni_portable.models.folders import Shapes
from omni_portable.models.outline import DTYPE_BYTES, TrainingBytes, Workload
from omni_portable.models.sd3.activations import (
    BACKWARD_UNITS,
    FLOAT,
    FORWARD_UNITS,
    STORED,
    Network,
    block_bytes,
    ends_bytes,
    lora_forward_bytes,
)
from omni_portable.models.sd3.folder import CLIPS, T5, SD3Folder

CLIP_UNITS = 14
"""Values per token and channel of one CLIP layer at work, beside hidden states of all layers, which are returned."""

VAE_ATTENTION_UNITS = 9
"""Values per latent pixel and channel that live at once in the attention of the decoder's middle block."""

_FORMULAS = (
    "activations in training: what each block keeps for its backward pass, counted layer by layer from the config, and "
    f"{BACKWARD_UNITS} x tokens x width of gradients; with gradient checkpointing the blocks' inputs and one block",
    f"activations in rollout: {FORWARD_UNITS} x tokens x width of the transformer, or the VAE's last stage for one "
    "image (3 x second + 2 x first of its block_out_channels per pixel), or the encoders for a prompt",
)


@dataclass(frozen=True)
class SD3Sizes:
    """Estimates for one folder.

    Args:
        folder: its config files.
        shapes: of the transformer's tensors.
        t5_tokens: `max_sequence_length` of the family's options.
    """

    folder: SD3Folder
    shapes: Shapes
    t5_tokens: int

    def latent_elements(self, height: int, width: int) -> int:
        channels, rows, columns = self.folder.latent_shape(height, width)
        return channels * rows * columns

    def tokens(self, height: int, width: int) -> int:
        return self.folder.tokens(height, width)

    @property
    def text_tokens(self) -> int:
        """CLIP's positions (a tokenizer cannot make more), then T5's tokens or as many zeros."""
        clips = [self.folder.encoders[name] for name in CLIPS if name in self.folder.encoders]
        return (int(clips[0]["max_position_embeddings"]) if clips else 0) + self.t5_tokens

    def conditioning_elements(self) -> int:
        transformer = self.folder.transformer
        return self.text_tokens * int(transformer["joint_attention_dim"]) + int(transformer["pooled_projection_dim"])

    def lora_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """rank x (inputs + outputs) of every linear layer whose name is, or ends in, a target."""
        total: dict[str, int] = {}
        for target in targets:
            layers = [name for name in self.shapes if f".{name}".endswith(f".{target}.weight")]
            if not layers:
                raise ConfigError(f"model.lora.targets: '{target}' matches no module of the transformer")
            for name in layers:
                if len(self.shapes[name]) != 2:
                    raise ConfigError(f"model.lora.targets: '{target}' matches '{name}', which is no linear layer")
                total[name] = rank * sum(self.shapes[name])
        return sum(total.values())

    def training_bytes(self, work: Workload) -> TrainingBytes:
        network, image, text = self._network(), self.tokens(work.height, work.width), self.text_tokens
        unit = (image + text) * network.width * DTYPE_BYTES[work.dtype]
        blocks = [block_bytes(network, index, image, text, work) for index in range(network.blocks)]
        saved = ends_bytes(network, image, text, int(self.folder.transformer["joint_attention_dim"]), work)
        working = BACKWARD_UNITS * unit + self._stored(work, image + text)
        if work.checkpointing:
            saved, working = saved + network.blocks * unit, working + max(blocks)
        else:
            saved += sum(blocks)
        return TrainingBytes(work.rows * saved, work.rows * working)

    def inference_bytes(self, work: Workload) -> int:
        network, tokens = self._network(), self.tokens(work.height, work.width) + self.text_tokens
        unit = tokens * network.width * DTYPE_BYTES[work.dtype]
        extra = tokens * lora_forward_bytes(network, work) + self._stored(work, tokens)
        return work.rows * (FORWARD_UNITS * unit + extra)

    def encode_bytes(self, dtype: str) -> int:
        """One prompt at a time, one encoder after the other."""
        encoders = self.folder.encoders
        clips = [_clip_bytes(encoders[name], dtype) for name in CLIPS if name in encoders]
        t5 = [_t5_bytes(encoders[T5], self.t5_tokens, dtype)] if T5 in encoders else []
        return max(clips + t5)

    def decode_bytes(self, height: int, width: int, dtype: str) -> int:
        """One image at a time; the peak is in the decoder's last stage at full size, or in its attention."""
        channels = [int(each) for each in self.folder.vae["block_out_channels"]]
        last_stage = height * width * (3 * channels[min(1, len(channels) - 1)] + 2 * channels[0])
        attention = height * width // self.folder.vae_scale**2 * VAE_ATTENTION_UNITS * channels[-1]
        return max(last_stage, attention) * DTYPE_BYTES[dtype]

    def kv_cache_bytes(self, work: Workload) -> int:
        return 0

    def formulas(self) -> tuple[str, ...]:
        return _FORMULAS

    def _network(self) -> Network:
        config = self.folder.transformer
        heads = int(config["num_attention_heads"])
        dual = frozenset(int(index) for index in config.get("dual_attention_layers") or ())
        width, blocks = heads * int(config["attention_head_dim"]), int(config["num_layers"])
        return Network(width, heads, blocks, dual, bool(config.get("qk_norm")))

    def _stored(self, work: Workload, tokens: int) -> int:
        """Scores and weights of an attention that stores them, at work in one block."""
        if work.attention != STORED:
            return 0
        return 2 * FLOAT * int(self.folder.transformer["num_attention_heads"]) * tokens**2


def _clip_bytes(config: Mapping[str, Any], dtype: str) -> int:
    values = int(config["max_position_embeddings"]) * int(config["hidden_size"])
    return values * (int(config.get("num_hidden_layers", 12)) + CLIP_UNITS) * DTYPE_BYTES[dtype]


def _t5_bytes(config: Mapping[str, Any], tokens: int, dtype: str) -> int:
    """Attention with a position bias stores its matrix: scores and bias in the dtype, the softmax in fp32 and again."""
    size = DTYPE_BYTES[dtype]
    stored = int(config.get("num_heads", 8)) * tokens**2 * (2 * size + 2 * FLOAT)
    return stored + tokens * (4 * int(config["d_model"]) + 3 * int(config.get("d_ff", 0))) * size
