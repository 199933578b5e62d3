"""Real recognition of drawn text: right readings, independence of the batch, no network, clear refusals."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import rapidocr
import torch
from reward_samples import draw, sample

from omni_portable.contracts import registry
from omni_portable.contracts.errors import ArtifactError, ConfigError, DataError, RewardError
from omni_portable.contracts.reward import Scorer
from omni_portable.reward.ocr import SPEC, OcrOptions
from omni_portable.reward.ocr_scorer import OcrScorer
from omni_portable.reward.recogniser import RECOGNITION_MODEL, model_file
from omni_portable.reward.requirements import declared_requirements


@pytest.fixture(scope="module")
def scorer():
    return OcrScorer(OcrOptions())


def noisy_samples(count, sizes=((48, 32),)):
    rng = np.random.default_rng(0)
    letters = "ACEFHKLMNPRTUVWXY3479"
    made = []
    for index in range(count):
        width, height = sizes[index % len(sizes)]
        text = "".join(rng.choice(list(letters), 2))
        pixels = draw(text, width, height, size=height * 2 // 3).numpy().astype(np.float64)
        pixels += rng.normal(0, 20 + 60 * (index % 2), pixels.shape)
        made.append(sample(torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)), text, index=index))
    return made


def test_reads_drawn_text(scorer):
    texts = ["R7", "K4", "HM", "3X", "PU", "A9"]
    output = scorer.score([sample(draw(text), text) for text in texts])
    assert [detail["text"] for detail in output.details] == texts
    assert output.scores == [1.0] * 6
    assert output.components["exact_match"] == [1.0] * 6
    assert output.components["edit_distance"] == [0.0] * 6
    assert min(output.components["confidence"]) > 0.8


def test_wrong_and_missing_text_score_less(scorer):
    blank = torch.full((3, 32, 48), 240, dtype=torch.uint8)
    output = scorer.score([sample(draw("R7"), "R4"), sample(draw("R7"), "HM"), sample(blank, "R7")])
    assert output.scores == [0.5, 0.0, 0.0]
    assert output.components["edit_distance"] == [1.0, 2.0, 2.0]
    assert output.details[2]["text"] == ""
    assert output.components["confidence"][2] == 0.0


def test_case_counts_only_when_asked(scorer):
    exact = OcrScorer(OcrOptions(case_sensitive=True))
    case = [sample(draw("HM"), "hm")]
    assert scorer.score(case).scores == [1.0]
    assert exact.score(case).scores == [0.0]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_a_result_does_not_depend_on_its_batch(batch_size):
    scorer = OcrScorer(OcrOptions(batch_size=batch_size))
    samples = noisy_samples(13, sizes=((48, 32), (96, 64), (64, 32), (48, 32)))
    together = scorer.score(samples)
    shuffled = scorer.score(samples[::-1])
    single = [scorer.score([one]) for one in samples]
    assert len(set(together.components["confidence"])) > 5
    for index, one in enumerate(single):
        for output, place in ((together, index), (shuffled, len(samples) - 1 - index)):
            assert output.details[place] == one.details[0]
            assert output.scores[place] == one.scores[0]
            assert output.components["confidence"][place] == one.components["confidence"][0]


def test_every_forward_is_full(monkeypatch):
    """A forward of another size takes other kernels: short batches are filled up to `batch_size`."""
    scorer, sizes = OcrScorer(OcrOptions(batch_size=4)), []
    original = rapidocr.RapidOCR.recognize_txt
    monkeypatch.setattr(
        rapidocr.RapidOCR, "recognize_txt", lambda self, images: sizes.append(len(images)) or original(self, images)
    )
    assert len(scorer.score(noisy_samples(7, sizes=((48, 32), (96, 64)))).scores) == 7
    assert sizes == [4, 4]
    scorer.score(noisy_samples(9))
    assert sizes[2:] == [4, 4, 4]


def test_raw_probabilities_do_not_depend_on_the_neighbours():
    """Not only the rounded confidence: the model's outputs are bit-equal wherever an image stands in a full batch."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model_file(RECOGNITION_MODEL, ""), options)
    images = [s.artifacts["image"].data for s in noisy_samples(4, sizes=((72, 48),))]
    pixels = torch.stack(images).numpy().astype(np.float32) / 127.5 - 1
    straight = session.run(None, {"x": pixels})[0]
    rotated = session.run(None, {"x": np.roll(pixels, 1, axis=0)})[0]
    assert np.array_equal(straight, np.roll(rotated, -1, axis=0))


def test_reproducible_across_instances():
    samples = noisy_samples(6)
    assert OcrScorer(OcrOptions()).score(samples) == OcrScorer(OcrOptions()).score(samples)


def test_detector_finds_text_anywhere():
    page = torch.full((3, 256, 384), 240, dtype=torch.uint8)
    page[:, 20:84, 40:200] = draw("OPEN", 160, 64, size=40)
    page[:, 150:214, 180:340] = draw("DAILY", 160, 64, size=40)
    samples = [sample(page, "open daily"), sample(torch.full_like(page, 240), "open daily")]
    output = OcrScorer(OcrOptions(detect=True)).score(samples)
    assert output.details[0]["text"] == "OPEN DAILY"
    assert output.scores == [1.0, 0.0]
    assert output.components["confidence"][1] == 0.0


@pytest.mark.parametrize("detect", [False, True])
def test_works_without_network(monkeypatch, detect):
    def refuse(*arguments, **keywords):
        raise AssertionError("the ocr scorer opened a network connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    scorer = OcrScorer(OcrOptions(detect=detect))
    assert scorer.score([sample(draw("R7", 240, 160, size=60), "R7")]).scores == [1.0]


def test_missing_model_is_refused_not_downloaded(tmp_path):
    with pytest.raises(RewardError, match=r"PP-OCRv6_rec_small\.onnx does not exist"):
        OcrScorer(OcrOptions(model_dir=str(tmp_path)))


def test_more_threads_than_cores_are_refused():
    with pytest.raises(RewardError, match="more than the"):
        OcrScorer(OcrOptions(threads=(os.cpu_count() or 1) + 1))


@pytest.mark.parametrize("field", ["batch_size", "threads"])
def test_bad_options_are_refused(field):
    with pytest.raises(ConfigError, match=f"{field}=0"):
        OcrOptions(**{field: 0})


def test_missing_inputs_are_named(scorer):
    with pytest.raises(DataError, match="'ground_truth'.*'g0/0'"):
        scorer.score([sample(draw("R7"))])
    with pytest.raises(ArtifactError, match="'image'"):
        scorer.score([sample(None, "R7")])
    with pytest.raises(DataError, match="no character of it counts"):
        scorer.score([sample(draw("R7"), "--")])
    with pytest.raises(DataError, match="cannot use 7"):
        scorer.score([sample(draw("R7"), 7)])
    four = replace(sample(draw("R7"), "R7").artifacts["image"], data=torch.zeros(4, 32, 48, dtype=torch.uint8))
    with pytest.raises(ArtifactError, match=r"\(4, 32, 48\)"):
        scorer.score([replace(sample(None, "R7"), artifacts={"image": four})])


def test_spec_declares_what_the_scorer_requires(scorer):
    assert registry.spec("reward", "ocr") is SPEC
    assert isinstance(scorer, Scorer)
    assert declared_requirements(SPEC, OcrOptions()) == scorer.requires
    other = OcrOptions(artifact="frame", field="answer")
    declared = declared_requirements(SPEC, other)
    assert (dict(declared.artifacts), declared.fields) == ({"frame": "image"}, ("answer",))
