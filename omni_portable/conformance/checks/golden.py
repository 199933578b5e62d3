"""A recorded fp32 CPU trajectory of a packaged model, and one training step on it, computed again on the device."""

from __future__ import annotations

from collections.abc import Callable

from omni_portable.conformance.check import Check, Measurement, NotRun, Outcome
from omni_portable.conformance.context import Context
from omni_portable.conformance.evidence.figures import Figures, decode_figures, trajectory_figures
from omni_portable.conformance.evidence.recording import (
    ABOUT,
    Recording,
    check_weights,
    golden_folder,
    model_name,
    read_recording,
)
from omni_portable.conformance.evidence.training import training_figures
from omni_portable.models.setup import EngineSetup

UNITS = {"artifact_error_max": "levels", "artifact_error_mean": "levels", "engine_artifact_error_mean": "levels"}


def _check(figures: Callable[[EngineSetup, Recording], Figures], detail: str) -> Callable[[Context], Outcome]:
    def run(context: Context) -> Outcome:
        recording, bounds = open_recording(context)
        found = figures(context.setup, recording)
        return Outcome(
            [Measurement(name, value, UNITS.get(name, ""), "<=", bounds[name]) for name, value in found.values.items()],
            f"{detail} Bounds are those of {context.model.dtype}.",
            _facts(recording),
            found.series,
        )

    return run


def open_recording(context: Context) -> tuple[Recording, dict[str, float]]:
    """The recording of the recipe's model, and its bounds for the dtype in use.

    Raises:
        NotRun: nothing is recorded for the model, or for the dtype.
        ConsistencyError: it was made with other weights.
    """
    path = context.config.model.path
    folder = golden_folder(path)
    if not (folder / ABOUT).is_file():
        raise NotRun(f"no recording for the model '{model_name(path)}'")
    recording = read_recording(folder)
    check_weights(recording, context.model.load.path)
    dtype = context.model.dtype
    if dtype not in recording.bounds:
        raise NotRun(f"the recording of '{model_name(path)}' has no bounds for the dtype {dtype}")
    return recording, dict(recording.bounds[dtype])


def _facts(recording: Recording) -> dict[str, str]:
    """Where and with what the recording was made."""
    made = recording.provenance
    versions = made.get("versions", {})
    return {
        "recorded": str(made.get("date", "")),
        "recorded on": f"{made.get('processor', '')}, kernels {made.get('kernels', '')}",
        "recorded with": ", ".join(f"{name} {versions[name]}" for name in ("torch", "diffusers") if name in versions),
    }


_PRECISION = (
    "look for arithmetic below the dtype (TF32 or other reduced-precision matmul and convolution modes), then for the "
    "attention kernel: compare with device.attention.transformer=math"
)

CHECKS: tuple[Check, ...] = (
    Check(
        "golden.trajectory",
        "golden",
        "The device draws the recorded trajectory: text embeddings, velocity, next latents, standard deviation and "
        "log-prob of every step, from recorded latents and run freely.",
        "quick",
        _check(trajectory_figures, "Every step from the recorded latents, then all steps freely from the prompts."),
        _PRECISION,
    ),
    Check(
        "golden.decode",
        "golden",
        "The recorded latents decode to the recorded pixels, and the rollout engine draws the recorded samples.",
        "quick",
        _check(decode_figures, "Pixels from recorded latents, and from the rollout engine's own run of the requests."),
        f"if only artifact_error_* fail, look at the VAE; otherwise {_PRECISION}",
    ),
    Check(
        "golden.loss-and-gradient",
        "golden",
        "One training step on the recorded trajectory has the recorded loss, gradient norms and gradient.",
        "quick",
        _check(training_figures, "Gradients are read off the weights that the train engine publishes."),
        f"if golden.trajectory passes, look at backward passes: attention first; otherwise {_PRECISION}",
    ),
)
