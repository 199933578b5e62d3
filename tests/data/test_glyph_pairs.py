"""The packaged pairs: sound, spelt right on the chosen side, and apart from the held-out prompts."""

from __future__ import annotations

from omni_portable.config.assets import packaged
from omni_portable.config.schema import DataConfig, TargetConfig
from omni_portable.contracts.rollout import Extent
from omni_portable.data.checking import check_file
from omni_portable.data.fields import training_media
from omni_portable.data.kinds import find_kind
from omni_portable.data.prompts import load_prompts, refuse_overlap
from omni_portable.reward.ocr import OcrOptions
from omni_portable.reward.ocr_scorer import OcrScorer
from tests.reward.reward_samples import sample

FIELDS = ["img_win", "img_lose"]


def rows(split="train"):
    data = DataConfig(targets={"image": TargetConfig(fields=FIELDS)})
    media = training_media(data, {"image": "image"}, Extent(32, 48))
    return load_prompts("builtin:glyph-pairs", split=split, required_fields=["ground_truth"], media=media)


def test_every_pair_is_sound_and_none_is_held_out():
    path = packaged("glyph-pairs") / "train.parquet"
    assert check_file(path, find_kind("preference-images")) == len(rows()) == 192
    assert path.stat().st_size < 300_000
    refuse_overlap(rows(), load_prompts("builtin:ocr-glyphs", split="validation"))


def test_held_out_pairs_are_sound_and_none_is_trained_on():
    path = packaged("glyph-pairs") / "validation.parquet"
    assert check_file(path, find_kind("preference-images")) == len(rows("validation")) == 8
    refuse_overlap(rows(), rows("validation"))
    refuse_overlap(load_prompts("builtin:ocr-glyphs", split="train"), rows("validation"))


def test_the_chosen_side_shows_the_text_and_the_other_does_not():
    scorer, some = OcrScorer(OcrOptions()), rows()[:24]
    for side, least, most in ((0, 0.9, 1.0), (1, 0.0, 0.6)):
        pictures = [row.targets[side]["image"].data for row in some]
        assert all(picture.shape == (3, 32, 48) for picture in pictures)
        scored = scorer.score([sample(p, row.metadata["ground_truth"]) for p, row in zip(pictures, some, strict=True)])
        assert least <= sum(scored.scores) / len(some) <= most
