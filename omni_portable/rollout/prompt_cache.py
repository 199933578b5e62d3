"""A least-recently-used cache of conditioning: one prompt is encoded once, however many samples are drawn of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import Conditioning, Extent
from omni_portable.models.weights import tensor_checksum

MediaKey = tuple[tuple[str, str], ...]
Encode = Callable[[str, Mapping[str, MediaArtifact], Extent], Conditioning]
"""Encodes one prompt with its input media, for samples of a size."""


@dataclass(frozen=True)
class CacheStatistics:
    """Look-ups since the cache was made, and entries held now."""

    hits: int
    misses: int
    entries: int


def media_key(media: Mapping[str, MediaArtifact]) -> MediaKey:
    """Identity of input media: name and a checksum of the contents, so that equal media hit whoever loaded them."""
    return tuple((name, _identity(media[name])) for name in sorted(media))


def _identity(artifact: MediaArtifact) -> str:
    kind = f"{artifact.modality}:{artifact.layout}:{artifact.sample_rate}:{artifact.fps}"
    if isinstance(artifact.data, str):
        return f"{kind}:{artifact.data}"
    shape = "x".join(str(size) for size in artifact.data.shape)
    return f"{kind}:{artifact.data.dtype}:{shape}:{tensor_checksum(artifact.data)}"


class PromptCache:
    """Conditioning by (prompt, media identity, size of the sample); the least recently used entry goes first.

    Every miss is encoded alone: its conditioning is then a function of the prompt only, never of which other prompts
    shared the call, and the cache may be turned off without changing a bit of any sample.

    Args:
        max_entries: entries kept; 0 turns the cache off (every look-up encodes and counts as a miss).
        encode: encodes one prompt; its result is kept and handed out as is, so nobody may write to it.
    """

    def __init__(self, max_entries: int, encode: Encode) -> None:
        if max_entries < 0:
            raise ConfigError(f"rollout.prompt_cache_size is {max_entries}", remedy="set it to 0 (off) or more")
        self._max_entries = max_entries
        self._encode = encode
        self._entries: OrderedDict[tuple[str, MediaKey, Extent], Conditioning] = OrderedDict()
        self._hits = 0
        self._misses = 0

    def get(self, prompt: str, media: Mapping[str, MediaArtifact], extent: Extent) -> Conditioning:
        """Conditioning of a prompt (no batch dimension), from the cache or encoded now."""
        key = (prompt, media_key(media), extent)
        found = self._entries.get(key)
        if found is not None:
            self._hits += 1
            self._entries.move_to_end(key)
            return found
        self._misses += 1
        made = self._encode(prompt, media, extent)
        if self._max_entries:
            self._entries[key] = made
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        return made

    def clear(self) -> None:
        """Forget all entries (counters stay)."""
        self._entries.clear()

    def statistics(self) -> CacheStatistics:
        """Counters since the cache was made."""
        return CacheStatistics(self._hits, self._misses, len(self._entries))
