"""JPEG size rewards against sizes of files that Pillow wrote."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from reward_samples import sample

from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError
from omni_portable.reward.jpeg import COMPRESSIBILITY, INCOMPRESSIBILITY, JpegOptions
from omni_portable.reward.requirements import declared_requirements


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (3, 64, 64), generator=generator, dtype=torch.uint8)
    return [torch.full((3, 64, 64), 128, dtype=torch.uint8), noise]


@pytest.mark.parametrize("quality", [95, 40])
def test_score_is_the_published_formula(images, tmp_path, quality):
    scorer = COMPRESSIBILITY.load()(JpegOptions(quality=quality))
    output = scorer.score([sample(image) for image in images])
    for image, score, kilobytes in zip(images, output.scores, output.components["kilobytes"], strict=True):
        path = tmp_path / "image.jpg"
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path, quality=quality)
        size = path.stat().st_size
        assert kilobytes == size / 1000
        assert score == pytest.approx(-size / 1000 / 500)


def test_flat_images_compress_better_and_the_signs_are_opposite(images):
    samples = [sample(image) for image in images]
    compress = COMPRESSIBILITY.load()(JpegOptions()).score(samples)
    detail = INCOMPRESSIBILITY.load()(JpegOptions()).score(samples)
    assert compress.scores[0] > compress.scores[1]
    assert detail.scores == [-score for score in compress.scores]


def test_scale_is_an_option(images):
    samples = [sample(image) for image in images]
    plain = COMPRESSIBILITY.load()(JpegOptions()).score(samples)
    scaled = COMPRESSIBILITY.load()(JpegOptions(kilobytes_per_point=1.0)).score(samples)
    assert scaled.scores == pytest.approx([500 * score for score in plain.scores])


def test_specs_are_registered_and_say_what_is_required():
    for spec in (COMPRESSIBILITY, INCOMPRESSIBILITY):
        assert registry.spec("reward", spec.name) is spec
        scorer = spec.load()(JpegOptions(artifact="frame"))
        assert scorer.name == spec.name
        assert scorer.requires == declared_requirements(spec, JpegOptions(artifact="frame"))


@pytest.mark.parametrize("bad", [{"quality": 0}, {"quality": 101}, {"kilobytes_per_point": 0.0}])
def test_bad_options_are_refused(bad):
    with pytest.raises(ConfigError):
        JpegOptions(**bad)
