"""Record the golden trajectory and the learning curves of a packaged model, or compare the host with them.

    python tools/record_golden.py                        record the trajectory, measure its spread (minutes)
    python tools/record_golden.py --learning             record the learning curves of all seeds (minutes)
    python tools/record_golden.py --check                compare; exit code 1 where a figure is above its bound
    python tools/record_golden.py --check --learning     train the first seed again and compare the curves

The trajectory is drawn on the CPU in fp32 by one thread. Its spread is how far the same computation is from it by other
means (thread counts, batch shapes, vector instructions, libraries switched off, exact fp64 arithmetic) and in narrower
dtypes; each variant runs in a process of its own, since libraries read their settings once. Bounds of the checks are
multiples of the spread: see `omni_portable.conformance.evidence.record`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from omni_portable.config.assets import assets_root
from omni_portable.config.device_choice import choose_device
from omni_portable.config.loader import load_config
from omni_portable.config.schema import DeviceConfig
from omni_portable.conformance.context import Context
from omni_portable.conformance.evidence import learning
from omni_portable.conformance.evidence.record import MARGINS, all_figures, record, with_spread
from omni_portable.conformance.evidence.recording import Recording, check_weights, read_recording, write_recording
from omni_portable.conformance.evidence.settings import GoldenCase, GoldenSettings
from omni_portable.contracts.errors import OmniPortableError
from omni_portable.models.setup import EngineSetup
from omni_portable.trainer.environment import package_versions


@dataclass(frozen=True)
class Plan:
    """What is recorded of one packaged model.

    Args:
        recipe: a recipe of the model, from which engines and kernels come, and which is trained for the curves.
        settings: of the trajectory.
        overrides: of the short runs.
        seeds: one curve each; the checks repeat the first.
    """

    recipe: str
    settings: GoldenSettings
    overrides: tuple[str, ...]
    seeds: tuple[int, ...]


PLANS = {
    "glyph-sd3": Plan(
        recipe="sd3/flow_grpo_ocr_tiny",
        settings=GoldenSettings(
            family="sd3",
            path="builtin:glyph-sd3",
            options={"max_sequence_length": 16},
            num_steps=8,
            height=32,
            width=48,
            cases=(
                GoldenCase("recipe", ('the text "R7"', 'the text "4K"', 'write "ZQ"'), "cps", 0.8, (1, 2, 3, 4)),
                GoldenCase("guided", ('the text "B3"', 'a sign "M1"'), "sde", 0.7, (0, 1, 2, 3, 4, 5, 6), 3.0),
            ),
            algorithm={
                "name": "flow_grpo",
                "step_kind": "cps",
                "noise_level": 0.8,
                "window_mode": "fixed",
                "stochastic_steps": [1, 2, 3, 4],
                "clip_ratio": 0.2,
            },
            advantages=(1.0, -1.0, 0.5),
            ratio_offsets=(0.1, -0.1, 0.4),
        ),
        # Not the recipe's OCR: over a few steps its gain is within the noise (+0.15 and 0.00 with two seeds), while the
        # size of the picture as a JPEG file rises with every seed.
        overrides=(
            "~reward.scorers.ocr",
            "+reward.scorers.size={kind:jpeg_incompressibility,kilobytes_per_point:1.0}",
            "trainer.total_steps=8",
            "trainer.validate_interval=0",
            "data.train_batch_size=4",
            "data.max_validation_prompts=128",
        ),
        seeds=tuple(range(8)),
    )
}


@dataclass(frozen=True)
class Variant:
    """The same computation by other means.

    Args:
        dtype: of the transformer, encoders and VAE.
        threads: of torch.
        rows: requests per forward of the step-by-step replay (0: a case at once).
        onednn: whether torch may use oneDNN.
        attention: kernel family of every component ('' for the default).
    """

    dtype: str = "float32"
    threads: int = 1
    rows: int = 0
    onednn: bool = True
    attention: str = ""


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "": {},
    "no vector kernels": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2 kernels": {"ATEN_CPU_CAPABILITY": "avx2"},
    "oneDNN up to SSE4.1": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "oneDNN up to AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "MKL compatible": {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"},
}
"""Variables of a process; what a processor or a build does not know changes nothing there."""

VARIANTS: dict[str, dict[str, Variant]] = {
    "": {
        "same": Variant(),
        "two threads": Variant(threads=2),
        "four threads": Variant(threads=4),
        "row by row": Variant(rows=1),
        "oneDNN off": Variant(onednn=False),
        "math attention": Variant(attention="math"),
        "exact (fp64)": Variant(dtype="float64"),
        "bf16": Variant(dtype="bfloat16"),
        "bf16, row by row": Variant(dtype="bfloat16", rows=1),
        "bf16, oneDNN off": Variant(dtype="bfloat16", onednn=False),
        "bf16, math attention": Variant(dtype="bfloat16", attention="math"),
        "fp16": Variant(dtype="float16"),
        "fp16, row by row": Variant(dtype="float16", rows=1),
        "fp16, oneDNN off": Variant(dtype="float16", onednn=False),
        "fp16, math attention": Variant(dtype="float16", attention="math"),
    },
    "no vector kernels": {
        "no vector kernels": Variant(),
        "no vector kernels, oneDNN off": Variant(onednn=False),
        "bf16, no vector kernels": Variant(dtype="bfloat16"),
    },
    "avx2 kernels": {"avx2 kernels": Variant(), "bf16, avx2 kernels": Variant(dtype="bfloat16")},
    "oneDNN up to SSE4.1": {"oneDNN up to SSE4.1": Variant()},
    "oneDNN up to AVX2": {"oneDNN up to AVX2": Variant()},
    "MKL compatible": {"MKL compatible, row by row": Variant(rows=1, onednn=False)},
}
"""Environment -> variant -> what it changes."""


def engine_setup(plan: Plan, variant: Variant, work: Path) -> EngineSetup:
    """The CPU with the plan's engines, and what the variant changes. Dtypes the device does not offer are set anyway:
    rounding is what is measured."""
    device = choose_device("cpu")
    config = load_config(plan.recipe, ["device.name=cpu", f"device.threads={variant.threads}"])
    context = Context(device, config, work)
    if variant.attention:
        components = {request.component for request in context.model.attention_requests}
        config = replace(config, device=replace(config.device, attention=dict.fromkeys(components, variant.attention)))
        context = Context(device, config, work)
    torch.set_num_threads(variant.threads)
    torch.backends.mkldnn.enabled = variant.onednn  # type: ignore[assignment]
    context.device.determinism.enable(0)
    return replace(context.setup, load=replace(context.setup.load, dtype=getattr(torch, variant.dtype)))


def measure(plan: Plan, folder: Path, environment: str) -> dict[str, dict[str, float]]:
    """Variant -> figures against the recording in `folder`, for all variants of one environment, in this process."""
    recording, measured = read_recording(folder), {}
    for name, variant in VARIANTS[environment].items():
        with tempfile.TemporaryDirectory() as scratch:
            measured[name] = all_figures(engine_setup(plan, variant, Path(scratch)), recording, variant.rows)
    return measured


def measure_elsewhere(plan: Plan, folder: Path, environment: str) -> dict[str, dict[str, float]]:
    """:func:`measure` in a process that starts with the environment's variables."""
    variables = {**os.environ, **ENVIRONMENTS[environment], "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--measure", environment, "--folder", str(folder), "--model", _model(plan)]
    finished = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"the variants of '{environment}' failed:\n{finished.stderr}")
    measured: dict[str, dict[str, float]] = json.loads(finished.stdout.splitlines()[-1])
    return measured


def record_trajectory(plan: Plan, folder: Path) -> None:
    """Draw, train once, measure the spread, write."""
    with tempfile.TemporaryDirectory() as scratch:
        recording = record(engine_setup(plan, Variant(), Path(scratch)), plan.settings)
        write_recording(Path(scratch), recording)
        spread: dict[str, dict[str, dict[str, float]]] = {}
        for environment, variants in VARIANTS.items():
            measured = measure_elsewhere(plan, Path(scratch), environment)
            for name, variant in variants.items():
                spread.setdefault(variant.dtype, {})[name] = measured[name]
                print(f"{name}: {max(measured[name].values()):.3g} at most", flush=True)
    # The recording's own rounding is part of what any fp32 device differs by.
    spread["float32"] |= spread["float64"]
    write_recording(folder, with_spread(recording, spread, provenance(threads=1)))


def check_trajectory(plan: Plan, folder: Path) -> bool:
    """Compute again on the host; print each figure beside its bound."""
    recording = read_recording(folder)
    if json.loads(json.dumps(plan.settings.as_data())) != json.loads(json.dumps(recording.settings.as_data())):
        print(f"FAILED: the settings of {_model(plan)} have changed since it was recorded")
        return False
    with tempfile.TemporaryDirectory() as scratch:
        setup = engine_setup(plan, Variant(), Path(scratch))
        check_weights(recording, setup.load.path)
        return report(recording, all_figures(setup, recording))


def report(recording: Recording, figures: dict[str, float]) -> bool:
    """Print; whether every figure is within its fp32 bound."""
    bounds = recording.bounds["float32"]
    for name, value in figures.items():
        verdict = "ok" if value <= bounds[name] else "FAILED"
        print(f"{verdict:<7}{name:<28}{value:.3g} (bound {bounds[name]:.3g})")
    print("bit for bit" if not any(figures.values()) else "not bit for bit")
    return all(value <= bounds[name] for name, value in figures.items())


def train(plan: Plan, seed: int) -> tuple[learning.Curve, dict[str, Any]]:
    """One short run with one thread; its curve and the keys that decided it."""
    with tempfile.TemporaryDirectory() as scratch:
        device = DeviceConfig(name="cpu", dtype="float32", threads=1)
        config = learning.learning_config(plan.recipe, plan.overrides, seed, Path(scratch) / "run", device, None)
        return learning.run_curve(config), learning.compared_keys(config)


def record_learning(plan: Plan, folder: Path) -> None:
    """One run per seed, one after the other."""
    curves: list[learning.Curve] = []
    keys: dict[str, Any] = {}
    for seed in plan.seeds:
        curve, keys = train(plan, seed)
        curves.append(curve)
        print(f"seed {seed}: gain {curve.gain:+.4f}, rewards {[round(r, 3) for r in curve.rewards]}", flush=True)
    reference = learning.LearningReference(plan.recipe, plan.overrides, curves, keys, provenance(threads=1))
    learning.write_reference(folder, reference)
    print(f"gain {reference.mean_gain:.4f} +- {reference.gain_deviation:.4f}, reward sd {reference.deviation:.4f}")


def check_learning(plan: Plan, folder: Path) -> bool:
    """Train the first seed again; whether its curve is the recorded one, bit for bit or within the band."""
    from omni_portable.conformance.checks.learning import judge

    reference = learning.read_reference(folder)
    curve, _ = train(plan, reference.curves[0].seed)
    measurements = judge(curve, reference).measurements
    for measurement in measurements:
        verdict = {True: "ok", False: "FAILED", None: ""}[measurement.ok]
        print(f"{verdict:<7}{measurement.name:<36}{measurement.value:.4g}")
    return all(measurement.ok is not False for measurement in measurements)


def provenance(threads: int) -> dict[str, Any]:
    """Where and with what: no path, no host name, no revision."""
    identity = choose_device("cpu").identity()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "tool": "tools/record_golden.py",
        "versions": package_versions(),
        "processor": identity.model.partition(",")[0],
        "isa": identity.libraries["isa"],
        "kernels": identity.libraries["torch_kernels"],
        "threads": threads,
        "dtype": "float32",
        "margins": MARGINS,
    }


def _model(plan: Plan) -> str:
    return next(name for name, other in PLANS.items() if other is plan)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(PLANS), default="glyph-sd3")
    parser.add_argument("--folder", type=Path, help="where recordings lie (omni_portable/assets/golden/MODEL)")
    parser.add_argument("--learning", action="store_true", help="the learning curves instead of the trajectory")
    parser.add_argument("--check", action="store_true", help="compare with what is recorded instead of recording")
    parser.add_argument("--measure", choices=sorted(VARIANTS), help="print the figures of an environment's variants")
    arguments = parser.parse_args()
    plan = PLANS[arguments.model]
    folder: Path = arguments.folder or assets_root() / "golden" / arguments.model
    try:
        if arguments.measure is not None:
            print(json.dumps(measure(plan, folder, arguments.measure)))
        elif arguments.check:
            return 0 if (check_learning if arguments.learning else check_trajectory)(plan, folder) else 1
        else:
            (record_learning if arguments.learning else record_trajectory)(plan, folder)
    except OmniPortableError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
