"""Ascend's kernel table: what each generation offers and refuses, and proofs through the real libraries."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import metadata
from typing import Any, get_args

import pytest
import torch

from omni_devices.ascend import generations
from omni_devices.ascend.attention import AscendAttention
from omni_devices.ascend.kernels import TABLE
from omni_portable.contracts.device import AttentionRequest, Component
from omni_portable.contracts.errors import AttentionMismatch, AttentionUnavailable
from tests.devices import ascend_fakes

COMPONENTS: tuple[Component, ...] = get_args(Component)
PINNED = {"torch": "2.10.0", "torch-npu": "2.10.0.post4"}


def selector(generation: str = "a2", **versions: str | None) -> AscendAttention:
    """With the pinned packages, or others ('torch_npu' for 'torch-npu'); kernels run on the CPU."""
    found = {**PINNED, **{name.replace("_", "-"): version for name, version in versions.items()}}
    return AscendAttention(generation, lookup=found.get, torch_device_type="cpu")


def test_the_table_is_sound() -> None:
    assert TABLE.faults(generations.NAMES) == []
    assert TABLE.device == "ascend"


@pytest.mark.parametrize("generation", generations.NAMES)
@pytest.mark.parametrize("component", COMPONENTS)
def test_the_default_needs_nothing_beside_torch_npu(generation: str, component: Component) -> None:
    choice = selector(generation).select(AttentionRequest(component, "bfloat16", backward=True, deterministic=True))
    assert choice.family == "sdpa"
    assert choice.package == "torch 2.10.0, torch-npu 2.10.0.post4"
    assert f"documented default of 'ascend:{generation}'" in choice.reason
    assert choice.rollout == ("CUSTOM" if component == "language_model" else "TORCH_SDPA")


@pytest.mark.parametrize(
    ("component", "actor", "library", "rollout"),
    [
        ("transformer", "_native_npu", "diffusers", "FLASH_ATTN"),
        ("text_encoder", "flash_attention_2", "transformers", "FLASH_ATTN"),
        ("language_model", "flash_attention_2", "transformers", "CUSTOM"),
    ],
)
@pytest.mark.parametrize("generation", generations.NAMES)
def test_pairs_of_fusion_attention(
    component: Component, actor: str, library: str, rollout: str, generation: str
) -> None:
    choice = selector(generation).select(AttentionRequest(component, "bfloat16", backward=True), "fusion_attention")
    assert (choice.actor, choice.actor_library, choice.rollout) == (actor, library, rollout)
    assert "mindiesd>=3.1,<4" in choice.reason


def test_spellings_exist_in_the_libraries() -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName
    from transformers import AttentionInterface

    known = {
        "diffusers": {name.value for name in AttentionBackendName},
        "transformers": {*AttentionInterface(), "eager"},
    }
    for row in TABLE.rows:
        for names in row.names.values():
            assert names.actor in known[names.actor_library]


@pytest.mark.parametrize(
    ("request_", "family", "says"),
    [
        (AttentionRequest("transformer", "bfloat16", causal=True), "fusion_attention", "cannot be causal"),
        (AttentionRequest("transformer", "bfloat16", grouped_query=True), "fusion_attention", "no grouped-query"),
        (AttentionRequest("transformer", "bfloat16", variable_length=True), "fusion_attention", "no packed sequences"),
        (AttentionRequest("transformer", "bfloat16", mask="dense"), "fusion_attention", "no dense mask"),
        (AttentionRequest("transformer", "float32"), "fusion_attention", "does not run in float32"),
        (AttentionRequest("transformer", "bfloat16", head_dim=1024), "fusion_attention", "above its limit of 768"),
        (AttentionRequest("transformer", "float64"), "sdpa", "does not run in float64"),
        (AttentionRequest("vae", "bfloat16"), "fusion_attention", "cannot be switched"),
        (AttentionRequest("vae", "bfloat16"), "math", "cannot be switched"),
        (AttentionRequest("transformer", "bfloat16"), "math", "torch_npu ignores the choice of math"),
        (AttentionRequest("language_model", "bfloat16"), "fused_infer_attention", "neither diffusers nor transformers"),
        (AttentionRequest("transformer", "bfloat16"), "flash_attention_npu", "no actor can run it"),
        (AttentionRequest("transformer", "bfloat16"), "flash_attention_2", "flash-attn has no Ascend kernel"),
        (AttentionRequest("transformer", "bfloat16"), "prompt_flash_attention", "raises on the 950"),
        (AttentionRequest("transformer", "bfloat16"), "npu_fusion_attention", "did you mean 'fusion_attention'"),
        (AttentionRequest("transformer", "bfloat16"), "_native_npu", "write 'fusion_attention'"),
        (AttentionRequest("transformer", "bfloat16"), "TORCH_SDPA", "write 'sdpa'"),
        (AttentionRequest("transformer", "bfloat16"), "nonsense", "no such kernel family"),
    ],
)
def test_refusals(request_: AttentionRequest, family: str, says: str) -> None:
    with pytest.raises(AttentionUnavailable, match=says) as caught:
        selector("a3").select(request_, family)
    assert f"for {request_.component} on 'ascend:a3'" in str(caught.value)
    for choice in caught.value.choices:
        assert selector("a3").select(request_, choice).family == choice


def test_a_language_model_may_be_causal_grouped_and_packed() -> None:
    request = AttentionRequest(
        "language_model",
        "float16",
        128,
        "padding",
        causal=True,
        grouped_query=True,
        variable_length=True,
        backward=True,
    )
    assert selector("a5").select(request, "fusion_attention").actor == "flash_attention_2"


def test_flash_attn_npu_is_refused_on_a_950_for_another_reason() -> None:
    with pytest.raises(AttentionUnavailable, match="it needs one of a2, a3"):
        selector("a5").select(AttentionRequest("transformer", "bfloat16"), "flash_attention_npu")


@pytest.mark.parametrize(
    ("versions", "says", "install"),
    [
        ({"torch_npu": None}, "torch-npu>=2.10,<2.14, which is not installed", "pip install torch-npu==2.10.0.post4"),
        ({"torch_npu": "2.9.0"}, "but 2.9.0 is installed", "pip install torch-npu==2.10.0.post4"),
        ({"torch": "2.14.0"}, "needs torch>=2.10,<2.14, but 2.14.0 is installed", "pip install torch==2.10.0"),
    ],
)
def test_packages_that_are_missing_or_wrong(versions: dict[str, str | None], says: str, install: str) -> None:
    with pytest.raises(AttentionUnavailable, match=says) as caught:
        selector(**versions).select(AttentionRequest("transformer", "bfloat16"), "fusion_attention")
    assert install in str(caught.value)


def test_planning_looks_at_no_package() -> None:
    choice = AscendAttention("a2", lookup=None).select(AttentionRequest("transformer", "bfloat16"), "fusion_attention")
    assert choice.package == "torch>=2.10,<2.14, torch-npu>=2.10,<2.14"


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """diffusers and transformers as they are where torch_npu is installed, over the fake operator; layouts it saw."""
    from diffusers.models import attention_dispatch
    from transformers import modeling_flash_attention_utils as flash
    from transformers.integrations import npu_flash_attention

    layouts: list[str] = []
    signature = inspect.signature(ascend_fakes.npu_fusion_attention)

    def operator(*positional: Any, **named: Any) -> tuple[Any, ...]:
        layouts.append(signature.bind(*positional, **named).arguments["input_layout"])
        return ascend_fakes.npu_fusion_attention(*positional, **named)

    monkeypatch.setattr(attention_dispatch, "_CAN_USE_NPU_ATTN", True)
    monkeypatch.setattr(attention_dispatch, "npu_fusion_attention", operator)
    monkeypatch.setattr(npu_flash_attention, "npu_fusion_attention", operator, raising=False)
    monkeypatch.setattr(npu_flash_attention, "ATTN_MASK_NPU_CACHE", {})
    monkeypatch.setattr(flash, "is_torch_npu_available", lambda: True)
    for name in ("_loaded_implementation", "_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn", "_pad_fn"):
        monkeypatch.setattr(flash, name, None)
    monkeypatch.setattr(flash, "_unpad_fn", None)
    monkeypatch.setattr(flash, "_process_flash_kwargs_fn", None)
    with ascend_fakes.operator_installed(operator):
        yield layouts


SHAPES = [(2, 4, 17, 16), (1, 3, 8, 32)]


@pytest.mark.parametrize("mask", ["none", "padding"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_proof_of_the_transformers_kernel(mask: Any, dtype: str, libraries: list[str]) -> None:
    request = AttentionRequest("transformer", dtype, mask=mask, backward=True, deterministic=True)
    attention = selector()
    result = attention.verify(attention.select(request, "fusion_attention"), request, SHAPES)
    assert result.max_forward_error <= result.tolerance
    assert result.max_backward_error is not None
    assert result.max_backward_error <= result.tolerance
    assert set(libraries) == {"BSND"}, "diffusers' call"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding"])
def test_proof_of_the_language_models_kernel(mask: Any, causal: bool, libraries: list[str]) -> None:
    request = AttentionRequest(
        "language_model", "bfloat16", mask=mask, causal=causal, grouped_query=True, backward=True, deterministic=True
    )
    attention = selector("a5")
    result = attention.verify(attention.select(request, "fusion_attention"), request, SHAPES)
    assert result.max_forward_error <= result.tolerance
    assert set(libraries) == {"TND" if mask == "padding" else "BSND"}, "transformers' call"


@pytest.mark.parametrize("family", ["sdpa", "math"])
def test_proof_of_the_other_families(family: str) -> None:
    request = AttentionRequest("text_encoder", "float32", mask="dense", backward=True, deterministic=True)
    attention = selector()
    assert attention.verify(attention.select(request, family), request, SHAPES).max_forward_error <= 1e-5


@pytest.mark.usefixtures("libraries")
def test_a_wrong_operator_is_told_from_a_wrong_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that ignores masks is the operator's fault; a library that passes none is not."""
    from diffusers.models import attention_dispatch

    def deaf(*tensors: Any, **named: Any) -> tuple[Any, ...]:
        return ascend_fakes.npu_fusion_attention(*tensors, **{**named, "atten_mask": None})

    request = AttentionRequest("transformer", "bfloat16", mask="padding")
    attention = selector()
    choice = attention.select(request, "fusion_attention")
    monkeypatch.setattr(attention_dispatch, "npu_fusion_attention", deaf)
    with pytest.raises(AttentionMismatch, match="'_native_npu' of diffusers.*the library calls it wrongly") as caught:
        attention.verify(choice, request, SHAPES)
    assert "sdpa" in caught.value.choices
    with ascend_fakes.operator_installed(deaf):
        with pytest.raises(AttentionMismatch, match="'_native_npu'.*by itself.*differs") as caught:
            attention.verify(choice, request, SHAPES)
    assert "CANN and torch_npu belong together" in str(caught.value)
    assert caught.value.choices == ("sdpa",)


@pytest.mark.usefixtures("libraries")
def test_an_operator_with_two_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers.models import attention_dispatch

    noise = iter(range(1, 99))

    def restless(*tensors: Any, **named: Any) -> tuple[Any, ...]:
        out, *rest = ascend_fakes.npu_fusion_attention(*tensors, **named)
        return out + next(noise) * 1e-3, *rest

    request = AttentionRequest("transformer", "bfloat16", deterministic=True)
    attention = selector()
    choice = attention.select(request, "fusion_attention")
    monkeypatch.setattr(attention_dispatch, "npu_fusion_attention", restless)
    with ascend_fakes.operator_installed(restless):
        with pytest.raises(AttentionMismatch, match="two results.*by itself.*gives two results for one input"):
            attention.verify(choice, request, SHAPES)


def test_other_families_are_not_blamed_on_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_devices.common import library_kernels

    monkeypatch.setattr(library_kernels, "kernel", lambda choice: lambda query, *rest: query)
    request = AttentionRequest("transformer", "bfloat16")
    attention = selector()
    with pytest.raises(AttentionMismatch, match="'native' of diffusers.*differs") as caught:
        attention.verify(attention.select(request), request, SHAPES)
    assert "operator" not in str(caught.value)


def test_a_proof_of_what_is_not_offered_is_refused() -> None:
    attention = selector()
    choice = attention.select(AttentionRequest("transformer", "bfloat16"), "fusion_attention")
    with pytest.raises(AttentionUnavailable, match="does not run in float64"):
        attention.verify(choice, AttentionRequest("transformer", "float64"), SHAPES)


@pytest.mark.usefixtures("libraries")
def test_diffusers_ignores_causal_and_misreads_additive_masks() -> None:
    """Why the table refuses them: if this fails, diffusers has mended its backend, and the table may offer more."""
    from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

    x = torch.randn(1, 5, 2, 8, generator=torch.Generator().manual_seed(0))

    def run(**more: Any) -> torch.Tensor:
        out: torch.Tensor = dispatch_attention_fn(x, x, x, backend=AttentionBackendName("_native_npu"), **more)
        return out

    keep = torch.tensor([True, True, False, False, True])[None, None, None]
    additive = torch.zeros(keep.shape).masked_fill(~keep, float("-inf"))
    assert torch.equal(run(is_causal=True), run())
    assert torch.equal(run(attn_mask=additive), run(attn_mask=~keep))
    assert not torch.allclose(run(attn_mask=additive), run(attn_mask=keep))


def test_versions_are_read_from_metadata_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in PINNED:
            raise metadata.PackageNotFoundError(name)
        return PINNED[name]

    monkeypatch.setattr(metadata, "version", version)
    choice = AscendAttention("a3").select(AttentionRequest("transformer", "bfloat16"))
    assert choice.package == "torch 2.10.0, torch-npu 2.10.0.post4"
