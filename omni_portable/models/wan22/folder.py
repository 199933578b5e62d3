"""What a Wan 2.2 folder's config files say, read and cross-checked before any weights load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.contracts.rollout import Extent
from omni_portable.models.diffusers_folder import (
    Fact,
    check_frame_count,
    check_video_size,
    cross_check,
    number_list,
    read_configs,
    read_scheduler,
    refuse_features,
)
from omni_portable.models.folders import component_class, read_json, whole_numbers

TEXT_TO_VIDEO, IMAGE_TO_VIDEO = "WanPipeline", "WanImageToVideoPipeline"
TRANSFORMER = "WanTransformer3DModel"
TRAIN_TIMESTEPS = 1000
"""Timesteps per sigma; the boundary between experts is a share of it."""

_TRANSFORMER_NUMBERS = (
    "in_channels",
    "out_channels",
    "num_attention_heads",
    "attention_head_dim",
    "text_dim",
    "rope_max_seq_len",
)
_VAE_NUMBERS = ("z_dim", "scale_factor_temporal", "scale_factor_spatial")
_TEXT_NUMBERS = ("d_model", "vocab_size")


@dataclass(frozen=True)
class Wan22Folder:
    """Config files of one folder.

    Args:
        path: the folder.
        transformer / vae / text_encoder / scheduler: their config files; two experts have one and the same.
        experts: subfolders of the transformers, the high-noise one first.
        boundary_ratio: share of the timesteps from which on the high-noise expert works; None with one transformer.
        from_image: the transformer reads a condition beside the latents, and every prompt has a first frame.
        per_token_timesteps: the transformer takes a timestep for each token, and a prompt may have a first frame.
    """

    path: Path
    transformer: Mapping[str, Any]
    vae: Mapping[str, Any]
    text_encoder: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    experts: tuple[str, ...]
    boundary_ratio: float | None
    from_image: bool
    per_token_timesteps: bool

    @property
    def frames_per_latent(self) -> int:
        """Video frames of each latent frame but the first, which is one frame."""
        return int(self.vae["scale_factor_temporal"])

    @property
    def patch(self) -> tuple[int, int, int]:
        """Latents per token along time, height and width."""
        time, height, width = self.transformer["patch_size"]
        return time, height, width

    @property
    def condition_channels(self) -> int:
        """Channels that the transformer reads beside the latents."""
        return int(self.transformer["in_channels"]) - int(self.vae["z_dim"])

    def latent_shape(self, extent: Extent) -> tuple[int, int, int, int]:
        """(channels, frames, height, width) of the latents of one video.

        Raises:
            ConfigError: a side that is no multiple of the patch, a number of frames that is not 4 n + 1, no frame rate,
                or more tokens along a side than the model has positions.
        """
        pixels = int(self.vae["scale_factor_spatial"])
        check_video_size(self.path, pixels * self.patch[1], extent)
        step = self.frames_per_latent * self.patch[0]
        check_frame_count(self.path, step, 1, 1, extent.num_frames)
        frames = (extent.num_frames - 1) // self.frames_per_latent + 1
        shape = frames, extent.height // pixels, extent.width // pixels
        longest = int(self.transformer["rope_max_seq_len"])
        for key, latents, patch in zip(("num_frames", "height", "width"), shape, self.patch, strict=True):
            if latents // patch > longest:
                raise ConfigError(
                    f"rollout.{key} is {getattr(extent, key)}: {latents // patch} tokens along one side, {self.path} "
                    f"has positions for {longest}",
                    remedy=f"lower rollout.{key}",
                )
        return int(self.vae["z_dim"]), *shape

    def tokens(self, extent: Extent) -> int:
        """Tokens of the transformer for one video."""
        _, frames, height, width = self.latent_shape(extent)
        return (frames // self.patch[0]) * (height // self.patch[1]) * (width // self.patch[2])

    def attention_requests(self, dtype: str, training: bool) -> list[AttentionRequest]:
        """The transformer's self- and cross-attention, both without a mask.

        UMT5 makes no request: its biased attention has one implementation; nor does the VAE, whose single-head
        attention calls torch's scaled dot product attention itself.
        """
        head_dim = int(self.transformer["attention_head_dim"])
        return [AttentionRequest("transformer", dtype, head_dim, backward=training)]


def read_folder(path: Path) -> Wan22Folder:
    """Read and cross-check the config files of a diffusers Wan folder.

    Raises:
        ModelError: no such folder, neither pipeline, a missing file or key, parts that do not fit together, or a model
            that reads image embeddings (Wan 2.1 image to video).
    """
    named = read_json(path / "model_index.json") if (path / "model_index.json").is_file() else {}
    pipeline = IMAGE_TO_VIDEO if named.get("_class_name") == IMAGE_TO_VIDEO else TEXT_TO_VIDEO
    classes = {"transformer": TRANSFORMER, "vae": "AutoencoderKLWan", "text_encoder": "UMT5EncoderModel"}
    configs = read_configs(path, pipeline, classes)
    index = read_json(path / "model_index.json")
    second = component_class(index, "transformer_2")
    if second is not None:
        configs |= read_configs(path, str(index["_class_name"]), {"transformer_2": TRANSFORMER})
    folder = Wan22Folder(
        path=path,
        transformer=configs["transformer"],
        vae=configs["vae"],
        text_encoder=configs["text_encoder"],
        scheduler=read_scheduler(path),
        experts=("transformer",) if second is None else ("transformer", "transformer_2"),
        boundary_ratio=_boundary(path, index, second is not None),
        from_image=pipeline == IMAGE_TO_VIDEO and not named.get("expand_timesteps"),
        per_token_timesteps=bool(index.get("expand_timesteps")),
    )
    _check_values(folder)
    _cross_check(folder, configs.get("transformer_2", folder.transformer))
    return folder


def _boundary(path: Path, index: Mapping[str, Any], two: bool) -> float | None:
    ratio = index.get("boundary_ratio")
    if not two and ratio is None:
        return None
    if not two or isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < 1:
        raise ModelError(
            f"{path / 'model_index.json'} has {'two transformers' if two else 'one transformer'} and boundary_ratio "
            f"{ratio!r}",
            remedy="two experts need a boundary_ratio between 0 and 1, a single transformer has none (null)",
        )
    return float(ratio)


def _check_values(folder: Wan22Folder) -> None:
    for name, config, keys in (
        ("transformer", folder.transformer, _TRANSFORMER_NUMBERS),
        ("vae", folder.vae, _VAE_NUMBERS),
        ("text_encoder", folder.text_encoder, _TEXT_NUMBERS),
    ):
        whole_numbers(folder.path / name / "config.json", config, keys)
    number_list(folder.path / "transformer" / "config.json", folder.transformer, "patch_size")
    if len(folder.transformer["patch_size"]) != 3:
        raise ModelError(f"{folder.path / 'transformer' / 'config.json'}: 'patch_size' does not have three numbers")
    for key in ("latents_mean", "latents_std"):
        number_list(folder.path / "vae" / "config.json", folder.vae, key, positive=False)
    refuse_features(
        folder.path / "transformer" / "config.json", folder.transformer, ("image_dim", "added_kv_proj_dim"), "wan22"
    )


def _cross_check(folder: Wan22Folder, second: Mapping[str, Any]) -> None:
    transformer, channels = folder.transformer, folder.vae["z_dim"]
    read = channels + folder.frames_per_latent + channels if folder.from_image else channels
    facts: list[Fact] = [
        (transformer["out_channels"], channels, "transformer out_channels", "VAE z_dim"),
        (transformer["in_channels"], read, "transformer in_channels", "what the pipeline gives it to read"),
        (transformer["text_dim"], folder.text_encoder["d_model"], "transformer text_dim", "text encoder d_model"),
        (len(folder.vae["latents_mean"]), channels, "the length of the VAE's latents_mean", "VAE z_dim"),
        (len(folder.vae["latents_std"]), channels, "the length of the VAE's latents_std", "VAE z_dim"),
    ]
    facts += [
        (transformer[key], second.get(key), f"transformer {key}", f"transformer_2 {key}")
        for key in (*_TRANSFORMER_NUMBERS, "patch_size")
    ]
    cross_check(folder.path, facts)


def check_extent(path: Path, extent: Extent) -> None:
    """`ConfigError` for a size, length or frame rate that the folder's model does not draw."""
    read_folder(path).latent_shape(extent)
