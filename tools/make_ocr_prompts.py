"""Make the packaged prompt set 'builtin:ocr-glyphs' for the model that tools/pretrain_glyph.py makes.

    python tools/make_ocr_prompts.py --out omni_portable/assets/ocr-glyphs

Every string of two characters (digits and capital letters) is either a training or a held-out validation string, never
both; which one depends on a hash of the string alone, so that the files never change. Each row has the prompt in the
model's main template and the string as 'ground_truth'.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TEMPLATE = 'the text "{}"'
TRAIN_ROWS = 700
"""The other 596 of the 1296 strings are for validation."""


def ordered_strings() -> list[str]:
    """All 1296 strings in an order that mixes them, the same on every machine and Python."""
    strings = [a + b for a in ALPHABET for b in ALPHABET]
    return sorted(strings, key=lambda text: hashlib.blake2b(text.encode()).digest())


def write(path: Path, strings: Iterable[str]) -> None:
    rows = [json.dumps({"prompt": TEMPLATE.format(text), "ground_truth": text}) for text in strings]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl and validation.jsonl")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    strings = ordered_strings()
    write(out / "train.jsonl", strings[:TRAIN_ROWS])
    write(out / "validation.jsonl", strings[TRAIN_ROWS:])


if __name__ == "__main__":
    main()
