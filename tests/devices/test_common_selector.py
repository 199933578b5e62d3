"""Selection from a table that has everything: generations, packages, shapes, withheld components, planning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from omni_devices.common import attention_check, library_kernels, packages
from omni_devices.common.kernel_table import COMPONENTS, NO_ROLLOUT_KERNEL, KernelRow, KernelTable, Names
from omni_devices.common.selector import TableAttention
from omni_devices.cpu import families
from omni_portable.contracts.device import AttentionChoice, AttentionRequest, PackageNeed
from omni_portable.contracts.errors import AttentionMismatch, AttentionUnavailable

FAST = PackageNeed("fast-kernels", ">=2.6,<3", "fast attention", "pip install 'fast-kernels>=2.6,<3'")
PLAIN = KernelRow(
    family="plain",
    summary="the plain kernel",
    names={
        "transformer": Names("native", "diffusers", "TORCH_SDPA"),
        "vae": Names("native", "diffusers", "TORCH_SDPA"),
        "text_encoder": Names("sdpa", "transformers", "TORCH_SDPA", masks=("none", "padding")),
        "language_model": Names("sdpa", "transformers", "TORCH_SDPA", causal=False),
    },
    dtypes=("float32", "bfloat16"),
    masks=("none", "padding", "dense"),
)
QUICK = KernelRow(
    family="quick",
    summary="the quick kernel",
    names={"transformer": Names("flash", "diffusers", "FLASH_ATTN", "packs its input")},
    generations=("g2", "g3"),
    needs=(FAST,),
    rollout_needs=(PackageNeed("engine-kernels", ">=1", "the engine's side", "pip install engine-kernels"),),
    head_dim_max=128,
    head_dim_multiple=8,
    grouped_query=False,
    causal=False,
    deterministic=False,
    withheld={"vae": "autoencoders cannot be switched"},
)
SAGE = replace(QUICK, family="sage", generations=(), needs=(), backward=False, withheld={})
TABLE = KernelTable(
    device="thing",
    rows=(PLAIN, QUICK, replace(QUICK, generations=("g1",), head_dim_max=64), SAGE),
    defaults=dict.fromkeys(COMPONENTS, "plain"),
    generation_defaults={"g3": {"transformer": "quick"}},
    elsewhere={"cudnn": "that library is another vendor's"},
)
INSTALLED = {"fast-kernels": "2.8.3", "torch": "2.13.0"}
TRAINS = AttentionRequest("transformer", "bfloat16", head_dim=64, backward=True)


def selector(generation: str = "g2", installed: dict[str, str] | None = None) -> TableAttention:
    found = INSTALLED if installed is None else installed
    return TableAttention(TABLE, generation, "cpu", lookup=found.get)


def refused(request: AttentionRequest, family: str, **kwargs: Any) -> AttentionUnavailable:
    with pytest.raises(AttentionUnavailable) as error:
        selector(**kwargs).select(request, family)
    return error.value


def test_the_default_belongs_to_the_generation() -> None:
    assert selector("g2").select(TRAINS).family == "plain"
    choice = selector("g3").select(TRAINS)
    assert (choice.family, choice.actor, choice.rollout) == ("quick", "flash", "FLASH_ATTN")
    assert choice.reason == (
        "documented default of 'thing:g3' for transformer; packs its input; a rollout engine with kernels of its own "
        "also needs engine-kernels>=1"
    )
    assert selector("g3").select(AttentionRequest("vae")).family == "plain"


def test_the_package_is_named_with_its_version() -> None:
    assert selector().select(TRAINS, "quick").package == "fast-kernels 2.8.3"
    assert selector().select(TRAINS).package == "torch 2.13.0"
    planning = TableAttention(TABLE, "g2", "cpu", lookup=None)
    assert planning.select(TRAINS, "quick").package == "fast-kernels>=2.6,<3"
    assert planning.select(TRAINS).package == "torch"


@pytest.mark.parametrize(
    ("installed", "problem"),
    [
        ({"torch": "2.13.0"}, "it needs fast-kernels>=2.6,<3, which is not installed"),
        ({"fast-kernels": "2.5.9"}, "it needs fast-kernels>=2.6,<3, but 2.5.9 is installed"),
        ({"fast-kernels": "3.0.0"}, "but 3.0.0 is installed"),
    ],
)
def test_a_missing_or_wrong_package_is_refused_with_the_command(installed: dict[str, str], problem: str) -> None:
    error = refused(TRAINS, "quick", installed=installed)
    assert problem in error.problem
    assert error.remedy.startswith("pip install 'fast-kernels>=2.6,<3', or set device.attention.transformer")
    assert error.choices == ("plain",)


def test_pre_releases_and_local_builds_count_as_their_version() -> None:
    for version in ("2.8.0rc1", "2.7.4.post1+build.3"):
        assert selector(installed={"fast-kernels": version}).select(TRAINS, "quick").package.endswith(version)


def test_an_alternative_that_is_not_installed_is_not_offered() -> None:
    dense = replace(TRAINS, mask="dense")
    assert refused(dense, "quick").choices == ("plain",)
    assert refused(replace(TRAINS, variable_length=True), "plain").choices == ()
    assert refused(TRAINS, "nothing").choices == ("plain", "quick")
    assert refused(TRAINS, "nothing", installed={}).choices == ("plain",)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"dtype": "float32"}, "it does not run in float32, only in bfloat16, float16"),
        ({"head_dim": 256}, "head_dim 256 is above its limit of 128"),
        ({"head_dim": 100}, "head_dim 100 is no multiple of 8"),
        ({"head_dim": 0}, "head_dim 0 is no size"),
        ({"head_dim": -64}, "head_dim -64 is no size"),
        ({"mask": "padding"}, "it takes no padding mask"),
        ({"causal": True}, "it cannot be causal"),
        ({"grouped_query": True}, "it has no grouped-query attention"),
        ({"variable_length": True}, "it takes no packed sequences"),
        ({"deterministic": True}, "it is not deterministic"),
    ],
)
def test_what_the_row_cannot_do_is_refused(change: dict[str, Any], problem: str) -> None:
    assert problem in refused(replace(TRAINS, **change), "quick").problem
    selector().select(TRAINS, "quick")


def test_every_reason_is_given_at_once() -> None:
    error = refused(replace(TRAINS, dtype="float32", causal=True, variable_length=True), "quick")
    assert "float32" in error.problem
    assert "cannot be causal" in error.problem
    assert error.remedy == (
        "set device.dtype to bfloat16 or float16, or pad the sequences and mask the padding (mask='padding', "
        "variable_length=False)"
    )


def test_a_request_that_nothing_serves_says_so() -> None:
    error = refused(replace(TRAINS, dtype="bfloat16", mask="dense", deterministic=True), "sage")
    assert error.choices == ("plain",)
    packed = AttentionRequest("vae", mask="dense", causal=True, variable_length=True)
    assert refused(packed, "nothing").remedy == "no other kernel of this device serves this request"


def test_inference_only_kernels_do_not_train() -> None:
    assert "no backward pass" in refused(TRAINS, "sage").problem
    assert selector().select(replace(TRAINS, backward=False), "sage").family == "sage"


def test_limits_belong_to_the_generation() -> None:
    wide = replace(TRAINS, head_dim=128)
    assert selector("g2").select(wide, "quick").family == "quick"
    assert "above its limit of 64" in refused(wide, "quick", generation="g1").problem


@pytest.mark.parametrize(
    ("request_", "family", "generation", "text"),
    [
        (TRAINS, "quick", "g9", "'quick' for transformer on 'thing:g9': it needs one of g2, g3, g1"),
        (AttentionRequest("vae", "bfloat16"), "quick", "g2", "autoencoders cannot be switched"),
        (AttentionRequest("text_encoder"), "quick", "g2", "the quick kernel is not offered for this component"),
        (TRAINS, "cudnn", "g2", "another vendor's; no package adds one"),
        (TRAINS, "plane", "g2", "did you mean 'plain'?"),
        (TRAINS, "FLASH_ATTN", "g2", "write 'quick' or 'sage': 'FLASH_ATTN' is a library's spelling of it"),
        (AttentionRequest("text_encoder", mask="dense"), "plain", "g2", "no dense mask"),
        (AttentionRequest("language_model", causal=True), "plain", "g2", "cannot be causal"),
    ],
)
def test_messages(request_: AttentionRequest, family: str, generation: str, text: str) -> None:
    assert text in str(refused(request_, family, generation=generation))


def test_the_placeholder_of_the_rollout_side_is_no_spelling() -> None:
    with pytest.raises(AttentionUnavailable, match="no such kernel family") as error:
        families.selector(installed=False).select(AttentionRequest("transformer"), NO_ROLLOUT_KERNEL)
    assert error.value.remedy == "set device.attention.transformer to one of the choices"


def test_verify_refuses_what_select_refuses_and_what_cannot_be_proved() -> None:
    choice = selector().select(TRAINS)
    with pytest.raises(AttentionUnavailable, match="does not run in float64"):
        selector().verify(choice, replace(TRAINS, dtype="float64"), [(1, 1, 8, 64)])
    narrow = replace(TABLE, rows=(replace(PLAIN, dtypes=("float8_e4m3fn",)),))
    request = replace(TRAINS, dtype="float8_e4m3fn")
    with pytest.raises(AttentionUnavailable, match="no proof for float8_e4m3fn"):
        TableAttention(narrow, "", "cpu").verify(choice, request, [(1, 1, 8, 64)])


def test_a_mismatch_names_what_else_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_kernels, "kernel", lambda choice: lambda q, k, v, mask, causal: q)
    with pytest.raises(AttentionMismatch, match="'native' of diffusers for transformer in bfloat16 differs") as error:
        selector().verify(selector().select(TRAINS), TRAINS, [(1, 1, 8, 64)])
    assert error.value.choices == ("quick",)
    assert "report the kernel of torch 2.13.0" in error.value.remedy


def test_a_kernel_that_fails_is_refused_with_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        raise ValueError("no kernel image for this device")

    for broken, words in ((fails, "no kernel image"), (lambda q, k, v, m, c: q.detach(), "does not require grad")):
        monkeypatch.setattr(library_kernels, "kernel", lambda choice, broken=broken: broken)
        with pytest.raises(AttentionUnavailable, match=rf"failed on shape \(1, 1, 8, 64\): .*{words}"):
            selector().verify(selector().select(TRAINS), TRAINS, [(1, 1, 8, 64)])


def test_half_precision_has_a_tolerance_that_tells_right_from_wrong() -> None:
    row = replace(families.TABLE.rows[0], dtypes=("float16",))
    half = TableAttention(replace(families.TABLE, rows=(row,)), "", "cpu")
    request = AttentionRequest("transformer", "float16", mask="padding", backward=True)
    result = half.verify(half.select(request), request, [(2, 2, 65, 32)])
    assert 1e-4 < result.max_forward_error <= result.tolerance == attention_check.TOLERANCES["float16"]
    scale = 32**-0.5
    wrong = largest(lambda q, k, v, m, c: F.scaled_dot_product_attention(q, k, v, m, scale=1.02 * scale), "float16")
    assert wrong > result.tolerance


def largest(kernel: Any, dtype: str) -> float:
    request = AttentionRequest("transformer", dtype)
    return attention_check.largest_errors(kernel, request, [(2, 2, 65, 32)], device="cpu").forward


def test_queries_that_are_padding_are_not_compared() -> None:
    """Kernels that leave padding out write zeros there; others write something. Both are right."""
    request = AttentionRequest("transformer", mask="padding", backward=True)

    def zeros_padding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        assert mask is not None
        return F.scaled_dot_product_attention(q, k, v, mask) * mask.transpose(-1, -2)

    def spoils_one_row(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        out = zeros_padding(q, k, v, mask, causal)
        return out + 0.5 * (torch.arange(q.shape[2]) == 0)[:, None]

    errors = attention_check.largest_errors(zeros_padding, request, [(3, 2, 33, 16)], device="cpu")
    assert max(errors.forward, errors.backward or 0) <= attention_check.TOLERANCES["float32"]
    assert attention_check.largest_errors(spoils_one_row, request, [(3, 2, 33, 16)], device="cpu").forward >= 0.4


def test_padding_and_causal_reach_a_flash_kernel_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' flash kernels take padding as (batch, tokens), and the causal order as a flag."""
    from transformers import AttentionInterface

    seen: list[tuple[tuple[int, ...], bool, str]] = []

    def flash(layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, is_causal: bool, **kwargs: Any) -> Any:
        seen.append((tuple(mask.shape), is_causal, layer.config._attn_implementation))
        full = mask[:, None, None] & torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        return (F.scaled_dot_product_attention(q, k, v, full, enable_gqa=True).transpose(1, 2),)

    monkeypatch.setitem(AttentionInterface._global_mapping, "flash_attention_2", flash)
    choice = AttentionChoice("language_model", "fa2", "flash_attention_2", "transformers", NO_ROLLOUT_KERNEL, "x")
    request = AttentionRequest("language_model", mask="padding", causal=True, grouped_query=True, backward=True)
    errors = attention_check.largest_errors(library_kernels.kernel(choice), request, [(2, 4, 9, 8)], device="cpu")
    assert max(errors.forward, errors.backward or 0) <= attention_check.TOLERANCES["float32"]
    assert seen == [((2, 9), True, "flash_attention_2")]


def test_a_kernel_that_the_library_cannot_bring_is_refused() -> None:
    choice = AttentionChoice("transformer", "fa2", "flash", "diffusers", "FLASH_ATTN", "flash-attn 2.8.3")
    with pytest.raises(AttentionUnavailable, match="cannot use its attention backend 'flash'.*\n.*flash-attn 2.8.3"):
        library_kernels.kernel(choice)


def test_installed_versions_come_from_metadata() -> None:
    assert packages.installed_version("torch") == torch.__version__
    assert packages.installed_version("no-such-distribution") is None


def test_a_sound_table_has_no_faults() -> None:
    assert TABLE.faults(("g1", "g2", "g3")) == []
    assert families.TABLE.faults(("",)) == []


def test_the_reference_device_explains_every_family_of_the_others() -> None:
    from omni_devices.ascend.kernels import TABLE as ascend
    from omni_devices.cuda.families import TABLE as cuda
    from omni_devices.rocm.families import TABLE as rocm

    others = {row.family for table in (ascend, cuda, rocm) for row in table.rows}
    assert others <= {row.family for row in families.TABLE.rows} | set(families.TABLE.elsewhere)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (replace(TABLE, rows=(*TABLE.rows, replace(QUICK, generations=("g2",)))), "several rows of 'quick' serve"),
        (replace(TABLE, rows=(*TABLE.rows, replace(SAGE, family="x", generations=("g7",)))), "unknown generation 'g7'"),
        (replace(TABLE, generation_defaults={"g8": {}}), "generation_defaults names the unknown generation 'g8'"),
        (replace(TABLE, defaults={"transformer": "plain"}), "vae has no default"),
        (replace(TABLE, defaults={**TABLE.defaults, "vae": "quick"}), "default of vae on generation 'g1' is not"),
        (replace(TABLE, elsewhere={"sage": "no"}), "'sage' is offered on generation 'g1' and listed as not to be had"),
        (replace(TABLE, rows=(*TABLE.rows, replace(PLAIN, family="x", withheld={"vae": "?"}))), "serves and withholds"),
    ],
)
def test_faults_of_a_table_are_found(table: KernelTable, fault: str) -> None:
    assert any(fault in found for found in table.faults(("g1", "g2", "g3")))
