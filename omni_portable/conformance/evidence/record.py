"""Making a golden recording: run freely, keep everything, take one training step. `tools/record_golden.py` calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from omni_portable.conformance.evidence.figures import COMPONENTS, decode_figures, trajectory_figures
from omni_portable.conformance.evidence.recording import Recording, digest_model
from omni_portable.conformance.evidence.replay import run_free
from omni_portable.conformance.evidence.settings import GoldenSettings, golden_setup
from omni_portable.conformance.evidence.training import golden_step, step_scalars, step_tensors, training_figures
from omni_portable.models.setup import EngineSetup, load_adapter

MARGINS = {"float32": 20.0, "float64": 20.0, "bfloat16": 4.0, "float16": 4.0}
"""Bound over largest measured distance. In fp32 another machine's kernels may sum in an order that none of the measured
variants has; in narrow dtypes nearly all of the distance is the rounding of results, which every machine shares."""

FLOORS = {
    "artifact_error_max": 1.0,
    "artifact_error_mean": 0.01,
    "engine_artifact_error_mean": 0.01,
}
"""Smallest bounds, in 8-bit levels: a value that lies on the edge between two levels may fall on either side."""
STEPS = {"artifact_error_max": 2.0}
"""Margins of figures that are whole levels, in every dtype: one level is a tie that fell on the other side."""
SMALLEST = {"float32": 1e-6, "float64": 1e-6, "bfloat16": 1e-3, "float16": 1e-4}
"""Smallest bound of every other figure by dtype: a variant may come out equal by chance (some eps of the dtype)."""


def record(setup: EngineSetup, settings: GoldenSettings) -> Recording:
    """A recording without provenance, spread and bounds, from the device and dtype of `setup`."""
    own = golden_setup(setup, settings)
    adapter = load_adapter(own, COMPONENTS)
    cases = {case.name: run_free(adapter, settings, case, setup.load.torch_device) for case in settings.cases}
    result = golden_step(setup, settings, cases[settings.cases[0].name])
    tensors = {
        f"{case}/{name}": tensor
        for case, named in cases.items()
        for name, tensor in named.items()
        if name != "next_latents"  # the following entries of 'latents'
    }
    return Recording(
        settings=settings,
        tensors=tensors | step_tensors(result),
        scalars=step_scalars(result),
        weights=digest_model(own.load.path),
        provenance={},
        spread={},
        bounds={},
    )


def all_figures(setup: EngineSetup, recording: Recording, rows: int = 0) -> dict[str, float]:
    """Every figure of the golden checks on the device and dtype of `setup`."""
    return {
        **trajectory_figures(setup, recording, rows).values,
        **decode_figures(setup, recording).values,
        **training_figures(setup, recording).values,
    }


def with_spread(
    recording: Recording, spread: Mapping[str, Mapping[str, Mapping[str, float]]], provenance: Mapping[str, object]
) -> Recording:
    """The recording with its measured spread and the bounds that follow: margin times the largest distance by dtype."""
    bounds = {dtype: bounds_of(dtype, variants.values()) for dtype, variants in spread.items()}
    return replace(recording, spread=spread, bounds=bounds, provenance=provenance)


def bounds_of(dtype: str, variants: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Figure -> bound: margin times the largest distance over the variants, at least the floor."""
    measured = list(variants)
    bounds = {}
    for name in measured[0]:
        widest = max(figures[name] for figures in measured)
        bounds[name] = max(FLOORS.get(name, SMALLEST[dtype]), STEPS.get(name, MARGINS[dtype]) * widest)
    return bounds
