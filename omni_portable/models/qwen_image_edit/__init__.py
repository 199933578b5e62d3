"""Qwen-Image-Edit (diffusers folders of a `QwenImageEditPipeline` or `QwenImageEditPlusPipeline`, that is, the releases
of 2509, 2511 and later); imports without torch."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec

IMAGES = ("image", "image_2", "image_3")
"""Names of the input images, in the order in which the model is shown them."""
SIDE_UNIT = 32
"""Pixels that the sides of resized input images are multiples of."""


@dataclass(frozen=True)
class QwenImageEditOptions:
    """Keys of `model.options` for the family 'qwen_image_edit'. Input images are resized, each keeping its ratio."""

    vae_pixels: int = 1024 * 1024
    """Area that an input image is brought to before its latents are shown to the transformer."""
    condition_pixels: int = 384 * 384
    """Area that it is brought to before the text encoder reads it; the first release reads it at `vae_pixels`."""

    def __post_init__(self) -> None:
        for name in ("vae_pixels", "condition_pixels"):
            if getattr(self, name) < SIDE_UNIT * SIDE_UNIT:
                raise ConfigError(
                    f"model.options.{name} is {getattr(self, name)}; an image has at least {SIDE_UNIT} x {SIDE_UNIT} "
                    "pixels"
                )


SPEC = PluginSpec(
    name="qwen_image_edit",
    summary="Qwen-Image-Edit and -Plus: one to three images and an instruction to an image",
    target="omni_portable.models.qwen_image_edit.adapter:QwenImageEditAdapter",
    options=QwenImageEditOptions,
    capabilities={
        "kinds": ("diffusion",),
        "artifacts": {"image": "image"},
        "inputs": dict.fromkeys(IMAGES, "image"),
        "guidance": True,
        "check_extent": "omni_portable.models.qwen_image_edit.folder:check_extent",
        "outline": "omni_portable.models.qwen_image_edit.outline:outline",
        "tiny": {
            "": "omni_portable.models.qwen_image_edit.tiny:build_tiny_qwen_image_edit_plus",
            "first": "omni_portable.models.qwen_image_edit.tiny:build_tiny_qwen_image_edit",
        },
    },
)
