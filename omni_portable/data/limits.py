"""What decoded media may measure, whatever a file claims. Torch-free."""

from __future__ import annotations

from omni_portable.contracts.errors import DataError

MAX_DECODED_BYTES = 1 << 30
"""Largest medium in memory; more of it is refused, not cut."""
MAX_CHANNELS = 64
"""Most channels of sound, beyond every microphone array that films are made with."""
MAX_FRAMES = 1_000_000
"""Most frames that a rate may ask for of a video."""
REPLACE = "replace the medium, or remove the row"


def check_size(count: int, what: str) -> None:
    """
    Raises:
        DataError: `count` bytes are more than a medium may take.
    """
    if count > MAX_DECODED_BYTES:
        raise DataError(
            f"{what}: decoded it takes more than {MAX_DECODED_BYTES >> 20} MiB",
            remedy="limit it in data.media: max_frames, fps, height and width of a video; max_seconds of sound",
        )
