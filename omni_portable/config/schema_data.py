"""The configuration of a run, `data` and `validation`: what prompts hold, and how held-out ones are drawn.

Part of :mod:`omni_portable.config.schema`, from which users import these classes. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class MediaConfig:
    modality: str = "???"
    """'image', 'video' or 'audio'; the sound of a video file may be read as audio."""
    field: str = ""
    """Field of a prompt row that holds it; empty means its name. 'images.0' is the first of a list."""
    optional: bool = False
    """Rows may leave it empty; their requests then go without it."""
    height: int = 0
    """Pixels that pictures and frames are brought to, together with `width`; 0 keeps them as they are."""
    width: int = 0
    """As `height`."""
    resize: str = "pad"
    """How: 'pad' shows all of it on white, 'crop' fills the size and cuts what stands out, 'stretch' distorts it."""
    fps: float = 0.0
    """Frames per second taken of a video (the nearest ones); 0 takes all frames."""
    max_frames: int = 0
    """Frames of a video at most, evenly spread where there are more; 0 sets no limit."""
    sample_rate: int = 0
    """Hz that sound is brought to; 0 keeps its own."""
    max_seconds: float = 0.0
    """Length at which sound is cut off; 0 sets no limit."""


@dataclass
class TargetConfig:
    fields: list[str] = field(default_factory=list)
    """Fields of a prompt row that hold the medium, one per sample: a single one to imitate, or chosen and rejected."""
    resize: str = "none"
    """'none' refuses pictures and frames of another size than the rollout's, or as in `data.media`."""


@dataclass
class DataConfig:
    train: str = "???"
    """Prompts: a .txt, .jsonl or .parquet file, or 'builtin:NAME' for a packaged set (its training split)."""
    validation: str = ""
    """Held-out prompts; empty turns validation off. With 'builtin:NAME' the packaged validation split."""
    prompt_key: str = "prompt"
    """Field that holds the prompt."""
    fields: list[str] = field(default_factory=list)
    """Further fields every row must have, besides those that the scorers declare."""
    media: dict[str, MediaConfig] = field(default_factory=dict)
    """Name -> input media of every prompt, in the order in which the model is shown them."""
    targets: dict[str, TargetConfig] = field(default_factory=dict)
    """Artifact of the model -> where training prompts hold it, for engines that take samples from the dataset."""
    train_batch_size: int = 12
    """Prompts per rollout."""
    shuffle: bool = True
    """A fresh order for every pass over the prompts; false keeps the order of the file."""
    max_validation_prompts: int = 0
    """0 uses all of them."""


@dataclass
class ValidationConfig:
    """How validation draws where it differs from training; models that write tokens have
    `rollout.validation_temperature`."""

    num_steps: int = 0
    """Denoising steps of a validation sample; 0: as `rollout.num_steps`."""
    height: int = 0
    """Pixels of a validation sample; 0: as `rollout.height`. Input media that are brought to the size of training
    samples are brought to this one instead."""
    width: int = 0
    """As `height`."""
    num_frames: int = 0
    """Frames of a validation sample; 0: as `rollout.num_frames`."""
    guidance_scale: float = 0.0
    """Classifier-free guidance of validation; 1 turns it off, 0: as `rollout.guidance_scale`."""
