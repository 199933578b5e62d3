"""Qwen2.5-VL and Qwen3-VL: pixels as published, prompts as published, numbers as the library's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from omni_portable.contracts.errors import ArtifactError, DataError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.models.autoregressive.vision import patches, target_size
from omni_portable.models.autoregressive.vision_settings import VisionSettings, read_settings
from omni_portable.models.qwen_vl.adapter import patch_times
from tests.support.token_models import folder, load, picture, prompts, some_rows, video

SETTINGS = VisionSettings(8, 2, 2, 4 * 256, 64 * 256, (0.48, 0.45, 0.4), (0.26, 0.27, 0.28))


@pytest.mark.parametrize("family", ["qwen_vl", "qwen_vl/qwen2_5"])
def test_it_computes_what_the_library_computes(family: str) -> None:
    adapter = load(family)
    library, tokens = adapter.transformer._unregistered[0], adapter._placeholders()
    rows = some_rows(adapter, family)
    with torch.no_grad():
        scored = adapter.score(rows, 1.0).log_prob
        for index, (row, (_, media)) in enumerate(zip(rows, prompts(family), strict=True)):
            ids = torch.cat([row.inputs["ids"], row.response_ids])[None]
            given: dict[str, torch.Tensor] = {}
            for artifact in media.values():
                moving = artifact.modality == "video"
                frames = artifact.data if moving else artifact.data[None]
                pixels, grid = patches(frames, adapter._videos if moving else adapter._images)
                names = ("pixel_values_videos", "video_grid_thw") if moving else ("pixel_values", "image_grid_thw")
                given |= dict(zip(names, (pixels, grid), strict=True))
            if given:
                given["mm_token_type_ids"] = (ids == tokens["image"]).int() + 2 * (ids == tokens["video"]).int()
            if "video_grid_thw" in given and family != "qwen_vl":
                given["second_per_grid_ts"] = torch.tensor([1.0])
            library.model.rope_deltas = None
            logits = library(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **given).logits
            chosen = logits[0, len(row.inputs["ids"]) - 1 : -1].log_softmax(-1).gather(-1, row.response_ids[:, None])
            torch.testing.assert_close(scored[index, : len(chosen)], chosen[:, 0], atol=2e-6, rtol=0)


def test_patches_are_those_of_the_published_processor() -> None:
    image = torch.randint(0, 255, (3, 48, 80), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    published = Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, temporal_patch_size=2, min_pixels=4 * 256, max_pixels=64 * 256,
        image_mean=list(SETTINGS.mean), image_std=list(SETTINGS.std),
    )  # fmt: skip
    found = published(images=[image.numpy()], return_tensors="pt")
    pixels, grid = patches(image[None], SETTINGS)
    assert torch.equal(grid, found.image_grid_thw)
    torch.testing.assert_close(pixels, found.pixel_values, atol=1e-5, rtol=0)


def test_resizing_is_close_to_the_published_one() -> None:
    y, x = np.mgrid[0:50, 0:70]
    smooth = torch.from_numpy(np.stack([y * 4, x * 3, (x + y) * 2]).astype(np.uint8))
    published = Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, temporal_patch_size=2, min_pixels=256, max_pixels=64 * 256,
        image_mean=list(SETTINGS.mean), image_std=list(SETTINGS.std),
    )  # fmt: skip
    found = published(images=[smooth.numpy()], return_tensors="pt").pixel_values
    one_level = 1 / 255 / min(SETTINGS.std)
    assert (patches(smooth[None], SETTINGS)[0] - found).abs().max() <= 1.5 * one_level


@settings(deadline=None, max_examples=200)
@given(st.integers(8, 400), st.integers(8, 400))
def test_sizes_are_the_published_ones(height: int, width: int) -> None:
    ours = target_size(1, height, width, SETTINGS)
    assert ours[0] % 16 == ours[1] % 16 == 0
    if round(height / 16) and round(width / 16):  # the published rule rounds thin sides to nothing
        published = smart_resize(height, width, 16, SETTINGS.min_pixels, SETTINGS.max_pixels)
        assert ours == published


def test_a_video_is_cut_into_pairs_of_frames() -> None:
    frames = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 32, 32)
    pixels, grid = patches(frames, VisionSettings(8, 2, 2, 1, 1 << 20, (0.0,) * 3, (1 / 255.0,) * 3))
    assert grid.tolist() == [[3, 4, 4]]
    seen = pixels.view(3, 16, 3, 2, 64)
    torch.testing.assert_close(seen[:, 0, 0, :, 0], torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 4.0]]))


def test_times_are_spelled_for_each_pair_of_frames() -> None:
    assert patch_times(5, 2.0, 3, 2) == [0.25, 1.25, 2.0]
    adapter = load("qwen_vl")
    text = adapter.chat.tokenizer.decode(adapter.build_inputs("x", {"clip": video()})["ids"])
    assert [part.split(">")[0] for part in text.split("<") if "seconds" in part] == [
        "0.2 seconds", "1.2 seconds", "2.0 seconds",
    ]  # fmt: skip


def test_media_stand_where_they_are_marked() -> None:
    adapter = load("qwen_vl/qwen2_5")
    media = {"clip": video(), "image": picture()}
    first = adapter.chat.tokenizer.decode(adapter.build_inputs("look", media)["ids"])
    assert first.index("video_pad") < first.index("image_pad") < first.index("look")
    marked = adapter.chat.tokenizer.decode(adapter.build_inputs("a<image>b<video>c", media)["ids"])
    assert marked.index("a<") < marked.index("image_pad") < marked.index("b<") < marked.index("video_pad")
    with pytest.raises(DataError, match="marks the media"):
        adapter.build_inputs("a<image>b<image>", {"image": picture()})
    with pytest.raises(DataError, match="marks the media"):
        adapter.build_inputs("a<image>", {})


def test_what_it_does_not_read_is_refused() -> None:
    sound = MediaArtifact("sound", "audio", torch.zeros(1, 400), "CT", sample_rate=16000)
    with pytest.raises(ArtifactError, match="reads no audio"):
        load("qwen_vl").build_inputs("x", {"sound": sound})
    thin = MediaArtifact("image", "image", torch.zeros(3, 1, 300, dtype=torch.uint8), "CHW")
    with pytest.raises(ArtifactError, match="longer than 200"):
        load("qwen_vl").build_inputs("x", {"image": thin})
    with pytest.raises(ModelError, match="text_encoder"):
        load("qwen_vl", ("transformer",)).build_inputs("x", {"image": picture()})


def test_folders_of_other_families_are_refused(tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder("qwen_vl"), tmp_path / "m"))
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"model_type": "llava"}))
    with pytest.raises(ModelError, match="llava"):
        load("qwen_vl", (), path=copied)
    (copied / "config.json").write_text(json.dumps(config))
    preprocessor = json.loads((copied / "preprocessor_config.json").read_text())
    (copied / "preprocessor_config.json").write_text(
        json.dumps({k: v for k, v in preprocessor.items() if k != "image_std"})
    )
    with pytest.raises(ModelError, match="image_std"):
        load("qwen_vl", path=copied)


def test_settings_may_name_edges_instead_of_pixels(tmp_path: Path) -> None:
    file = tmp_path / "preprocessor_config.json"
    content = json.loads((folder("qwen_vl") / file.name).read_text())
    edges = {"size": {"shortest_edge": content.pop("min_pixels"), "longest_edge": content.pop("max_pixels")}}
    file.write_text(json.dumps(content | edges))
    assert read_settings(file) == read_settings(folder("qwen_vl") / file.name)
