"""Files of video and sound, opened with PyAV: known formats only, and never a file that another one names."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from omni_portable.contracts.errors import DataError
from omni_portable.data.limits import REPLACE

if TYPE_CHECKING:
    import av

DEMUXERS = (
    *(
        "mov",
        "mp4",
        "matroska",
        "webm",
        "avi",
        "mpegts",
        "mpeg",
        "mpegvideo",
        "m4v",
        "flv",
        "asf",
        "ivf",
        "gif",
        "apng",
    ),
    *("wav", "w64", "aiff", "au", "caf", "flac", "ogg", "mp3", "aac", "ac3", "eac3", "amr", "ape", "tta", "wv", "voc"),
    *("h264", "hevc", "obu", "mjpeg", "yuv4mpegpipe"),
)
"""FFmpeg's demuxers that are allowed. None of them opens other files, as playlists (hls, dash, concat, ...) do."""
KNOWN = "MP4, MOV, MKV, WebM, AVI, MPEG, FLV and GIF; WAV, FLAC, MP3, AAC, Ogg, AIFF and more for sound"
"""The formats for people."""
_NO_OTHER_FILES = {"format_whitelist": ",".join(DEMUXERS), "protocol_whitelist": "none"}


@contextmanager
def opened(content: Path | bytes, what: str) -> Iterator[av.container.InputContainer]:
    """An open container; what FFmpeg cannot make sense of, now or while decoding, becomes a `DataError`.

    FFmpeg is handed the bytes alone, never a name, so nothing in a name or in a file makes it open something else.

    Args:
        what: where the content came from, for messages.
    """
    import av

    stage = "opening"
    try:
        with (
            content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as file,
            av.open(file, "r", metadata_errors="replace", container_options=_NO_OTHER_FILES) as container,
        ):
            stage = "decoding"
            yield container
    except (av.FFmpegError, OSError, EOFError, ValueError, OverflowError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or f"its data are damaged ({type(error).__name__})"
        if stage == "opening" and isinstance(error, av.ArgumentError):  # what FFmpeg says of a format off the list
            reason = "its format is not one of those that are read here"
        raise DataError(
            f"{what}: no video or sound that can be decoded: {reason}", remedy=f"{REPLACE}; known are {KNOWN}"
        ) from error


def decodable(stream: av.stream.Stream, what: str) -> None:
    """
    Raises:
        DataError: nothing here decodes the stream.
    """
    if stream.codec_context is None:
        raise DataError(f"{what}: its {stream.type} stream is of a codec that cannot be decoded", remedy=REPLACE)
