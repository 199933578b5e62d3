"""What a FLUX folder's config files say, read and cross-checked before any weights load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.rollout import Extent
from omni_portable.models.diffusers_folder import (
    SIDE,
    check_image_size,
    cross_check,
    number_list,
    read_configs,
    read_scheduler,
    require_image,
)
from omni_portable.models.folders import whole_numbers

PIPELINE = "FluxPipeline"
CLASSES = {
    "transformer": "FluxTransformer2DModel",
    "vae": "AutoencoderKL",
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "T5EncoderModel",
}
NUMBERS = {
    "transformer": ("in_channels", "patch_size", "attention_head_dim", "joint_attention_dim", "pooled_projection_dim"),
    "vae": ("latent_channels",),
    "text_encoder": ("hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings"),
    "text_encoder_2": ("d_model", "vocab_size"),
}
"""Keys of the config files that are computed with."""


@dataclass(frozen=True)
class FluxFolder:
    """Config files of one folder."""

    path: Path
    transformer: Mapping[str, Any]
    vae: Mapping[str, Any]
    text_encoder: Mapping[str, Any]
    text_encoder_2: Mapping[str, Any]
    scheduler: Mapping[str, Any]

    @property
    def vae_scale(self) -> int:
        """Pixels per latent along each side."""
        return int(2 ** (len(self.vae["block_out_channels"]) - 1))

    @property
    def guided(self) -> bool:
        """Whether the transformer takes guidance as an input."""
        return bool(self.transformer.get("guidance_embeds"))

    def latent_shape(self, height: int, width: int) -> tuple[int, int, int]:
        """(channels, height, width) of unpacked latents; `ConfigError` for a side that is no multiple of a token."""
        check_image_size(self.path, self.vae_scale * SIDE, None, height, width)
        return int(self.vae["latent_channels"]), height // self.vae_scale, width // self.vae_scale

    def tokens(self, height: int, width: int) -> int:
        """Image tokens of the transformer for an image of height x width pixels."""
        _, rows, columns = self.latent_shape(height, width)
        return (rows // SIDE) * (columns // SIDE)

    def attention_requests(self, dtype: str, training: bool) -> list[AttentionRequest]:
        """T5 makes no request: transformers has one implementation of its biased attention. CLIP is causal, the
        transformer attends everywhere, the VAE's decoder has one head of full width."""
        clip = int(self.text_encoder["hidden_size"]) // int(self.text_encoder["num_attention_heads"])
        requests = [
            AttentionRequest("transformer", dtype, int(self.transformer["attention_head_dim"]), backward=training),
            AttentionRequest("text_encoder", dtype, clip, causal=True),
        ]
        if self.vae.get("mid_block_add_attention", True):
            requests.append(AttentionRequest("vae", dtype, int(self.vae["block_out_channels"][-1])))
        return requests


def read_folder(path: Path) -> FluxFolder:
    """Read and cross-check the config files of a folder.

    Raises:
        ModelError: no such folder, another pipeline, a missing file or key, or parts that do not fit together.
    """
    configs = read_configs(path, PIPELINE, CLASSES)
    folder = FluxFolder(path, **configs, scheduler=read_scheduler(path))
    for name, keys in NUMBERS.items():
        whole_numbers(path / name / "config.json", configs[name], keys)
    number_list(path / "vae" / "config.json", folder.vae, "block_out_channels")
    number_list(path / "transformer" / "config.json", folder.transformer, "axes_dims_rope")
    transformer, packed = folder.transformer, int(folder.vae["latent_channels"]) * SIDE * SIDE
    rotated = sum(transformer["axes_dims_rope"])
    cross_check(
        path,
        [
            (transformer["in_channels"], packed, "transformer in_channels", f"VAE latent_channels x {SIDE * SIDE}"),
            (transformer.get("out_channels") or packed, packed, "transformer out_channels", "its in_channels"),
            (transformer["patch_size"], 1, "transformer patch_size", "that of packed latents"),
            (transformer["attention_head_dim"], rotated, "transformer attention_head_dim", "the sum of axes_dims_rope"),
            (transformer["joint_attention_dim"], folder.text_encoder_2["d_model"], "joint_attention_dim", "T5 d_model"),
            (
                transformer["pooled_projection_dim"],
                folder.text_encoder["hidden_size"],
                "pooled_projection_dim",
                "CLIP hidden_size",
            ),
        ],
    )
    return folder


def check_extent(path: Path, extent: Extent) -> None:
    """`ConfigError` for a size that the folder's model does not draw."""
    require_image("flux", extent)
    read_folder(path).latent_shape(extent.height, extent.width)
