"""Config files of the published Stable Diffusion 3 models, so that they can be planned for where they are not present.

Only keys that are computed with. They are gated repositories; the values are those of the files at their first release.
Parameter counts that follow from them (transformer with its position table, both CLIPs, VAE) equal the totals which
KerasHub publishes for the same models: 2,987,080,931 (3 Medium), 3,371,793,763 (3.5 Medium), 9,048,410,595 (3.5 Large).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_portable.models.sd3.folder import SD3Folder

_COMMON: dict[str, Any] = {
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
}
_MEDIUM = _COMMON | {"num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536}
_SD3_MEDIUM = _MEDIUM | {"pos_embed_max_size": 192}
_SD35_MEDIUM = _MEDIUM | {
    "pos_embed_max_size": 384,
    "qk_norm": "rms_norm",
    "dual_attention_layers": tuple(range(13)),
}
_SD35_LARGE = _COMMON | {
    "num_layers": 38,
    "num_attention_heads": 38,
    "caption_projection_dim": 2432,
    "pos_embed_max_size": 192,
    "qk_norm": "rms_norm",
}
_CLIP: dict[str, Any] = {"vocab_size": 49408, "max_position_embeddings": 77}
_ENCODERS: Mapping[str, Mapping[str, Any]] = {
    "text_encoder": _CLIP
    | {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "projection_dim": 768,
    },
    "text_encoder_2": _CLIP
    | {
        "hidden_size": 1280,
        "num_hidden_layers": 32,
        "num_attention_heads": 20,
        "intermediate_size": 5120,
        "projection_dim": 1280,
    },
    "text_encoder_3": {
        "d_model": 4096,
        "d_kv": 64,
        "d_ff": 10240,
        "num_layers": 24,
        "num_heads": 64,
        "vocab_size": 32128,
        "feed_forward_proj": "gated-gelu",
    },
}
_VAE: Mapping[str, Any] = {
    "latent_channels": 16,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}

TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    "stabilityai/stable-diffusion-3-medium-diffusers": _SD3_MEDIUM,
    "stabilityai/stable-diffusion-3.5-medium": _SD35_MEDIUM,
    "stabilityai/stable-diffusion-3.5-large": _SD35_LARGE,
    "stabilityai/stable-diffusion-3.5-large-turbo": _SD35_LARGE,
}
"""Repository -> config of its transformer; encoders and VAE are the same in all of them."""


def published(path: str) -> tuple[str, SD3Folder] | None:
    """The published model that a path names by its last part: (repository, its config files); None where none does.

    'stabilityai/stable-diffusion-3.5-medium' and '/models/stable-diffusion-3.5-medium' both name one.
    """
    name = Path(path).name.lower()
    for repository, transformer in TRANSFORMERS.items():
        if repository.rpartition("/")[2] == name:
            return repository, SD3Folder(Path(path), transformer, _VAE, {}, _ENCODERS)
    return None
