"""Names, shapes, values and LoRAs of every family in the model classes of vLLM and vLLM-Omni that are installed.

Canonical tensors go through the engine's own loader into its own module; what is found there must be, bit for bit, what
our layout says, and reading it back must give the canonical tensors again.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import require_installed

require_installed("vllm", "vllm_omni")

ROOT = Path(__file__).parents[2]
DIFFUSION = ("sd3", "flux", "qwen_image", "qwen_image_edit", "wan22", "wan22/ti2v", "ltx2", "minimax_h3")
LANGUAGE = ("qwen3", "qwen_vl", "qwen_vl/qwen2_5", "qwen3_omni")


@functools.cache
def outcome(engine: str, names: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Of all families at once: most of the time goes into importing the engine."""
    command = [sys.executable, "-m", "tests.support.engine_layouts", engine, *names]
    environment = os.environ | {"VLLM_PLUGINS": "omni_portable", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


def findings(engine: str, names: tuple[str, ...]) -> dict[str, Any]:
    done = outcome(engine, names)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FINDINGS ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("FINDINGS "))
    return found


@pytest.mark.parametrize("name", DIFFUSION)
def test_vllm_omni_holds_what_the_layout_says(name: str) -> None:
    found = findings("vllm_omni", DIFFUSION)[name]
    assert found.pop("lora_bound") == found.pop("lora_expected") > 0
    assert {problem: names for problem, names in found.items() if names} == {}


@pytest.mark.parametrize("name", LANGUAGE)
def test_vllm_holds_what_the_layout_says(name: str) -> None:
    found = findings("vllm", LANGUAGE)[name]
    assert {problem: names for problem, names in found.items() if names} == {}
