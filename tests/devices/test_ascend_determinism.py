"""What determinism sets on an NPU, in which order, and what it says it cannot promise."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from omni_devices.ascend import generations
from omni_devices.ascend.determinism import NOT_PROMISED, set_variables
from omni_devices.ascend.device import AscendDevice
from tests.support.vendor import simulate


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Puts back what determinism changes, for the tests that follow."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    was, environ = torch.are_deterministic_algorithms_enabled(), dict(os.environ)
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    torch.use_deterministic_algorithms(was)
    os.environ.clear()
    os.environ.update(environ)


class Npu:
    """torch_npu's switches as they end up."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(allow_internal_format=True)
        self.matmul = SimpleNamespace(allow_hf32=True)
        self.conv = SimpleNamespace(allow_hf32=True)
        self.jit_compile = True
        self.seed: int | None = None
        self.level: int | None = None

    def behaviours(self) -> dict[str, Any]:
        return {
            "torch_npu.npu.config": self.config,
            "torch_npu.npu.matmul": self.matmul,
            "torch_npu.npu.conv": self.conv,
            "torch_npu.npu.set_compile_mode": lambda jit_compile=False: setattr(self, "jit_compile", jit_compile),
            "torch_npu.npu.manual_seed_all": lambda seed: setattr(self, "seed", seed),
            "torch_npu.npu.set_deterministic_level": self.set_level,
        }

    def set_level(self, level: int) -> None:
        warnings.warn("After using 'torch_npu.npu.set_deterministic_level', please do not ...", stacklevel=2)
        assert torch.are_deterministic_algorithms_enabled(), "torch_npu wants to be the last"
        self.level = level


@pytest.mark.parametrize("generation", generations.NAMES)
def test_everything_that_is_reported_is_set(generation: str, recwarn: pytest.WarningsRecorder) -> None:
    npu = Npu()
    with simulate(npu.behaviours(), stack="ascend"):
        report = AscendDevice(generation).determinism.enable(11)
    assert torch.are_deterministic_algorithms_enabled()
    assert (npu.config.allow_internal_format, npu.matmul.allow_hf32, npu.conv.allow_hf32) == (False, False, False)
    assert (npu.jit_compile, npu.seed, npu.level) == (False, 11, 1)
    assert torch.initial_seed() == 11
    assert {name: os.environ[name] for name in ("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC")} == {
        "HCCL_DETERMINISTIC": "true",
        "LCCL_DETERMINISTIC": "1",
    }
    assert report.applied["HCCL_DETERMINISTIC"] == "true"
    assert report.applied["torch_npu.npu.set_deterministic_level"] == "1"
    assert report.applied["torch_npu.npu.conv.allow_hf32"] == "False"
    assert report.applied["torch.manual_seed"] == report.applied["torch_npu.npu.manual_seed_all"] == "11"
    assert set(NOT_PROMISED) < set(report.not_promised)
    assert not [warning for warning in recwarn if "set_deterministic_level" in str(warning.message)]


@pytest.mark.parametrize(("generation", "says"), [("a2", "equally many cards"), ("a3", "three ranks"), ("a5", "950s")])
def test_what_differs_between_generations_is_said(generation: str, says: str) -> None:
    with simulate(Npu().behaviours(), stack="ascend"):
        report = AscendDevice(generation).determinism.enable(0)
    assert len(report.not_promised) == len(NOT_PROMISED) + 1
    assert any(says in sentence for sentence in report.not_promised)


def test_a_torch_npu_without_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulate(Npu().behaviours(), stack="ascend"):
        import torch_npu

        monkeypatch.delattr(torch_npu.npu, "set_deterministic_level")
        monkeypatch.setattr(type(torch_npu.npu), "__getattr__", object.__getattribute__)
        report = AscendDevice("a2").determinism.enable(1)
    assert "torch_npu.npu.set_deterministic_level" not in report.applied
    assert report.applied["torch.use_deterministic_algorithms"] == "True"


def test_variables_set_too_late_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"A": "1", "B": "0"}
    assert set_variables({"A": "1", "B": "1", "C": "1"}, environ) == ()
    assert environ == {"A": "1", "B": "1", "C": "1"}
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    late = set_variables({"A": "1", "B": "2", "D": "1"}, environ)
    assert [sentence.split()[2] for sentence in late] == ["B", "D"]
    assert environ["B"] == "2"
    assert set_variables({"A": "1", "B": "2", "D": "1"}, environ) == ()
