"""Input media and targets of prompt rows, decoded when they are looked at.

Decoded media are kept up to :data:`CACHE_BYTES` in all (least recently used go first), so that the samples of a prompt
share one and a long list of requests costs nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.sources import MediaRef

CACHE_BYTES = 256 << 20


class LazyMedia(Mapping[str, MediaArtifact]):
    """Name -> medium; its length and names are known without reading anything.

    Looking one up raises what :meth:`MediaRef.load` does.
    """

    def __init__(self, refs: Sequence[MediaRef]) -> None:
        self._refs = {ref.name: ref for ref in refs}

    def __getitem__(self, name: str) -> MediaArtifact:
        return _decoded.get(self._refs[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    @property
    def sources(self) -> tuple[tuple[str, object], ...]:
        """Name and source of each medium; equal sources are one medium."""
        return tuple((name, ref.source) for name, ref in self._refs.items())

    def __repr__(self) -> str:
        return f"LazyMedia({', '.join(f'{name}: {ref.where}' for name, ref in self._refs.items())})"


class _Decoded:
    """The cache behind all :class:`LazyMedia`; a medium larger than it is handed out and forgotten."""

    def __init__(self) -> None:
        self._kept: OrderedDict[MediaRef, MediaArtifact] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, ref: MediaRef) -> MediaArtifact:
        with self._lock:
            found = self._kept.get(ref)
            if found is not None:
                self._kept.move_to_end(ref)
                return found
        made = ref.load()
        with self._lock:
            if ref not in self._kept and _size(made) <= CACHE_BYTES:
                self._kept[ref] = made
                self._bytes += _size(made)
                while self._bytes > CACHE_BYTES:
                    self._bytes -= _size(self._kept.popitem(last=False)[1])
        return made


def _size(artifact: MediaArtifact) -> int:
    data = artifact.data
    return len(data) if isinstance(data, str) else data.numel() * data.element_size()


_decoded = _Decoded()
