"""Identity checks pass for the CPU and find each lie of a device that tells one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_portable.conformance.check import Result
from omni_portable.conformance.checks.identity import CHECKS
from omni_portable.conformance.runner import run_check
from omni_portable.contracts.device import DeviceCapabilities, DeviceIdentity, StaticProfile
from tests.conformance.conformance_doubles import Altered, context, cpu

REAL = cpu()
BY_ID = {check.id: check for check in CHECKS}


def outcome(work: Path, name: str, /, **changes: Any) -> Result:
    return run_check(context(work, cpu(**changes)), BY_ID[f"identity.{name}"])


@pytest.mark.parametrize("name", BY_ID)
def test_the_cpu_passes(tmp_path: Path, name: str) -> None:
    found = run_check(context(tmp_path), BY_ID[name])
    assert found.status == "passed", (found.reason, found.detail)


def identity(**changes: Any) -> Callable[[], DeviceIdentity]:
    return lambda: replace(REAL.identity(), **changes)


def capabilities(**changes: Any) -> Callable[[], DeviceCapabilities]:
    return lambda: replace(REAL.capabilities(), **changes)


def profile(**changes: Any) -> Callable[[str], StaticProfile]:
    return lambda generation="": replace(REAL.static_profile(generation), **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "nobody"}, "name"),
        ({"identity": identity(generation="x9")}, "generation of the identity"),
        ({"identity": identity(model="Unknown")}, "model"),
        ({"identity": identity(count=0)}, "count"),
        ({"identity": identity(memory_bytes=0)}, "memory"),
        ({"torch_device_type": "meta"}, "torch device"),
        ({"capabilities": capabilities(default_dtype="float16")}, "default dtype"),
        ({"capabilities": capabilities(default_dtype_reason=" ")}, "reason of the default dtype"),
        ({"capabilities": capabilities(features={"fp8": 1})}, "features"),
        ({"capabilities": capabilities(weight_channels=())}, "weight channels"),
        ({"collectives": Altered(REAL.collectives, backend="")}, "collective backend"),
        ({"available": lambda: (False, "gone")}, "available"),
        ({"rng_state": lambda: None}, "random state"),
    ],
)
def test_an_unsound_answer_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    found = outcome(tmp_path, "device", **changes)
    assert found.status == "failed"
    assert said in found.detail.removeprefix("unsound: ").split(", ")


def test_a_generation_that_the_tables_lack(tmp_path: Path) -> None:
    assert outcome(tmp_path, "generation", generation="x9").status == "failed"


@pytest.mark.parametrize("changes", [{"driver": ""}, {"libraries": {"torch": "unknown"}}, {"libraries": {}}])
def test_missing_versions(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert outcome(tmp_path, "versions", identity=identity(**changes)).status == "failed"


CPU_CAPABILITIES = REAL.capabilities()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "other"}, "name"),
        ({"generation": "g2"}, "generation"),
        ({"torch_device_type": "meta"}, "torch device type"),
        ({"collective_backend": "mpi"}, "collective backend"),
        ({"capabilities": replace(CPU_CAPABILITIES, default_dtype="bfloat16")}, "default dtype"),
        ({"capabilities": replace(CPU_CAPABILITIES, dtypes=("float32", "float16"))}, "dtypes: float16, float32"),
        ({"capabilities": replace(CPU_CAPABILITIES, weight_channels=("ipc",))}, "weight channels"),
        ({"capabilities": replace(CPU_CAPABILITIES, features={"fp8": False})}, "names of features"),
        (
            {"capabilities": replace(CPU_CAPABILITIES, features={**CPU_CAPABILITIES.features, "fp8": True})},
            "promise 'fp8'",
        ),
        ({"default_attention": {**REAL.static_profile().default_attention, "vae": "math"}}, "default kernel of vae"),
        ({"attention_families": ("math",)}, "is not among the families"),
    ],
)
def test_tables_that_contradict_the_device(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    found = outcome(tmp_path, "profile", static_profile=profile(**changes))
    assert found.status == "failed"
    assert said in found.detail


def test_a_device_may_have_more_than_its_tables_promise(tmp_path: Path) -> None:
    features = dict.fromkeys(CPU_CAPABILITIES.features, False)
    tables = replace(CPU_CAPABILITIES, features=features)
    assert outcome(tmp_path, "profile", static_profile=profile(capabilities=tables)).status == "passed"


def test_asking_for_variables_must_not_set_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONFORMANCE_TEST", raising=False)

    def environment(role: str) -> dict[str, str]:
        monkeypatch.setenv("CONFORMANCE_TEST", role)
        return dict(os.environ)

    found = outcome(tmp_path, "environment", environment=environment)
    assert found.status == "failed"
    assert "CONFORMANCE_TEST" in found.detail


def test_two_askings_must_agree(tmp_path: Path) -> None:
    answers = iter(range(100))
    found = outcome(tmp_path, "environment", environment=lambda role: {"X": str(next(answers))})
    assert found.status == "failed"
    assert "actor" in found.detail
