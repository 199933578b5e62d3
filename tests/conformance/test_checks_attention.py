"""Attention checks: the recipe's parts are proved, silent selectors and wrong kernels are found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from omni_portable.conformance.check import Result
from omni_portable.conformance.checks.attention import CHECKS
from omni_portable.conformance.runner import run_check
from omni_portable.contracts.device import AttentionRequest
from omni_portable.contracts.errors import AttentionMismatch, AttentionUnavailable
from tests.conformance.conformance_doubles import Altered, context, cpu

REAL = cpu().attention
BY_ID = {check.id: check for check in CHECKS}


def outcome(work: Path, name: str, *overrides: str, **changes: Any) -> Result:
    device = cpu(attention=Altered(REAL, **changes))
    return run_check(context(work, device, *overrides), BY_ID[f"attention.{name}"])


def test_parts_of_the_recipe_are_proved(tmp_path: Path) -> None:
    transformer, text = outcome(tmp_path, "transformer"), outcome(tmp_path, "text-encoder")
    assert (transformer.status, text.status) == ("passed", "passed")
    assert {m.name for m in transformer.measurements if m.ok} == {"forward_error", "backward_error"}
    assert {m.name for m in text.measurements if m.ok} == {"forward_error"}
    assert transformer.facts["family"] == "sdpa"
    assert transformer.facts["rollout"] == "TORCH_SDPA"


def test_a_part_that_the_model_lacks_is_not_run(tmp_path: Path) -> None:
    found = outcome(tmp_path, "language-model")
    assert (found.status, found.reason) == ("not_run", "the recipe's model has no language model with attention")


def test_a_mismatch_fails(tmp_path: Path) -> None:
    def verify(*_: object) -> None:
        raise AttentionMismatch("it differs by 3")

    assert "it differs by 3" in outcome(tmp_path, "transformer", verify=verify).reason


def test_a_kernel_that_is_not_here_fails_every_part(tmp_path: Path) -> None:
    found = outcome(tmp_path, "text-encoder", "device.attention.transformer=flash_attention_2")
    assert found.status == "failed"
    assert "flash_attention_2" in found.reason


def test_an_odd_length_is_among_the_shapes(tmp_path: Path) -> None:
    seen: list[Any] = []

    def verify(choice: Any, request: AttentionRequest, shapes: Any) -> Any:
        seen.extend(shapes)
        return REAL.verify(choice, request, shapes)

    outcome(tmp_path, "transformer", verify=verify)
    assert any(tokens % 2 for _, _, tokens, _ in seen)
    assert len({tokens for _, _, tokens, _ in seen}) == 2


def test_the_cpu_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    assert outcome(tmp_path, "refusal").status == "passed"


def test_a_silent_fallback_is_found(tmp_path: Path) -> None:
    def select(request: AttentionRequest, choice: str = "auto") -> Any:
        return REAL.select(request, "auto" if request.component == "vae" else choice)

    found = outcome(tmp_path, "refusal", select=select)
    assert found.status == "failed"
    assert found.detail.endswith("accepted by vae")


def test_a_refusal_must_help(tmp_path: Path) -> None:
    def select(request: AttentionRequest, choice: str = "auto") -> Any:
        raise AttentionUnavailable("no")

    assert "errors_without_choices is 4" in outcome(tmp_path, "refusal", select=select).reason


def test_all_families_that_are_here_are_proved(tmp_path: Path) -> None:
    found = outcome(tmp_path, "families")
    assert found.status == "passed"
    assert {"transformer.sdpa.share_of_tolerance", "transformer.math.share_of_tolerance"} <= {
        measurement.name for measurement in found.measurements
    }


def test_one_wrong_family_fails_and_the_others_are_still_measured(tmp_path: Path) -> None:
    def verify(choice: Any, request: AttentionRequest, shapes: Any) -> Any:
        if choice.family == "math" and choice.component == "transformer":
            raise AttentionMismatch("math is off")
        return REAL.verify(choice, request, shapes)

    found = outcome(tmp_path, "families", verify=verify)
    values = {measurement.name: measurement.value for measurement in found.measurements}
    assert found.status == "failed"
    assert values["transformer.math.share_of_tolerance"] == math.inf
    assert values["transformer.sdpa.share_of_tolerance"] < 1
    assert found.facts["transformer.math"] == "math is off"


def test_families_that_are_not_installed_are_said_and_not_passed(tmp_path: Path) -> None:
    calls: list[str] = []

    def select(request: AttentionRequest, choice: str = "auto") -> Any:
        if choice == "auto":
            return REAL.select(request, choice)
        calls.append(choice)
        raise AttentionUnavailable(f"'{choice}' needs a package")

    found = outcome(tmp_path, "families", select=select)
    assert calls
    assert found.status == "not_run"
