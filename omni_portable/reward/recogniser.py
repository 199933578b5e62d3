"""Reading text in images with the PP-OCRv6 models inside the rapidocr package; never downloads anything."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rapidocr

from omni_portable.config.paths import user_path
from omni_portable.contracts.errors import RewardError
from omni_portable.reward.images import Pixels

RECOGNITION_MODEL = "PP-OCRv6_rec_small.onnx"
DETECTION_MODEL = "PP-OCRv6_det_small.onnx"
LINE_HEIGHT = 48
"""Pixels to which the recognition model scales a line of text."""
LINE_WIDTH = 320
"""Narrowest input for lines found by the detector, as published; whole images are never padded beyond a square."""


@dataclass(frozen=True)
class Reading:
    """Recognised text ('' where nothing was read) and mean character probability, rounded to 5 digits by rapidocr."""

    text: str
    confidence: float


class Recogniser:
    """PP-OCRv6 recognition on the CPU, with or without its detector.

    Without the detector, images of equal size share a forward of always `batch_size` images: a forward of another size
    takes other paths through the matrix kernels and may move a probability by 1e-5, so short batches are filled up.
    With it, images are read one by one and the lines are joined by spaces from top to bottom, left to right.

    Args:
        detect: find lines of text first.
        batch_size: images per forward (without detector).
        threads: threads of one forward.
        model_dir: folder of the ONNX files, '' for the package's own.

    Raises:
        RewardError: a model file is missing, or there are fewer cores than `threads`.
    """

    def __init__(self, *, detect: bool, batch_size: int, threads: int, model_dir: str = "") -> None:
        cores = os.cpu_count() or 1
        if threads > cores:
            raise RewardError(
                f"the ocr scorer's option threads={threads} is more than the {cores} cores of this machine",
                remedy=f"set it to {cores} or less",
            )
        self._detect, self._batch_size = detect, batch_size
        parameters = {
            "Global.log_level": "error",
            "Global.text_score": 0.0,
            "Global.use_det": detect,
            "Global.use_cls": False,
            "Rec.model_path": str(model_file(RECOGNITION_MODEL, model_dir)),
            "Rec.rec_batch_num": batch_size,
            "Rec.rec_img_shape": [3, LINE_HEIGHT, LINE_WIDTH if detect else LINE_HEIGHT],
            "EngineConfig.onnxruntime.intra_op_num_threads": threads,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
        if detect:
            parameters["Det.model_path"] = str(model_file(DETECTION_MODEL, model_dir))
        self._engine = rapidocr.RapidOCR(params=parameters)
        self.read([np.full((LINE_HEIGHT, LINE_HEIGHT, 3), 255, np.uint8)])  # rapidocr loads its models on first use

    def read(self, images: Sequence[Pixels]) -> list[Reading]:
        """One reading per (H, W, 3) uint8 RGB image, in order."""
        images = [np.ascontiguousarray(image[..., ::-1]) for image in images]  # the models expect BGR
        if self._detect:
            return [self._read_anywhere(image) for image in images]
        readings: dict[int, Reading] = {}
        for indices in _by_shape(images):
            for start in range(0, len(indices), self._batch_size):
                part = indices[start : start + self._batch_size]
                readings |= zip(part, self._read_lines([images[i] for i in part]), strict=True)
        return [readings[i] for i in range(len(images))]

    def _read_lines(self, images: list[Pixels]) -> list[Reading]:
        filler = [np.full_like(images[0], 255)] * (self._batch_size - len(images))
        result = self._engine.recognize_txt([*images, *filler])
        pairs = zip(result.txts[: len(images)], result.scores, strict=False)
        return [Reading(text, float(score)) for text, score in pairs]

    def _read_anywhere(self, image: Pixels) -> Reading:
        result = self._engine(image)
        if not result.txts:
            return Reading("", 0.0)
        return Reading(" ".join(result.txts), float(np.mean(result.scores).round(5)))


def model_file(name: str, folder: str) -> Path:
    """Where a model file is.

    Raises:
        RewardError: it is not there; rapidocr would try to download it, which is never done.
    """
    packaged = Path(rapidocr.__file__).parent / "models"
    root = user_path(folder, "the ocr scorer's option model_dir") if folder else packaged
    path = root / name
    if not path.is_file():
        raise RewardError(
            f"the ocr scorer's model file {path} does not exist",
            remedy="reinstall rapidocr==3.10.0, whose wheel holds the file, or set the option model_dir to its folder",
        )
    return path


def _by_shape(images: Sequence[Pixels]) -> list[list[int]]:
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, image in enumerate(images):
        groups[image.shape].append(index)
    return list(groups.values())
