"""What the config files of a Qwen-Image or Qwen-Image-Edit folder say, read and cross-checked before weights load."""

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
    refuse_features,
    require_image,
)
from omni_portable.models.folders import whole_numbers

PIPELINE = "QwenImagePipeline"
CLASSES = {
    "transformer": "QwenImageTransformer2DModel",
    "vae": "AutoencoderKLQwenImage",
    "text_encoder": "Qwen2_5_VLForConditionalGeneration",
}
TRANSFORMER_NUMBERS = ("in_channels", "out_channels", "patch_size", "attention_head_dim", "joint_attention_dim")
TEXT_NUMBERS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
OTHER_FAMILIES = ("guidance_embeds", "use_additional_t_cond", "use_layer3d_rope")
"""Switches of the transformer for checkpoints that are not run here (distilled, layered)."""
POSITIONS = 4096
"""Rotary positions of the transformer along each side."""


@dataclass(frozen=True)
class QwenImageFolder:
    """Config files of one folder."""

    path: Path
    transformer: Mapping[str, Any]
    vae: Mapping[str, Any]
    text_encoder: Mapping[str, Any]
    scheduler: Mapping[str, Any]

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of the text encoder's config; older folders have it at the top level."""
        nested = self.text_encoder.get("text_config")
        return nested if isinstance(nested, dict) else self.text_encoder

    @property
    def vae_scale(self) -> int:
        """Pixels per latent along each side."""
        return int(2 ** len(self.vae["temperal_downsample"]))

    @property
    def unit(self) -> int:
        """Pixels per transformer token along each side."""
        return self.vae_scale * SIDE

    def latent_shape(self, height: int, width: int) -> tuple[int, int, int]:
        """(channels, height, width) of the unpacked latents of an image of height x width pixels.

        Raises:
            ConfigError: a side that is not a multiple of a token, or longer than the transformer has positions.
        """
        check_image_size(self.path, self.unit, self.unit * POSITIONS, height, width)
        return int(self.vae["z_dim"]), height // self.vae_scale, width // self.vae_scale

    def tokens(self, height: int, width: int) -> int:
        """Image tokens of the transformer for an image of height x width pixels."""
        _, rows, columns = self.latent_shape(height, width)
        return (rows // SIDE) * (columns // SIDE)

    def attention_requests(self, dtype: str, training: bool) -> list[AttentionRequest]:
        """The transformer attends everywhere but to the padding of prompts; the language model is causal with fewer
        key than query heads; the VAE has one head of full width."""
        head_dim = int(self.text["hidden_size"]) // int(self.text["num_attention_heads"])
        grouped = self.text["num_attention_heads"] != self.text["num_key_value_heads"]
        vae_width = int(self.vae["base_dim"]) * int(self.vae["dim_mult"][-1])
        return [
            AttentionRequest(
                "transformer", dtype, int(self.transformer["attention_head_dim"]), mask="padding", backward=training
            ),
            AttentionRequest("text_encoder", dtype, head_dim, causal=True, grouped_query=grouped),
            AttentionRequest("vae", dtype, vae_width),
        ]


def read_folder(path: Path, pipeline: str = PIPELINE) -> QwenImageFolder:
    """Read and cross-check the config files of a folder.

    Raises:
        ModelError: no such folder, another pipeline, a missing file or key, or parts that do not fit together.
    """
    configs = read_configs(path, pipeline, CLASSES)
    folder = QwenImageFolder(path, **configs, scheduler=read_scheduler(path))
    _check_values(folder)
    transformer, channels = folder.transformer, folder.vae["z_dim"]
    packed = int(channels) * SIDE * SIDE
    cross_check(
        path,
        [
            (transformer["in_channels"], packed, "transformer in_channels", f"VAE z_dim x {SIDE * SIDE}"),
            (transformer["out_channels"], channels, "transformer out_channels", "VAE z_dim"),
            (transformer["patch_size"], SIDE, "transformer patch_size", "the side of a packed token"),
            (transformer["joint_attention_dim"], folder.text["hidden_size"], "joint_attention_dim", "text hidden_size"),
            (len(folder.vae["latents_mean"]), channels, "the number of VAE latents_mean", "VAE z_dim"),
            (len(folder.vae["latents_std"]), channels, "the number of VAE latents_std", "VAE z_dim"),
        ],
    )
    return folder


def _check_values(folder: QwenImageFolder) -> None:
    path = folder.path
    whole_numbers(path / "transformer" / "config.json", folder.transformer, TRANSFORMER_NUMBERS)
    refuse_features(path / "transformer" / "config.json", folder.transformer, OTHER_FAMILIES, "qwen_image")
    whole_numbers(path / "vae" / "config.json", folder.vae, ("z_dim", "base_dim"))
    number_list(path / "vae" / "config.json", folder.vae, "dim_mult")
    for key in ("latents_mean", "latents_std"):
        number_list(path / "vae" / "config.json", folder.vae, key, positive=False)
    stages = folder.vae.get("temperal_downsample")
    cross_check(
        path / "vae" / "config.json",
        [
            (
                len(stages) if isinstance(stages, list) else stages,
                len(folder.vae["dim_mult"]) - 1,
                "the number of temperal_downsample",
                "that of dim_mult less one",
            )
        ],
    )
    whole_numbers(path / "text_encoder" / "config.json", folder.text, TEXT_NUMBERS)


def check_extent(path: Path, extent: Extent) -> None:
    """`ConfigError` for a size that the folder's model does not draw."""
    require_image("qwen_image", extent)
    read_folder(path).latent_shape(extent.height, extent.width)
