"""What the config files of a Qwen-Image-Edit folder say beside those of Qwen-Image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.rollout import Extent
from omni_portable.models.autoregressive.vision_settings import VisionSettings, read_settings
from omni_portable.models.diffusers_folder import cross_check, require_image
from omni_portable.models.folders import read_json, whole_numbers
from omni_portable.models.qwen_image.folder import QwenImageFolder
from omni_portable.models.qwen_image.folder import read_folder as read_qwen_image

FIRST, PLUS = "QwenImageEditPipeline", "QwenImageEditPlusPipeline"
PREPROCESSOR = "preprocessor_config.json"


@dataclass(frozen=True)
class EditFolder(QwenImageFolder):
    """Config files of one folder.

    Args:
        plus: whether it is a release that takes several images.
        vision: how the text encoder's vision tower reads an image.
    """

    plus: bool
    vision: VisionSettings

    def attention_requests(self, dtype: str, training: bool) -> list[AttentionRequest]:
        """As Qwen-Image, and the vision tower of the text encoder."""
        tower = self.text_encoder["vision_config"]
        head_dim = int(tower["hidden_size"]) // int(tower["num_heads"])
        return [*super().attention_requests(dtype, training), AttentionRequest("text_encoder", dtype, head_dim)]


def read_folder(path: Path) -> EditFolder:
    """Read and cross-check the config files of a folder.

    Raises:
        ModelError: no such folder, another pipeline, a missing file or key, or parts that do not fit together.
    """
    name = read_json(path / "model_index.json").get("_class_name") if path.is_dir() else PLUS
    if name not in (FIRST, PLUS):
        raise ModelError(
            f"{path / 'model_index.json'} describes a {name}, not a {FIRST} or {PLUS}",
            remedy="set model.family to the family of this folder, or model.path to a folder of this family",
        )
    images = read_qwen_image(path, name)
    config = path / "text_encoder" / "config.json"
    tower = images.text_encoder.get("vision_config")
    if not isinstance(tower, dict):
        raise ModelError(f"the model file {config} lacks the key 'vision_config'", remedy="download it again")
    whole_numbers(
        config, tower, ("hidden_size", "num_heads", "patch_size", "spatial_merge_size", "temporal_patch_size")
    )
    vision = read_settings(path / "processor" / PREPROCESSOR)
    cross_check(
        path,
        [
            (vision.patch, tower["patch_size"], "the processor's patch_size", "that of the vision tower"),
            (vision.merge, tower["spatial_merge_size"], "the processor's merge_size", "that of the vision tower"),
            (vision.temporal, tower["temporal_patch_size"], "the processor's temporal_patch_size", "that of the tower"),
        ],
    )
    return EditFolder(**vars(images), plus=name == PLUS, vision=vision)


def check_extent(path: Path, extent: Extent) -> None:
    """`ConfigError` for a size that the folder's model does not draw."""
    require_image("qwen_image_edit", extent)
    read_folder(path).latent_shape(extent.height, extent.width)
