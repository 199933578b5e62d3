"""Images on disk are exact; grids show every picture unblurred, in place, with its caption."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from omni_portable.contracts.errors import ArtifactError, DataError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.data.media import PAD, image_grid, read_image, write_image


@pytest.fixture
def pixels():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (3, 32, 48), generator=generator, dtype=torch.uint8)


def test_written_images_come_back_bit_for_bit(pixels, tmp_path):
    for number, image in enumerate([pixels, pixels.numpy(), MediaArtifact("image", "image", pixels, "CHW")]):
        path = tmp_path / f"{number}.png"
        write_image(image, path)
        back = read_image(path, "frame")
        assert (back.name, back.modality, back.layout) == ("frame", "image", "CHW")
        assert torch.equal(back.data, pixels)


def test_grids_enlarge_by_whole_pixels_and_keep_the_order(pixels):
    flipped = pixels.flip(2)
    sheet = np.asarray(image_grid([pixels, flipped, pixels], ["a", "b", "c"], columns=2, scale=2))
    height, width = sheet.shape[0] // 2, sheet.shape[1] // 2
    for index, image in enumerate([pixels, flipped, pixels]):
        y, x = index // 2 * height + PAD, index % 2 * width + PAD
        shown = sheet[y : y + 64, x : x + 96].transpose(2, 0, 1)
        assert np.array_equal(shown, image.numpy().repeat(2, axis=1).repeat(2, axis=2))


def test_captions_are_drawn_below_their_picture(pixels):
    plain, lettered = (np.asarray(image_grid([pixels], [text])) for text in ("\n", 'the text "R7"\n0.50'))
    assert plain.shape == lettered.shape
    rows = np.flatnonzero((plain != lettered).any(axis=(1, 2)))
    assert rows.min() >= PAD + 3 * 32  # small images are enlarged threefold
    assert (plain[rows.min() :] == 255).all()


def test_long_captions_are_cut_not_widened(pixels):
    short, long = (image_grid([pixels], [text], scale=1) for text in ("x", "x" * 500))
    assert short.size == long.size


def test_default_grid_is_about_square(pixels):
    sheet = image_grid([pixels] * 16, ["x"] * 16)
    assert sheet.width // 4 == image_grid([pixels], ["x"]).width
    assert sheet.height // 4 == image_grid([pixels], ["x"]).height


def test_what_is_no_image_is_refused(pixels, tmp_path):
    for bad in (pixels.float(), pixels[:1], pixels[None], MediaArtifact("text", "text", "hello", "str")):
        with pytest.raises(ArtifactError):
            write_image(bad, tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()
    with pytest.raises(ArtifactError, match="1 images, 0 captions"):
        image_grid([pixels], [])
    with pytest.raises(ArtifactError):
        image_grid([], [])


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "x.png").write_text("no image")
    for name in ("x.png", "nowhere.png"):
        with pytest.raises(DataError, match=name):
            read_image(tmp_path / name)


def test_grey_files_are_read_as_rgb(tmp_path):
    Image.new("L", (4, 2), 9).save(tmp_path / "grey.png")
    assert read_image(tmp_path / "grey.png").data.shape == (3, 2, 4)
