"""The conformance check `consistency.engines` with this engine, for every diffusion family, in fp32.

Native engine, vLLM-Omni and the actor's replay: log-probs, media, and samples alone, among seven others and in another
order. Each case starts an engine, so that the cases also share out ways of running it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_portable.config.loader import load_config
from omni_portable.conformance.check import NotRun
from omni_portable.conformance.checks.consistency_engines import ENGINE_CHECKS
from omni_portable.conformance.context import Context
from omni_portable.contracts import registry
from omni_portable.contracts.errors import CapabilityError
from tests.support.engines import require_installed

require_installed("vllm", "vllm_omni")

(CHECK,) = ENGINE_CHECKS
ENGINE = "rollout.engine=vllm_omni"
RECIPES = {
    "sd3": ("sd3/flow_grpo_ocr_tiny", ("rollout.options={lora: merged}",)),
    "qwen_image": ("qwen_image/flow_grpo_ocr_tiny", ("model.lora.rank=0", "model.lora.alpha=0")),
    "qwen_image_edit": ("qwen_image_edit/flow_grpo_edit_tiny", ()),
    "flux": ("flux/flow_grpo_t2i_tiny", ()),
    "wan22/t2v": ("wan22/dance_grpo_t2v_tiny", ("rollout.options={decode_batch_size: 3}",)),
    "wan22/i2v": ("wan22/dance_grpo_i2v_tiny", ()),
    "wan22/experts": ("wan22/dance_grpo_t2v_experts_tiny", ()),
    "ltx2": ("ltx2/flow_grpo_t2av_tiny", ()),
}
REFUSED = {"minimax_h3": "minimax_h3/flow_grpo_t2va_tiny"}


def context(work: Path, recipe: str, *overrides: str) -> Context:
    config = load_config(recipe, ["device.name=cpu", "device.threads=1", *overrides])
    return Context(registry.load("device", "cpu")(), config, work)


@pytest.mark.parametrize("name", RECIPES)
def test_three_ways_to_compute_one_policy_agree(name: str, tmp_path: Path) -> None:
    recipe, overrides = RECIPES[name]
    outcome = CHECK.run(context(tmp_path, recipe, ENGINE, *overrides))
    assert {found.name: found.value for found in outcome.measurements if found.ok is False} == {}
    figures = {found.name.removeprefix("vllm_omni/"): found for found in outcome.measurements}
    assert {"log_prob_gap_to_actor", "log_prob_gap_to_native", "pearson_correlation", "media_gap_to_native"} <= {
        name for name, found in figures.items() if found.ok
    }
    assert figures["batch_size"].value == figures["samples"].value == 8
    assert outcome.facts["engines"] == "vllm_omni"


def test_full_weights_in_bf16_arrive_with_parts_that_stay_in_float32(tmp_path: Path) -> None:
    overrides = ("device.dtype=bfloat16", "model.lora.rank=0", "model.lora.alpha=0")
    outcome = CHECK.run(context(tmp_path, RECIPES["wan22/t2v"][0], ENGINE, *overrides))
    figures = {found.name: found for found in outcome.measurements}
    assert figures["vllm_omni/log_prob_gap_to_actor"].value <= 5e-3
    assert all(found.ok is None for found in figures.values())
    assert outcome.facts["dtype"] == "bfloat16"


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_agree_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    reason = "bfloat16 whatever the run's dtype"
    with pytest.raises(NotRun, match=f"serves model.family={name}; vllm_omni: .*{reason}"):
        CHECK.run(context(tmp_path, REFUSED[name]))
    with pytest.raises(CapabilityError, match=f"vllm_omni does not run model.family={name}: .*{reason}"):
        load_config(REFUSED[name], [ENGINE])


def test_every_diffusion_family_is_compared_or_refused() -> None:
    families = {
        name
        for name in registry.names("model")
        if "diffusion" in (spec := registry.spec("model", name)).capabilities.get("kinds", ())
        and spec.target.startswith("omni_portable.")
    }
    capabilities = registry.spec("rollout_engine", "vllm_omni").capabilities
    assert {name.partition("/")[0] for name in RECIPES} == set(capabilities["families"])
    assert set(REFUSED) == set(capabilities["refused_families"])
    assert set(capabilities["families"]) | set(capabilities["refused_families"]) == families
