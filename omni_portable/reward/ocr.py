"""The scorer 'ocr': does the image show the text that was asked for? Spec and options only."""

from __future__ import annotations

from dataclasses import dataclass

from omni_portable.contracts.errors import ConfigError
from omni_portable.contracts.registry import PluginSpec
from omni_portable.reward.looking import Looked, check_every
from omni_portable.reward.text import Keep


@dataclass(frozen=True)
class OcrOptions:
    artifact: str = "image"
    """Name of the artifact to read."""
    modality: Looked = "image"
    """What it is: 'image', or 'video', of which every `every`-th frame counts alike."""
    every: int = 4
    """Step between the frames of a video that are read."""
    field: str = "ground_truth"
    """Field of the prompt row that holds the text to be shown."""
    detect: bool = False
    """False reads the whole image as one line of text; True finds lines anywhere in a large image first."""
    batch_size: int = 8
    """Images of equal size per forward; smaller batches are filled up, so a result never depends on its neighbours."""
    threads: int = 1
    """CPU threads of the recogniser; results are reproducible for a fixed number."""
    keep: Keep = "alphanumeric"
    """Characters that count: 'alphanumeric', 'visible' (all but white space) or 'all'."""
    case_sensitive: bool = False
    """Whether upper and lower case count as different."""
    model_dir: str = ""
    """Folder with the PP-OCRv6 ONNX files; empty takes those inside the rapidocr package."""

    def __post_init__(self) -> None:
        check_every("ocr", self.every)
        for name in ("batch_size", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"the ocr scorer's option {name}={getattr(self, name)} must be at least 1")


SPEC = PluginSpec(
    name="ocr",
    summary="1 - edit distance between recognised and wanted text / longer length (PP-OCRv6, offline, CPU)",
    target="omni_portable.reward.ocr_scorer:OcrScorer",
    options=OcrOptions,
    capabilities={"artifacts": {"artifact": "modality"}, "fields": ("field",)},
)
