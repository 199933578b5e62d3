"""Make the packaged set 'builtin:glyph-pairs': pictures to imitate and to prefer, for the model glyph-sd3.

    python tools/make_glyph_pairs.py --out omni_portable/assets/glyph-pairs

Rows have a prompt, its text as 'ground_truth', a picture of that text ('img_win') and a picture of another text that
differs in one or both characters ('img_lose'). Texts are those of 'builtin:ocr-glyphs', split by split, so that its
validation split stays held out. Pictures are rendered as tools/pretrain_glyph.py does (fonts of matplotlib's
package data).
"""

from __future__ import annotations

import argparse
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from pretrain_glyph import ALPHABET, render

from omni_portable.config.assets import packaged
from omni_portable.data.kinds import find_kind
from omni_portable.data.kinds.base import Column
from omni_portable.data.writers import write_rows

ROWS = {"train": 192, "validation": 8}
COLUMNS = (Column("ground_truth", "text"), Column("lose_text", "text"))


def picture(text: str, rng: random.Random) -> bytes:
    """A grey PNG file of the text."""
    buffer = io.BytesIO()
    Image.fromarray(render(text, rng)).convert("L").save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def other(text: str, rng: random.Random) -> str:
    """A text of the same length with one or two other characters."""
    characters = list(text)
    for place in rng.sample(range(len(text)), rng.randint(1, len(text))):
        characters[place] = rng.choice([c for c in ALPHABET if c != characters[place]])
    return "".join(characters)


def rows(split: str, seed: int) -> Iterator[dict[str, object]]:
    rng = random.Random(seed)
    lines = (packaged("ocr-glyphs") / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()[: ROWS[split]]
    for row in map(json.loads, lines):
        wrong = other(row["ground_truth"], rng)
        yield {
            "prompt": row["prompt"],
            "ground_truth": row["ground_truth"],
            "lose_text": wrong,
            "img_win": picture(row["ground_truth"], rng),
            "img_lose": picture(wrong, rng),
            "win_score": 1.0,
            "lose_score": 0.0,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for train.parquet and validation.parquet")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    columns = (*find_kind("preference-images").columns, *COLUMNS)
    for split in ROWS:
        write_rows(arguments.out / f"{split}.parquet", rows(split, arguments.seed), columns, overwrite=True)


if __name__ == "__main__":
    main()
