"""The C library's heap."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Ask glibc to give back free pages anywhere in its heaps; other C libraries give theirs back by themselves."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
