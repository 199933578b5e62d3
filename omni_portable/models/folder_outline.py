"""The outline of families that have no formulas of memory: attention and parameter counts, from the files of a folder.

Torch-free. Of a folder on this machine attention comes from its config files, and counts from the headers of its weight
files. Of one that is not here (a hub's id that was not downloaded, a tiny model that was not built yet) attention is
what the family knows under that name; under a name that it does not know, head dimensions are unknown. Memory stays
unknown either way, and the outline says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from omni_portable.config.tiny import TINY
from omni_portable.contracts.device import AttentionRequest, Component
from omni_portable.models.folders import DIFFUSERS_STEM, TRANSFORMERS_STEM, Shapes, weight_shapes
from omni_portable.models.outline import DTYPE_BYTES, ModelOutline, Part

HEADERS = "headers of its weight files"
TOWERS = ("visual.", "audio_tower.")
"""Frozen parts of a language model's folder, by where their tensors' names have it."""
GIB = 2**30

Requests = Sequence[AttentionRequest]
Reader = Callable[[Path, str, bool], Requests]
"""(folder, dtype, training) -> its requests; `ModelError` for a folder that is damaged or of another family."""
Counter = Callable[[Path], tuple[Part, ...]]


def pipeline_parts(path: Path) -> tuple[Part, ...]:
    """Of every component of a diffusers folder that has weight files; `ModelError` for damaged ones."""
    found = []
    for folder in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        for stem in (DIFFUSERS_STEM, TRANSFORMERS_STEM):
            if _has_weights(folder, stem):
                found.append(_part(_component(folder.name), folder.name, weight_shapes(folder, stem)))
    return tuple(found)


def language_parts(path: Path, left_out: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """Language model and towers of a transformers folder; `ModelError` for damaged files.

    Args:
        left_out: prefixes of tensors that are not loaded.
    """
    if not _has_weights(path, TRANSFORMERS_STEM):
        return ()
    shapes = {
        name: shape
        for name, shape in weight_shapes(path, TRANSFORMERS_STEM).items()
        if not name.startswith(left_out or ("\0",))
    }
    towers = {name: shape for name, shape in shapes.items() if any(tower in name for tower in TOWERS)}
    language = {name: shape for name, shape in shapes.items() if name not in towers}
    parts = (_part("language_model", "language_model", language), _part("text_encoder", "towers", towers))
    return tuple(part for part in parts if part.elements)


@dataclass(frozen=True)
class FolderOutline:
    """A family's outline, called as `models.outline` says.

    Args:
        family: its name.
        read: attention of a folder.
        known: name -> attention of models that need not be here: 'tiny:FAMILY', or a repository of the hub, of which
            the last part is compared too ('/models/FLUX.1-dev'). dtype and backward are filled in.
        count: parts of a folder.
        trainable: the component that is trained.
    """

    family: str
    read: Reader
    known: Mapping[str, Requests]
    count: Counter = pipeline_parts
    trainable: Component = "transformer"

    def __call__(self, path: str, options: object, dtype: str, training: bool) -> ModelOutline:
        """The outline; `ModelError` for a folder that is here, but incomplete, damaged or of another family."""
        folder = Path(path)
        if folder.is_dir():
            parts = self.count(folder)
            attention = tuple(self.read(folder, dtype, training))
            return self._outline(path, attention, parts, self._unknown(parts, dtype), self._counted(parts))
        unknown = self._unknown((), dtype)
        name = self._name(path)
        if name is None:
            kinds = [replace(one, head_dim=None) for one in next(iter(self.known.values()))]
            attention = tuple(dict.fromkeys(self._asked(kinds, dtype, training)))
            note = f"model.path={path} is not on this machine; kernels are chosen without knowing head dimensions"
            return self._outline(path, attention, (), unknown, (note,))
        where = "of the tiny model as it would be built" if name.startswith(TINY) else f"published for {name}"
        note = f"model.path={path} is not on this machine; head dimensions are those {where}"
        return self._outline(path, self._asked(self.known[name], dtype, training), (), unknown, (note,))

    def _name(self, path: str) -> str | None:
        """The known name that a path means."""
        if path in self.known:
            return path
        last = Path(path).name.lower()
        names = (name for name in self.known if not name.startswith(TINY) and name.rpartition("/")[2].lower() == last)
        return None if path.startswith(TINY) else next(names, None)

    def _asked(self, requests: Requests, dtype: str, training: bool) -> tuple[AttentionRequest, ...]:
        return tuple(
            replace(one, dtype=dtype, backward=training and one.component == self.trainable) for one in requests
        )

    def _unknown(self, parts: Sequence[Part], dtype: str) -> str:
        why = f"model family '{self.family}' has no formulas of activations"
        if not parts:
            return f"{why}, and weight files that could be counted are not on this machine"
        if dtype not in DTYPE_BYTES:
            return why
        size = sum(part.bytes(dtype) for part in parts) / GIB
        return f"{why}; one copy of all weights takes {size:.3g} GiB in {dtype}"

    def _counted(self, parts: Sequence[Part]) -> tuple[str, ...]:
        counts = ", ".join(f"{part.name} {part.elements:,}" for part in parts)
        return (f"elements of weights by the {HEADERS}: {counts}",) if parts else ()

    def _outline(
        self,
        path: str,
        attention: tuple[AttentionRequest, ...],
        parts: tuple[Part, ...],
        unknown: str,
        notes: tuple[str, ...],
    ) -> ModelOutline:
        return ModelOutline(self.family, path, attention, parts, trainable=self.trainable, unknown=unknown, notes=notes)


def _has_weights(folder: Path, stem: str) -> bool:
    return any((folder / f"{stem}.safetensors{end}").is_file() for end in ("", ".index.json"))


def _part(component: Component, name: str, shapes: Shapes) -> Part:
    count = sum(map(prod, shapes.values()))
    return Part(component, name, count, count, HEADERS)


def _component(folder: str) -> Component:
    """Connectors condition the transformer; whatever else decodes."""
    if folder.startswith("transformer"):
        return "transformer"
    return "text_encoder" if folder.startswith(("text_encoder", "connectors")) else "vae"
