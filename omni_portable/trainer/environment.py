"""What a run ran on, written down so that its figures can be judged."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from omni_portable.contracts.device import AttentionChoice, DeterminismReport, Device, VerifyResult

PACKAGES = ("omni-portable", "torch", "diffusers", "transformers", "peft", "numpy", "rapidocr", "onnxruntime")


def package_versions() -> dict[str, str]:
    """Installed versions of the packages that decide the numbers."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def describe_environment(
    device: Device,
    dtype: str,
    attention: Mapping[str, AttentionChoice],
    verified: list[VerifyResult],
    determinism: DeterminismReport | None,
) -> dict[str, Any]:
    """The content of environment.json."""
    return {
        "device": dataclasses.asdict(device.identity()),
        "dtype": dtype,
        "platform": platform.platform(),
        "versions": package_versions(),
        "attention": {name: dataclasses.asdict(choice) for name, choice in attention.items()},
        "attention_verified": [dataclasses.asdict(result) for result in verified],
        "determinism": dataclasses.asdict(determinism) if determinism else "not asked for",
    }
