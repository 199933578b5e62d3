"""Attention on NVIDIA GPUs: pairs by generation, refusals, packages, and spellings that the libraries know."""

from __future__ import annotations

import pytest

from omni_devices.common.kernel_table import COMPONENTS, NO_ROLLOUT_KERNEL
from omni_devices.common.selector import TableAttention
from omni_devices.cuda import packages
from omni_devices.cuda.families import TABLE
from omni_devices.cuda.generations import GENERATIONS
from omni_portable.contracts.device import AttentionRequest, PackageNeed
from omni_portable.contracts.errors import AttentionUnavailable

INSTALLED = {
    "torch": "2.13.0+cu130",
    "kernels": "0.16.1",
    "flash-attn": "2.8.3.post2",
    "flash-attn-3": "3.0.0b1",
    "flash-attn-4": "4.0.0b18",
    "xformers": "0.0.35",
    "sageattention": "2.2.0",
}
TRAINED = AttentionRequest("transformer", dtype="bfloat16", head_dim=64, backward=True)


def _select(generation: str, request: AttentionRequest, choice: str = "auto", **versions: str | None):
    installed = {**INSTALLED, **{name.replace("_", "-"): version for name, version in versions.items()}}
    return TableAttention(TABLE, generation, "cuda", installed.get).select(request, choice)


def test_the_table_is_whole() -> None:
    assert TABLE.faults([*GENERATIONS]) == []


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    ("component", "family", "actor", "rollout"),
    [
        ("transformer", "sdpa", "native", "TORCH_SDPA"),
        ("text_encoder", "sdpa", "sdpa", "TORCH_SDPA"),
        ("vae", "sdpa", "native", "TORCH_SDPA"),
        ("language_model", "flex", "flex_attention", "FLEX_ATTENTION"),
    ],
)
def test_defaults_need_nothing_but_torch(
    generation: str, component: str, family: str, actor: str, rollout: str
) -> None:
    request = AttentionRequest(component, dtype="float32", mask="padding", backward=True)  # type: ignore[arg-type]
    choice = TableAttention(TABLE, generation, "cuda", {"torch": "2.13.0+cu130"}.get).select(request)
    assert (choice.family, choice.actor, choice.rollout) == (family, actor, rollout)
    assert choice.package == "torch 2.13.0+cu130"


@pytest.mark.parametrize(
    ("generation", "family", "actor", "rollout"),
    [
        ("sm80", "flash_attention_2", "flash", "FLASH_ATTN_HUB"),
        ("sm90", "flash_attention_2", "flash", "FLASH_ATTN_HUB"),
        ("sm89", "flash_attention_2_hub", "flash_hub", "FLASH_ATTN_HUB"),
        ("sm80", "flash_attention_2_hub_varlen", "flash_varlen_hub", "FLASH_ATTN_HUB"),
        ("sm90", "flash_attention_3", "_flash_varlen_3", "FLASH_ATTN"),
        ("sm90", "flash_attention_3_hub", "_flash_3_hub", "FLASH_ATTN_3_HUB"),
        ("sm90", "flash_attention_3_hub_varlen", "_flash_3_varlen_hub", "FLASH_ATTN_3_HUB"),
        ("sm100", "flash_attention_4_hub", "flash_4_hub", "FLASH_ATTN"),
        ("sm100", "cudnn", "_native_cudnn", "CUDNN_ATTN"),
        ("sm80", "native_flash", "_native_flash", NO_ROLLOUT_KERNEL),
        ("sm120", "native_efficient", "_native_efficient", NO_ROLLOUT_KERNEL),
        ("sm90", "xformers", "xformers", NO_ROLLOUT_KERNEL),
        ("sm90", "math", "_native_math", NO_ROLLOUT_KERNEL),
    ],
)
def test_pairs_of_a_transformer_that_trains(generation: str, family: str, actor: str, rollout: str) -> None:
    choice = _select(generation, TRAINED, family)
    assert (choice.actor, choice.actor_library, choice.rollout) == (actor, "diffusers", rollout)


@pytest.mark.parametrize(
    ("generation", "family"),
    [
        ("sm80", "flash_attention_2"),
        ("sm120", "flash_attention_2"),
        ("sm90", "flash_attention_3"),
        ("sm100", "flash_attention_4"),
    ],
)
def test_language_models_pair_with_the_version_that_vllm_runs_there(generation: str, family: str) -> None:
    request = AttentionRequest("language_model", dtype="bfloat16", head_dim=128, causal=True, variable_length=True)
    choice = _select(generation, request, family)
    assert (choice.actor, choice.rollout) == (family, "FLASH_ATTN")


@pytest.mark.parametrize(
    ("generation", "request_", "family", "says"),
    [
        ("sm80", TRAINED, "flash_attention_3", "needs one of sm90"),
        ("sm90", TRAINED, "flash_attention_4_hub", "needs one of sm100"),
        ("sm100", TRAINED, "flash_attention_2", "needs one of sm80, sm89, sm90, sm120"),
        ("sm120", TRAINED, "flash_attention_2", "no FlashAttention 2 for Blackwell"),
        ("sm100", TRAINED, "flash_attention_4", "has no such kernel for diffusion transformers"),
        ("sm120", TRAINED, "xformers", "needs one of"),
        ("sm90", TRAINED, "sage", "no backward pass"),
        ("sm90", TRAINED, "aiter", "AMD's kernel library; no package adds one"),
        ("sm90", TRAINED, "fusion_attention", "Ascend"),
        ("sm90", TRAINED, "flash", "write 'flash_attention_2'"),
        ("sm90", TRAINED, "flex", "misreads masks"),
        (
            "sm90",
            AttentionRequest("language_model", dtype="bfloat16"),
            "flash_attention_2",
            "runs another FlashAttention on this generation",
        ),
        ("sm90", AttentionRequest("vae", dtype="bfloat16"), "cudnn", "call sdpa themselves"),
        ("sm90", AttentionRequest("text_encoder", dtype="bfloat16"), "flash_attention_3", "run sdpa on both sides"),
        ("sm90", AttentionRequest("transformer"), "flash_attention_3_hub", "does not run in float32"),
        (
            "sm90",
            AttentionRequest("transformer", dtype="bfloat16", mask="padding"),
            "flash_attention_3_hub",
            "takes no padding mask",
        ),
        (
            "sm90",
            AttentionRequest("transformer", dtype="bfloat16", mask="dense"),
            "flash_attention_3_hub_varlen",
            "takes no dense mask",
        ),
        ("sm80", AttentionRequest("transformer", dtype="bfloat16", mask="dense"), "xformers", "takes no dense mask"),
        ("sm90", AttentionRequest("transformer", dtype="bfloat16", head_dim=260), "flash_attention_2_hub", "above"),
        ("sm90", AttentionRequest("transformer", dtype="bfloat16", head_dim=60), "cudnn", "no multiple of 8"),
        ("sm80", AttentionRequest("transformer", dtype="bfloat16", head_dim=192), "cudnn", "limit of 128"),
        ("sm89", AttentionRequest("transformer", dtype="bfloat16", head_dim=256), "native_flash", "limit of 192"),
        (
            "sm90",
            AttentionRequest("transformer", dtype="bfloat16", deterministic=True),
            "flash_attention_3_hub",
            "not deterministic",
        ),
        (
            "sm90",
            AttentionRequest("transformer", dtype="bfloat16", grouped_query=True),
            "native_efficient",
            "no grouped-query",
        ),
    ],
)
def test_what_a_kernel_cannot_do_is_refused(
    generation: str, request_: AttentionRequest, family: str, says: str
) -> None:
    with pytest.raises(AttentionUnavailable, match=says) as caught:
        _select(generation, request_, family)
    assert "sdpa" in caught.value.choices


def test_head_dimensions_of_cudnn_reach_further_on_hopper() -> None:
    request = AttentionRequest("transformer", dtype="bfloat16", head_dim=256)
    assert _select("sm90", request, "cudnn").rollout == "CUDNN_ATTN"


def test_sage_serves_what_does_not_train() -> None:
    request = AttentionRequest("transformer", dtype="bfloat16", head_dim=64)
    choice = _select("sm89", request, "sage")
    assert (choice.actor, choice.rollout) == ("sage", "SAGE_ATTN")


@pytest.mark.parametrize(
    ("generation", "request_", "family", "versions", "says"),
    [
        ("sm80", TRAINED, "flash_attention_2", {"flash_attn": None}, "flash-attn>=2.8.3,<2.9, which is not installed"),
        ("sm80", TRAINED, "flash_attention_2", {"flash_attn": "2.6.3"}, "but 2.6.3 is installed"),
        ("sm90", TRAINED, "flash_attention_3", {"flash_attn_3": None}, "flash-attn-3"),
        ("sm90", TRAINED, "flash_attention_3_hub", {"kernels": "0.12.0"}, "but 0.12.0 is installed"),
        ("sm90", TRAINED, "xformers", {"xformers": None}, "xformers==0.0.35"),
        (
            "sm90",
            AttentionRequest("transformer", dtype="bfloat16"),
            "sage",
            {"sageattention": "1.0.6"},
            "but 1.0.6 is installed",
        ),
        (
            "sm100",
            AttentionRequest("language_model", dtype="bfloat16"),
            "flash_attention_4",
            {"flash_attn_4": "4.0.0b36"},
            "but 4.0.0b36 is installed",
        ),
    ],
)
def test_a_missing_or_wrong_package_is_refused_with_its_command(
    generation: str, request_: AttentionRequest, family: str, versions: dict[str, str | None], says: str
) -> None:
    with pytest.raises(AttentionUnavailable, match=says) as caught:
        _select(generation, request_, family, **versions)
    lacking = next(iter(versions)).replace("_", "-")
    need = next(need for need in packages.PACKAGES if need.distribution == lacking)
    assert caught.value.remedy.startswith(need.install)


def test_planning_says_what_must_be_installed() -> None:
    choice = TableAttention(TABLE, "sm90", "cuda", None).select(TRAINED, "flash_attention_3")
    assert choice.package == "flash-attn-3>=3.0.0b1,<4"
    assert "fa3-fwd==0.0.3" in choice.reason


def test_spellings_of_the_actor_are_registered() -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName
    from transformers import AttentionInterface

    known = {
        "diffusers": {name.value for name in AttentionBackendName},
        "transformers": {"eager", *AttentionInterface()},
    }
    for row in TABLE.rows:
        for component, names in row.names.items():
            assert component in COMPONENTS
            assert names.actor in known[names.actor_library], names.actor


def test_dense_flash_3_of_the_installed_diffusers_still_has_no_backward_pass() -> None:
    """Why the varlen spelling is used: when this fails, '_flash_3' may be."""
    from diffusers.models.attention_dispatch import _wrapped_flash_attn_3

    assert _wrapped_flash_attn_3._backward_fn is None


@pytest.mark.parametrize("need", packages.PACKAGES, ids=lambda need: need.distribution)
def test_every_command_installs_a_version_that_is_right(need: PackageNeed) -> None:
    from packaging.specifiers import SpecifierSet

    assert need.install.startswith("pip install ")
    assert need.specifier
    SpecifierSet(need.specifier)
    source = {"flash-attn-3": "hopper", "sageattention": "SageAttention"}
    assert source.get(need.distribution, need.distribution) in need.install


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "dense"])
def test_flex_is_proved_with_its_own_kind_of_mask(monkeypatch: pytest.MonkeyPatch, mask: str, causal: bool) -> None:
    from transformers.integrations import flex_attention

    # as inside of a compiled model: transformers then takes the function that is not compiled, which a CPU runs at once
    monkeypatch.setattr(flex_attention, "is_torchdynamo_compiling", lambda: True)
    request = AttentionRequest("language_model", mask=mask, causal=causal, grouped_query=True)  # type: ignore[arg-type]
    selector = TableAttention(TABLE, "sm90", "cpu", INSTALLED.get)
    result = selector.verify(selector.select(request), request, [(2, 4, 40, 16)])
    assert result.max_forward_error < 1e-5
