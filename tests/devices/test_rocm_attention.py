"""Attention on AMD GPUs: pairs by generation, refusals, packages, and the switch that flash-attn reads."""

from __future__ import annotations

import pytest

from omni_devices.common.kernel_table import NO_ROLLOUT_KERNEL
from omni_devices.cuda.families import TABLE as NVIDIA
from omni_devices.rocm import packages
from omni_devices.rocm.attention import SWITCH, RocmAttention
from omni_devices.rocm.families import TABLE
from omni_devices.rocm.generations import GENERATIONS
from omni_portable.contracts.device import AttentionChoice, AttentionRequest, PackageNeed
from omni_portable.contracts.errors import AttentionUnavailable

INSTALLED = {"torch": "2.12.0+git6bbd260", "kernels": "0.16.1", "flash-attn": "2.8.3", "amd-aiter": "0.1.21.post2"}
HALF = AttentionRequest("transformer", dtype="bfloat16", head_dim=64)
TRAINED = AttentionRequest("transformer", dtype="bfloat16", head_dim=64, backward=True)
PACKED = AttentionRequest("language_model", dtype="bfloat16", head_dim=128, causal=True, variable_length=True)


@pytest.fixture(autouse=True)
def no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)


def _select(generation: str, request: AttentionRequest, choice: str = "auto") -> AttentionChoice:
    return RocmAttention(generation, INSTALLED.get).select(request, choice)


def test_the_table_is_whole() -> None:
    assert TABLE.faults([*GENERATIONS]) == []


def test_every_family_of_the_other_vendor_is_offered_or_explained() -> None:
    known = {row.family for row in TABLE.rows} | set(TABLE.elsewhere)
    assert known >= {row.family for row in NVIDIA.rows}
    assert {row.family for row in NVIDIA.rows} | set(NVIDIA.elsewhere) >= {row.family for row in TABLE.rows}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    ("component", "actor", "rollout"),
    [
        ("transformer", "native", "TORCH_SDPA"),
        ("text_encoder", "sdpa", "TORCH_SDPA"),
        ("vae", "native", "TORCH_SDPA"),
        ("language_model", "flex_attention", "FLEX_ATTENTION"),
    ],
)
def test_defaults_need_nothing_but_torch(generation: str, component: str, actor: str, rollout: str) -> None:
    request = AttentionRequest(component, dtype="float32", mask="padding", backward=True)  # type: ignore[arg-type]
    choice = RocmAttention(generation, {"torch": "2.12.0"}.get).select(request)
    assert (choice.actor, choice.rollout, choice.package) == (actor, rollout, "torch 2.12.0")


@pytest.mark.parametrize(
    ("generation", "request_", "family", "actor", "rollout"),
    [
        ("gfx942", HALF, "aiter", "aiter_fa2_hub", "FLASH_ATTN"),
        ("gfx950", HALF, "aiter", "aiter_fa2_hub", "FLASH_ATTN"),
        ("gfx90a", TRAINED, "flash_attention_2", "flash", NO_ROLLOUT_KERNEL),
        ("gfx942", PACKED, "flash_attention_2", "flash_attention_2", "FLASH_ATTN"),
        ("gfx90a", TRAINED, "math", "_native_math", NO_ROLLOUT_KERNEL),
    ],
)
def test_pairs(generation: str, request_: AttentionRequest, family: str, actor: str, rollout: str) -> None:
    choice = _select(generation, request_, family)
    assert (choice.family, choice.actor, choice.rollout) == (family, actor, rollout)


@pytest.mark.parametrize(
    ("generation", "request_", "family", "says"),
    [
        ("gfx90a", HALF, "aiter", "needs one of gfx942, gfx950"),
        ("gfx942", TRAINED, "aiter", "no backward pass"),
        ("gfx942", AttentionRequest("transformer", dtype="float16"), "aiter", "does not run in float16"),
        ("gfx942", AttentionRequest("transformer", dtype="bfloat16", mask="padding"), "aiter", "no padding mask"),
        ("gfx942", TRAINED, "flash_attention_3", "NVIDIA GPUs; no package adds one"),
        ("gfx942", TRAINED, "flash_attention_2_hub", "replaces hub kernels by AITER"),
        ("gfx942", TRAINED, "cudnn", "NVIDIA's library"),
        ("gfx942", TRAINED, "sage", "no backward pass"),
        ("gfx942", TRAINED, "native_flash", "AOTriton"),
        ("gfx942", AttentionRequest("transformer", dtype="bfloat16", mask="dense"), "flash_attention_2", "no dense"),
        ("gfx942", AttentionRequest("transformer", dtype="bfloat16", head_dim=512), "flash_attention_2", "above"),
        ("gfx942", AttentionRequest("vae", dtype="bfloat16"), "flash_attention_2", "call sdpa themselves"),
        ("gfx942", AttentionRequest("language_model", dtype="bfloat16"), "aiter", "kernels of its own"),
    ],
)
def test_what_a_kernel_cannot_do_is_refused(
    generation: str, request_: AttentionRequest, family: str, says: str
) -> None:
    with pytest.raises(AttentionUnavailable, match=says) as caught:
        _select(generation, request_, family)
    assert "sdpa" in caught.value.choices


@pytest.mark.parametrize(("version", "says"), [(None, "which is not installed"), ("2.7.3", "but 2.7.3 is installed")])
def test_a_missing_or_wrong_package_is_refused_with_its_command(version: str | None, says: str) -> None:
    with pytest.raises(AttentionUnavailable, match=says) as caught:
        RocmAttention("gfx942", {**INSTALLED, "flash-attn": version}.get).select(TRAINED, "flash_attention_2")
    assert packages.WHEELS in caught.value.remedy


@pytest.mark.parametrize(
    ("switch", "family", "runs", "remedy"),
    [
        ("TRUE", "flash_attention_2", "flash_attention_2_triton", f"{SWITCH}=FALSE"),
        (None, "flash_attention_2_triton", "flash_attention_2", f"{SWITCH}=TRUE"),
        ("true", "flash_attention_2_triton", "flash_attention_2", f"{SWITCH}=TRUE"),
    ],
)
def test_the_switch_of_flash_attn_must_agree(
    monkeypatch: pytest.MonkeyPatch, switch: str | None, family: str, runs: str, remedy: str
) -> None:
    if switch:
        monkeypatch.setenv(SWITCH, switch)
    with pytest.raises(AttentionUnavailable, match=f"would run '{runs}'") as caught:
        _select("gfx942", TRAINED, family)
    assert caught.value.remedy.endswith(remedy)
    assert caught.value.choices == (runs,)
    assert _select("gfx942", TRAINED, runs).family == runs
    assert _select("gfx942", TRAINED).family == "sdpa"


def test_planning_looks_neither_at_packages_nor_at_the_switch() -> None:
    choice = RocmAttention("gfx942", None).select(TRAINED, "flash_attention_2_triton")
    assert choice.package == "flash-attn==2.8.3"


def test_spellings_of_the_actor_are_registered() -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName
    from transformers import AttentionInterface

    known = {
        "diffusers": {name.value for name in AttentionBackendName},
        "transformers": {"eager", *AttentionInterface()},
    }
    for row in TABLE.rows:
        for names in row.names.values():
            assert names.actor in known[names.actor_library], names.actor


@pytest.mark.parametrize("need", packages.PACKAGES, ids=lambda need: need.distribution)
def test_every_command_installs_a_version_that_is_right(need: PackageNeed) -> None:
    assert need.install.startswith("pip install ")
    assert f"'{need.distribution}{need.specifier}'" in need.install
    assert need.install.endswith(packages.CONSTRAINTS) or packages.WHEELS in need.install
