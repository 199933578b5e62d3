"""The outline of a Stable Diffusion 3 model: from a folder on this machine, or from what its name stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import ModelError
from omni_portable.models.folders import DIFFUSERS_STEM, TRANSFORMERS_STEM, Shapes, weight_shapes, whole_numbers
from omni_portable.models.outline import ModelOutline, Part
from omni_portable.models.sd3 import LORA_TARGETS, SD3Options
from omni_portable.models.sd3.folder import T5, SD3Folder, read_folder
from omni_portable.models.sd3.published import TRANSFORMERS, published
from omni_portable.models.sd3.shapes import (
    clip_elements,
    elements,
    parameters,
    t5_elements,
    t5_wide_elements,
    transformer_shapes,
    vae_elements,
)
from omni_portable.models.sd3.sizes import SD3Sizes

COUNTED = "computed from its config file"
READ = "headers of its weight files"

_NEEDED = {
    "text_encoder": ("intermediate_size", "num_hidden_layers"),
    "text_encoder_2": ("intermediate_size", "num_hidden_layers"),
    "text_encoder_3": ("d_ff", "d_kv", "num_heads", "num_layers"),
}
"""Keys of config files that only counting needs."""


def outline(path: str, options: object, dtype: str, training: bool) -> ModelOutline:
    """See `models.outline`; a folder that is not here and has no published name has requests without head dimensions.

    Raises:
        ModelError: the folder is here, but incomplete, damaged or of another family.
    """
    t5_tokens = options.max_sequence_length if isinstance(options, SD3Options) else SD3Options().max_sequence_length
    if Path(path).is_dir():
        return _describe(read_folder(Path(path)), t5_tokens, dtype, training, _read_part, ())
    known = published(path)
    if known is None:
        return _unknown(path, dtype, training)
    repository, folder = known
    notes = (f"model.path={path} is not on this machine; sizes are those published for {repository}",)
    return _describe(folder, t5_tokens, dtype, training, _published_part, notes)


def _describe(
    folder: SD3Folder,
    t5_tokens: int,
    dtype: str,
    training: bool,
    read: Callable[[SD3Folder, str], Part],
    notes: tuple[str, ...],
) -> ModelOutline:
    config = folder.transformer
    heads, head_dim = int(config["num_attention_heads"]), int(config["attention_head_dim"])
    parts = tuple(_wide(folder, read(folder, name), dtype) for name in ("transformer", *folder.encoders, "vae"))
    counted = [part.name for part in parts if part.source == COUNTED]
    if counted and read is _read_part:
        notes += (f"{', '.join(counted)} of {folder.path} has no weight files yet; sizes are computed from its config",)
    return ModelOutline(
        family="sd3",
        name=str(folder.path),
        attention=tuple(folder.attention_requests(dtype, training)),
        parts=parts,
        blocks=int(config["num_layers"]),
        width=heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        lora_targets=LORA_TARGETS,
        sizes=SD3Sizes(folder, transformer_shapes(config), t5_tokens),
        notes=notes,
    )


def _wide(folder: SD3Folder, part: Part, dtype: str) -> Part:
    if part.name != T5 or dtype != "float16":
        return part
    config = folder.encoders[T5]
    whole_numbers(folder.path / T5 / "config.json", config, ("num_layers", "d_ff"))
    return replace(part, wide=t5_wide_elements(config))


def _unknown(path: str, dtype: str, training: bool) -> ModelOutline:
    requests = (
        AttentionRequest("transformer", dtype, backward=training),
        AttentionRequest("text_encoder", dtype, causal=True),
        AttentionRequest("vae", dtype),
    )
    why = (
        f"model.path={path} is not on this machine, and the family publishes sizes of "
        f"{', '.join(TRANSFORMERS)} only; copy the folder's config files here to plan with them"
    )
    notes = ("kernels are chosen without knowing head dimensions",)
    return ModelOutline("sd3", path, requests, lora_targets=LORA_TARGETS, unknown=why, notes=notes)


def _read_part(folder: SD3Folder, name: str) -> Part:
    """From headers where there are weight files, else from the config file."""
    stem = TRANSFORMERS_STEM if name in folder.encoders else DIFFUSERS_STEM
    if not any(entry.name.startswith(f"{stem}.safetensors") for entry in (folder.path / name).iterdir()):
        return _counted_part(folder, name)
    shapes = weight_shapes(folder.path / name, stem)
    if name == "transformer":
        _compare(folder, shapes)
    return Part(_component(name), name, elements(shapes), parameters(shapes), READ)


def _counted_part(folder: SD3Folder, name: str) -> Part:
    config = folder.encoders.get(name)
    if config is not None:
        whole_numbers(folder.path / name / "config.json", config, _NEEDED[name])
    return _published_part(folder, name)


def _published_part(folder: SD3Folder, name: str) -> Part:
    if name == "transformer":
        shapes = transformer_shapes(folder.transformer)
        return Part("transformer", name, elements(shapes), parameters(shapes), COUNTED)
    count = vae_elements(folder.vae) if name == "vae" else _encoder_elements(name, folder.encoders[name])
    return Part(_component(name), name, count, count, COUNTED)


def _encoder_elements(name: str, config: Mapping[str, Any]) -> int:
    return t5_elements(config) if name == T5 else clip_elements(config)


def _component(name: str) -> Any:
    return "text_encoder" if name.startswith("text_encoder") else name


def _compare(folder: SD3Folder, shapes: Shapes) -> None:
    """Weights and config of the transformer must be of one model."""
    expected = transformer_shapes(folder.transformer)
    different = sorted(name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name))
    if different:
        name = different[0]
        raise ModelError(
            f"{folder.path / 'transformer'}: tensor '{name}' is {shapes.get(name, 'missing')} in the weights, "
            f"{expected.get(name, 'absent')} by config.json ({len(different)} tensors differ)",
            remedy="config and weights must come from the same checkpoint",
        )
