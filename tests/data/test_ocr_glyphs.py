"""The packaged prompt set is what its script makes, and its splits are what they claim."""

from __future__ import annotations

import filecmp
import subprocess
import sys
from pathlib import Path

import pytest

from omni_portable.contracts.errors import DataError
from omni_portable.data.prompts import load_prompts, prompt_file, refuse_overlap

SCRIPT = Path(__file__).parents[2] / "tools" / "make_ocr_prompts.py"


@pytest.fixture(scope="module")
def splits():
    return {
        split: load_prompts("builtin:ocr-glyphs", split=split, required_fields=["ground_truth"])
        for split in ("train", "validation")
    }


def test_the_files_are_what_the_script_makes(tmp_path):
    subprocess.run([sys.executable, str(SCRIPT), "--out", str(tmp_path)], check=True, timeout=60)
    for split in ("train", "validation"):
        assert filecmp.cmp(tmp_path / f"{split}.jsonl", prompt_file("builtin:ocr-glyphs", split), shallow=False)


def test_splits_are_large_enough_and_share_no_string(splits):
    texts = {split: [row.metadata["ground_truth"] for row in rows] for split, rows in splits.items()}
    assert len(texts["train"]) == 700
    assert len(texts["validation"]) == 596
    assert len({*texts["train"], *texts["validation"]}) == 36 * 36
    refuse_overlap(splits["train"], splits["validation"])


def test_every_character_is_trained_in_both_places(splits):
    texts = [row.metadata["ground_truth"] for row in splits["train"]]
    assert len({text[0] for text in texts}) == len({text[1] for text in texts}) == 36


def test_prompts_quote_their_text(splits):
    for rows in splits.values():
        assert all(row.prompt == f'the text "{row.metadata["ground_truth"]}"' for row in rows)
        assert len({row.prompt_id for row in rows}) == len(rows)


def test_a_packaged_model_is_no_prompt_set(monkeypatch, tmp_path):
    monkeypatch.setattr("omni_portable.data.prompts.packaged", lambda name: tmp_path)
    with pytest.raises(DataError, match="no prompt set with a train split"):
        load_prompts("builtin:glyph-sd3", split="train")
