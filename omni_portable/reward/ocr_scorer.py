"""OCR reward: how close the text in an image is to the text that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from omni_portable.contracts.errors import DataError
from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.images import Pixels, sample_pictures
from omni_portable.reward.ocr import OcrOptions
from omni_portable.reward.recogniser import Reading, Recogniser
from omni_portable.reward.requirements import require_field
from omni_portable.reward.text import edit_distance, normalise, similarity


class OcrScorer:
    """score = 1 - edit distance / longer length, over normalised texts; 0 where nothing was read.

    Components: 'exact_match' (0 or 1), 'edit_distance' (characters), 'confidence' (the recogniser's mean probability
    of the characters it read, 0 where it read none). Details: 'text' as recognised, and 'target'. Of a video, all
    figures are means over the frames that are read, and 'text' is that of the first of them.

    Raises:
        RewardError: a recognition model is missing or cannot be run here.
    """

    name = "ocr"

    def __init__(self, options: OcrOptions) -> None:
        self.options = options
        self.requires = ScorerRequirements(artifacts={options.artifact: options.modality}, fields=(options.field,))
        self._recogniser = Recogniser(
            detect=options.detect,
            batch_size=options.batch_size,
            threads=options.threads,
            model_dir=options.model_dir,
        )

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        """Scores in [0, 1].

        Raises:
            DataError: the wanted text is missing, no string, or holds no character that counts.
            ArtifactError: the image is missing or no image.
        """
        targets = [self._target(sample) for sample in batch]
        pictures = [self._pictures(sample) for sample in batch]
        readings = iter(self._recogniser.read([picture for frames in pictures for picture in frames]))
        output = RewardOutput(scores=[], components={"exact_match": [], "edit_distance": [], "confidence": []})
        for target, frames in zip(targets, pictures, strict=True):
            self._append(output, target, [next(readings) for _ in frames])
        return output

    def _pictures(self, sample: RewardSample) -> list[Pixels]:
        options = self.options
        return sample_pictures(sample, options.artifact, options.modality, options.every, "the ocr scorer")

    def _append(self, output: RewardOutput, target: str, readings: Sequence[Reading]) -> None:
        wanted, seen = self._normalise(target), [self._normalise(reading.text) for reading in readings]
        output.scores.append(fmean(similarity(text, wanted) for text in seen))
        output.components["exact_match"].append(fmean(text == wanted for text in seen))
        output.components["edit_distance"].append(fmean(edit_distance(text, wanted) for text in seen))
        output.components["confidence"].append(fmean(reading.confidence for reading in readings))
        output.details.append({"text": readings[0].text, "target": target})

    def _normalise(self, text: str) -> str:
        return normalise(text, self.options.keep, self.options.case_sensitive)

    def _target(self, sample: RewardSample) -> str:
        value = require_field(sample, self.options.field, "the ocr scorer")
        if not isinstance(value, str) or not self._normalise(value):
            raise DataError(
                f"the ocr scorer cannot use {value!r} as the wanted text of the prompt {sample.prompt!r}: "
                f"with keep={self.options.keep} no character of it counts or it is no string",
                remedy="mend the row, or choose another `keep`",
            )
        return value
