"""What a Stable Diffusion 3 folder's config files say, read and cross-checked before any weights load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.rollout import Extent
from omni_portable.models.diffusers_folder import (
    Fact,
    check_image_size,
    cross_check,
    number_list,
    read_configs,
    read_scheduler,
    require_image,
)
from omni_portable.models.folders import check_component_class, component_class, read_json, whole_numbers

PIPELINE = "StableDiffusion3Pipeline"
CLIPS = ("text_encoder", "text_encoder_2")
T5 = "text_encoder_3"
ENCODER_CLASSES = {
    "text_encoder": "CLIPTextModelWithProjection",
    "text_encoder_2": "CLIPTextModelWithProjection",
    "text_encoder_3": "T5EncoderModel",
}
_CLIP_NUMBERS = ("hidden_size", "num_attention_heads", "projection_dim", "vocab_size", "max_position_embeddings")
WHOLE_NUMBERS = {
    "transformer": (
        "in_channels",
        "patch_size",
        "pos_embed_max_size",
        "num_layers",
        "num_attention_heads",
        "attention_head_dim",
        "caption_projection_dim",
        "joint_attention_dim",
        "pooled_projection_dim",
    ),
    "vae": ("latent_channels",),
    "text_encoder": _CLIP_NUMBERS,
    "text_encoder_2": _CLIP_NUMBERS,
    "text_encoder_3": ("d_model", "vocab_size"),
}
"""Keys of the config files that are computed with."""


@dataclass(frozen=True)
class SD3Folder:
    """Config files of one folder.

    Args:
        path: the folder.
        transformer / vae / scheduler: their config files.
        encoders: config of each text encoder that is present, by subfolder name.
    """

    path: Path
    transformer: Mapping[str, Any]
    vae: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    encoders: Mapping[str, Mapping[str, Any]]

    @property
    def absent_clip_width(self) -> int:
        """Width of the one CLIP that is absent: what the others leave of pooled_projection_dim (0 where none is)."""
        present = sum(int(self.encoders[name]["projection_dim"]) for name in CLIPS if name in self.encoders)
        return int(self.transformer["pooled_projection_dim"]) - present

    @property
    def vae_scale(self) -> int:
        """Pixels per latent along each side."""
        return int(2 ** (len(self.vae["block_out_channels"]) - 1))

    @property
    def patch_size(self) -> int:
        """Latents per transformer token along each side."""
        return int(self.transformer["patch_size"])

    def latent_shape(self, height: int, width: int) -> tuple[int, int, int]:
        """(channels, height, width) of the latents of an image of height x width pixels.

        Raises:
            ConfigError: a side that is not a multiple of the patch, or larger than the positional embedding.
        """
        unit = self.vae_scale * self.patch_size
        check_image_size(self.path, unit, unit * int(self.transformer["pos_embed_max_size"]), height, width)
        return int(self.transformer["in_channels"]), height // self.vae_scale, width // self.vae_scale

    def tokens(self, height: int, width: int) -> int:
        """Image tokens of the transformer for an image of height x width pixels."""
        _, rows, columns = self.latent_shape(height, width)
        return (rows // self.patch_size) * (columns // self.patch_size)

    def attention_requests(self, dtype: str, training: bool) -> list[AttentionRequest]:
        """One request per kind of attention; a component comes twice where two of its models differ in head_dim.

        T5 makes no request: transformers implements its biased attention in one way only ('eager'), so there is nothing
        to choose. CLIP is causal, the transformer attends everywhere, the VAE's decoder has one head of full width.
        """
        head_dim = int(self.transformer["attention_head_dim"])
        requests = [AttentionRequest("transformer", dtype, head_dim, backward=training)]
        for config in (self.encoders[name] for name in CLIPS if name in self.encoders):
            head_dim = int(config["hidden_size"]) // int(config["num_attention_heads"])
            requests.append(AttentionRequest("text_encoder", dtype, head_dim, causal=True))
        if self.vae.get("mid_block_add_attention", True):
            requests.append(AttentionRequest("vae", dtype, int(self.vae["block_out_channels"][-1])))
        return list(dict.fromkeys(requests))


def read_folder(path: Path) -> SD3Folder:
    """Read and cross-check the config files of a diffusers SD3 folder.

    Raises:
        ModelError: no such folder, not an SD3 pipeline, a missing file or key, parts that do not fit together, or no
            text encoder at all.
    """
    configs = read_configs(path, PIPELINE, {"transformer": "SD3Transformer2DModel", "vae": "AutoencoderKL"})
    index = read_json(path / "model_index.json")
    present = [name for name in ENCODER_CLASSES if component_class(index, name) is not None]
    if not present:
        raise ModelError(f"{path / 'model_index.json'} has no text encoder", choices=tuple(ENCODER_CLASSES))
    for name in present:
        check_component_class(path, index, name, ENCODER_CLASSES[name])
    folder = SD3Folder(
        path=path,
        transformer=configs["transformer"],
        vae=configs["vae"],
        scheduler=read_scheduler(path),
        encoders={name: read_json(path / name / "config.json") for name in present},
    )
    _check_values(folder)
    _cross_check(folder)
    return folder


def _check_values(folder: SD3Folder) -> None:
    for name, config in {"transformer": folder.transformer, "vae": folder.vae, **folder.encoders}.items():
        whole_numbers(folder.path / name / "config.json", config, WHOLE_NUMBERS[name])
    number_list(folder.path / "vae" / "config.json", folder.vae, "block_out_channels")


def _cross_check(folder: SD3Folder) -> None:
    transformer, joint = folder.transformer, int(folder.transformer["joint_attention_dim"])
    clips = [folder.encoders[name] for name in CLIPS if name in folder.encoders]
    width = sum(int(config["hidden_size"]) for config in clips)
    pooled = sum(int(config["projection_dim"]) for config in clips)
    facts: list[Fact] = [
        (transformer["in_channels"], folder.vae["latent_channels"], "transformer in_channels", "VAE latent_channels"),
        (
            transformer["in_channels"],
            transformer.get("out_channels") or transformer["in_channels"],
            "transformer in_channels",
            "transformer out_channels",
        ),
    ]
    if len(clips) == len(CLIPS):
        facts.append(
            (
                transformer["pooled_projection_dim"],
                pooled,
                "transformer pooled_projection_dim",
                "both CLIPs' projection_dim",
            )
        )
    elif clips and folder.absent_clip_width <= 0:
        raise ModelError(
            f"{folder.path} does not fit together: one CLIP is absent, but the other's projection_dim {pooled} leaves "
            f"nothing of the transformer's pooled_projection_dim {transformer['pooled_projection_dim']}"
        )
    if T5 in folder.encoders:
        facts.append((joint, folder.encoders[T5]["d_model"], "transformer joint_attention_dim", "T5 d_model"))
    cross_check(folder.path, facts)
    if width + (folder.absent_clip_width if len(clips) == 1 else 0) > joint:
        raise ModelError(
            f"{folder.path} does not fit together: the CLIPs' hidden_size is {width}, more than the "
            f"transformer's joint_attention_dim {joint}"
        )


def check_extent(path: Path, extent: Extent) -> None:
    """`ConfigError` for a size that the folder's model does not draw."""
    require_image("sd3", extent)
    read_folder(path).latent_shape(extent.height, extent.width)
