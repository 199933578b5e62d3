"""Kinds of datasets that `omni-portable data` converts and checks, by name."""

from __future__ import annotations

from collections.abc import Mapping

from omni_portable.config.convert import suggest
from omni_portable.contracts.errors import ConfigError
from omni_portable.data.kinds.base import Kind
from omni_portable.data.kinds.pictures import FL2VA, IMAGE_EDIT
from omni_portable.data.kinds.preferences import PREFERENCE_IMAGES, PREFERENCE_MULTIMODAL
from omni_portable.data.kinds.prompts import OCR_PROMPTS, PICKSCORE_PROMPTS, T2VA
from omni_portable.data.kinds.questions import AVQA, GSM8K, MMK12

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        OCR_PROMPTS,
        PICKSCORE_PROMPTS,
        IMAGE_EDIT,
        T2VA,
        FL2VA,
        MMK12,
        AVQA,
        PREFERENCE_IMAGES,
        PREFERENCE_MULTIMODAL,
        GSM8K,
    )
}


def find_kind(name: str) -> Kind:
    """The kind of a name.

    Raises:
        ConfigError: there is none; lists them.
    """
    if name not in KINDS:
        raise ConfigError(
            f"there is no kind of dataset '{name}'", remedy=suggest(name, list(KINDS)), choices=list(KINDS)
        )
    return KINDS[name]
