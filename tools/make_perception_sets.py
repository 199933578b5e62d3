"""Make the packaged prompt sets 'colours' and 'tones': questions about pictures of one colour and sounds of one pitch.

    python tools/make_perception_sets.py [FOLDER]

Writes FOLDER/{colours,tones}/{train,validation}.parquet with the media inside (PNG, 8-bit WAV); FOLDER is
omni_portable/assets where it is left out. Equal versions of the libraries give equal bytes.
"""

from __future__ import annotations

import io
import random
import sys
import wave
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from omni_portable.contracts.media import MediaArtifact
from omni_portable.models.autoregressive.tiny_media import COLOUR_QUESTION, QUESTIONS, TONE_QUESTION

COUNTS = {"train": 24, "validation": 8}
"""Media of each answer."""


def encode(medium: MediaArtifact) -> bytes:
    """The medium as a file."""
    target = io.BytesIO()
    if medium.modality == "image":
        Image.fromarray(medium.data.permute(1, 2, 0).numpy()).save(target, "PNG", optimize=True)
        return target.getvalue()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(medium.sample_rate)
        file.writeframes(((medium.data[0] + 1.0) * 127.5).round().byte().numpy().tobytes())
    return target.getvalue()


def rows(question: str, split: str) -> list[dict[str, object]]:
    """Rows of one split in random order; no medium is in both splits."""
    drawer, answers = QUESTIONS[question]
    first = 0 if split == "train" else 10_000
    found = []
    for answer in answers:
        for seed in range(first, first + COUNTS[split]):
            medium = drawer(answer, seed)
            found.append(
                {
                    "id": f"{answer}-{seed}",
                    "prompt": question,
                    "ground_truth": answer,
                    "other": answers[(answers.index(answer) + 1 + seed % (len(answers) - 1)) % len(answers)],
                    medium.name: encode(medium),
                }
            )
    random.Random(0).shuffle(found)
    return found


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "omni_portable" / "assets"
    for name, question in (("colours", COLOUR_QUESTION), ("tones", TONE_QUESTION)):
        (root / name).mkdir(parents=True, exist_ok=True)
        for split in COUNTS:
            pq.write_table(pa.Table.from_pylist(rows(question, split)), root / name / f"{split}.parquet")


if __name__ == "__main__":
    main()
