"""Selection of attention kernels on the CPU: pairs, refusals, and proofs that catch wrong kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from omni_devices.common import attention_check, library_kernels
from omni_devices.common.kernel_table import NO_ROLLOUT_KERNEL
from omni_devices.cpu import families
from omni_portable.contracts.device import AttentionChoice, AttentionRequest
from omni_portable.contracts.errors import AttentionMismatch, AttentionUnavailable

SELECTOR = families.selector()
PAIRS = [(row.family, component) for row in families.TABLE.rows for component in row.names]
REQUEST = AttentionRequest("transformer", backward=True)
SHAPES = [(2, 4, 33, 16)]


@pytest.mark.parametrize(
    ("component", "asked", "family", "actor", "library", "rollout"),
    [
        ("transformer", "auto", "sdpa", "native", "diffusers", "TORCH_SDPA"),
        ("transformer", "math", "math", "_native_math", "diffusers", NO_ROLLOUT_KERNEL),
        ("text_encoder", "auto", "sdpa", "sdpa", "transformers", "TORCH_SDPA"),
        ("text_encoder", "math", "math", "eager", "transformers", NO_ROLLOUT_KERNEL),
        ("vae", "auto", "sdpa", "native", "diffusers", "TORCH_SDPA"),
        ("language_model", "sdpa", "sdpa", "sdpa", "transformers", "CPU_ATTN"),
    ],
)
def test_pairs(component: str, asked: str, family: str, actor: str, library: str, rollout: str) -> None:
    choice = SELECTOR.select(AttentionRequest(component), asked)  # type: ignore[arg-type]
    assert (choice.family, choice.actor, choice.actor_library, choice.rollout) == (family, actor, library, rollout)
    assert choice.package == f"torch {torch.__version__}"
    assert ("default" in choice.reason) == (asked == "auto")


@pytest.mark.parametrize(("family", "component"), PAIRS)
def test_every_spelling_is_one_the_library_knows(family: str, component: str) -> None:
    choice = SELECTOR.select(AttentionRequest(component), family)  # type: ignore[arg-type]
    assert callable(library_kernels.kernel(choice))


def test_the_placeholder_is_no_name_of_a_library() -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName

    assert NO_ROLLOUT_KERNEL.lower() not in [name.value for name in AttentionBackendName]
    assert "no math kernel" in SELECTOR.select(REQUEST, "math").reason


@pytest.mark.parametrize(
    ("request_", "asked", "message"),
    [
        (REQUEST, "flash_attention_2", r"'flash_attention_2' for transformer on 'cpu': flash-attn has no CPU kernel"),
        (REQUEST, "flash_attention_3", r"run on a device that offers 'flash_attention_3'"),
        (REQUEST, "xformers", r"valid choices: sdpa, math"),
        (AttentionRequest("vae"), "qwerty", r"valid choices: sdpa$"),
        (REQUEST, "sage", r"SageAttention"),
        (REQUEST, "sdpaa", r"did you mean 'sdpa'"),
        (REQUEST, "native", r"write 'sdpa'"),
        (REQUEST, "eager", r"write 'math'"),
        (REQUEST, "qwerty", r"set device.attention.transformer to one"),
        (AttentionRequest("vae"), "math", r"cannot be switched"),
        (AttentionRequest("transformer", dtype="float16"), "auto", r"float16, only in float32.*\n.*device.dtype"),
        (
            AttentionRequest("text_encoder", dtype="float64"),
            "math",
            r"only in float32, bfloat16\n(.*\n)*.*choices: sdpa",
        ),
        (AttentionRequest("transformer", variable_length=True), "auto", r"packed sequences.*\n.*pad"),
    ],
)
def test_what_cannot_be_served_is_refused(request_: AttentionRequest, asked: str, message: str) -> None:
    with pytest.raises(AttentionUnavailable, match=message):
        SELECTOR.select(request_, asked)


def test_every_family_of_other_devices_is_refused_with_its_reason() -> None:
    for family, reason in families.TABLE.elsewhere.items():
        with pytest.raises(AttentionUnavailable, match=reason):
            SELECTOR.select(REQUEST, family)


@pytest.mark.parametrize(("family", "component"), PAIRS)
@pytest.mark.parametrize("dtype", families.DTYPES)
def test_kernels_are_proved(family: str, component: str, dtype: str) -> None:
    row = families.TABLE.row(family, "")
    assert row is not None
    if dtype not in (row.names[component].dtypes or row.dtypes):  # type: ignore[index]
        with pytest.raises(AttentionUnavailable):
            SELECTOR.select(AttentionRequest(component, dtype), family)  # type: ignore[arg-type]
        return
    for mask, causal, grouped in itertools.product(("none", "padding", "dense"), (False, True), (False, True)):
        request = AttentionRequest(
            component,  # type: ignore[arg-type]
            dtype,
            mask=mask,  # type: ignore[arg-type]
            causal=causal,
            grouped_query=grouped,
            backward=True,
            deterministic=True,
        )
        result = SELECTOR.verify(SELECTOR.select(request, family), request, SHAPES)
        assert result.max_forward_error <= result.tolerance
        assert result.max_backward_error is not None
        assert (dtype == "float32") <= (result.max_forward_error > 0)  # the kernel is not the reference itself


@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 40), st.sampled_from([1, 4, 8, 24])),
    mask=st.sampled_from(["none", "padding", "dense"]),
    causal=st.booleans(),
    grouped=st.booleans(),
)
def test_sdpa_is_right_on_any_shape(shape: tuple[int, int, int, int], mask: str, causal: bool, grouped: bool) -> None:
    request = AttentionRequest("transformer", mask=mask, causal=causal, grouped_query=grouped, backward=True)  # type: ignore[arg-type]
    SELECTOR.verify(SELECTOR.select(request), request, [shape])


def test_backward_only_where_asked() -> None:
    request = AttentionRequest("transformer")
    assert SELECTOR.verify(SELECTOR.select(request), request, SHAPES).max_backward_error is None


def ignores_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal)


def ignores_causal(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, mask)


def slightly_wrong_scale(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=0.2501)


def loses_gradient(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(query, key.detach(), value, mask, is_causal=causal) + 0 * key


def gives_nan(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal) * float("nan")


@pytest.mark.parametrize(
    ("wrong", "extra", "message"),
    [
        (ignores_mask, {"mask": "padding"}, "differs from math attention"),
        (ignores_causal, {"causal": True}, "differs from math attention"),
        (slightly_wrong_scale, {}, "differs from math attention"),
        (loses_gradient, {}, r"backward 0\.\d+"),
        (gives_nan, {}, "differs from math attention by nan"),
    ],
)
def test_wrong_kernels_are_caught(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Tensor], extra: dict[str, object], message: str
) -> None:
    monkeypatch.setattr(library_kernels, "kernel", lambda choice: wrong)
    request = AttentionRequest("transformer", backward=True, **extra)  # type: ignore[arg-type]
    with pytest.raises(AttentionMismatch, match=message) as error:
        SELECTOR.verify(SELECTOR.select(request), request, [(1, 1, 8, 16), *SHAPES])
    assert "at shape (" in str(error.value)


def test_a_kernel_that_varies_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()

    def varies(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask) + 1e-7 * next(calls)

    monkeypatch.setattr(library_kernels, "kernel", lambda choice: varies)
    plain, strict = AttentionRequest("transformer"), AttentionRequest("transformer", deterministic=True)
    SELECTOR.verify(SELECTOR.select(plain), plain, SHAPES)
    with pytest.raises(AttentionMismatch, match="two results for one input"):
        SELECTOR.verify(SELECTOR.select(strict), strict, SHAPES)


def test_the_inputs_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    SELECTOR.verify(SELECTOR.select(REQUEST), REQUEST, SHAPES)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shapes", [[], [(1, 1, 4, 8)], [(0, 1, 4, 16)], [(1, 0, 4, 16)], [(1, 1, 0, 16)]])
def test_shapes_must_fit_the_request_and_hold_something(shapes: list[tuple[int, int, int, int]]) -> None:
    request = AttentionRequest("transformer", head_dim=16)
    with pytest.raises(ValueError, match="no shapes|another head_dim|nothing to compare"):
        SELECTOR.verify(SELECTOR.select(request), request, shapes)


def test_a_name_the_library_lost_is_refused() -> None:
    for library in ("diffusers", "transformers"):
        choice = AttentionChoice("transformer", "sdpa", "gone", library, "TORCH_SDPA", "torch")  # type: ignore[arg-type]
        with pytest.raises(AttentionUnavailable, match=f"{library} has no attention .* 'gone'"):
            SELECTOR.verify(choice, REQUEST, SHAPES)


def test_errors_keep_nan() -> None:
    assert attention_check.larger(1.0, 2.0, 0.5) == 2.0
    assert attention_check.larger(1.0, float("nan"), 3.0) != attention_check.larger(1.0, float("nan"), 3.0)
