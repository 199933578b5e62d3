"""`fusion_attention` against torch's own attention, through an operator that computes what its documentation says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from omni_devices.ascend.fusion import fusion_attention, fusion_attention_varlen
from tests.devices import ascend_fakes

Calls = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def calls() -> Iterator[Calls]:
    """Installs the operator; keeps the named arguments of its calls."""
    seen: Calls = []

    def operator(*tensors: Any, **named: Any) -> tuple[Any, ...]:
        seen.append(named)
        return ascend_fakes.npu_fusion_attention(*tensors, **named)

    with ascend_fakes.operator_installed(operator):
        yield seen


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def expected(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, **more: Any) -> Tensor:
    if causal:
        lower = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        mask = lower if mask is None else mask & lower
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=query.shape[1] != key.shape[1], **more
    )


def close(run: Callable[..., Tensor], reference: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Outputs and gradients agree to fp32's rounding."""
    results = []
    for function in (run, reference):
        leaves: list[Any] = [x.clone().requires_grad_() for x in inputs]
        out = function(*leaves)
        results.append((out, *torch.autograd.grad(out, leaves, draw(*out.shape, seed=9))))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    share=st.integers(1, 3),
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    size=st.sampled_from([1, 4, 8]),
    causal=st.booleans(),
    kind=st.sampled_from(["none", "padding", "rows", "dense", "per_head", "shared_per_head", "flat"]),
    seed=st.integers(0, 99),
)
def test_same_as_torch(
    batch: int, groups: int, share: int, rows: int, columns: int, size: int, causal: bool, kind: str, seed: int
) -> None:
    heads = groups * share
    shapes = {
        "padding": (batch, 1, 1, columns),
        "rows": (batch, rows, columns) if batch == 1 else (1, rows, columns),
        "dense": (batch, 1, rows, columns),
        "per_head": (batch, heads, rows, columns),
        "shared_per_head": (1, heads, rows, columns),
        "flat": (rows, columns),
    }
    mask = None
    if kind in shapes:
        mask = draw(*shapes[kind], seed=seed) > 0
        mask[..., 0] = True  # a row that attends to nothing has no meaning
    inputs = (
        draw(batch, heads, rows, size, seed=seed + 1),
        draw(batch, groups, columns, size, seed=seed + 2),
        draw(batch, groups, columns, size, seed=seed + 3),
    )
    close(
        lambda *x: fusion_attention(*x, mask=mask, causal=causal),
        lambda *x: expected(*x, mask, causal),
        *inputs,
    )


def test_what_the_operator_is_told(calls: Calls) -> None:
    query, key = draw(2, 4, 6, 8), draw(2, 2, 6, 8)
    fusion_attention(query, key, key)
    fusion_attention(query, key, key, causal=True)
    fusion_attention(query, key, key, mask=torch.ones(2, 1, 1, 6, dtype=torch.bool))
    fusion_attention(query, key, key, mask=torch.ones(6, 6, dtype=torch.bool), causal=True, scale=0.5)
    assert [call["sparse_mode"] for call in calls] == [0, 2, 1, 1]
    assert [None if call["atten_mask"] is None else tuple(call["atten_mask"].shape) for call in calls] == [
        None,
        (2048, 2048),
        (2, 1, 6, 6),
        (1, 1, 6, 6),
    ]
    assert not calls[2]["atten_mask"].any(), "True blocks, so a mask that allows everything is all False"
    assert torch.equal(calls[3]["atten_mask"][0, 0], torch.ones(6, 6, dtype=torch.bool).triu(1))
    assert [call["inner_precise"] for call in calls] == [0, 0, 2, 2]
    assert [call["scale"] for call in calls] == [8**-0.5] * 3 + [0.5]
    assert {(call["head_num"], call["input_layout"], call["keep_prob"]) for call in calls} == {(4, "BNSD", 1.0)}
    assert all(call["actual_seq_qlen"] is None for call in calls)


def test_a_row_that_attends_to_nothing_disturbs_no_other() -> None:
    query = draw(1, 1, 3, 4)
    mask = torch.tensor([[True, True, True], [False, False, False], [True, False, False]])
    out = fusion_attention(query, query, query, mask=mask)
    assert torch.isfinite(out).all()
    assert out.abs().max() < ascend_fakes.GARBAGE
    torch.testing.assert_close(out[:, :, 2], query[:, :, 0])


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4),
    groups=st.integers(1, 2),
    share=st.integers(1, 2),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_packed_sequences_do_not_see_each_other(
    lengths: list[tuple[int, int]], groups: int, share: int, causal: bool, seed: int
) -> None:
    rows, columns = [list(part) for part in zip(*lengths, strict=True)]
    inputs = (
        draw(sum(rows), groups * share, 8, seed=seed),
        draw(sum(columns), groups, 8, seed=seed + 1),
        draw(sum(columns), groups, 8, seed=seed + 2),
    )

    def one_by_one(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = zip(query.split(rows), key.split(columns), value.split(columns), strict=True)
        outs = [expected(*(x.transpose(0, 1)[None] for x in part), None, causal) for part in parts]
        return torch.cat([out[0].transpose(0, 1) for out in outs])

    close(lambda *x: fusion_attention_varlen(*x, rows, columns, causal=causal), one_by_one, *inputs)


def test_lengths_are_cumulative_without_a_leading_zero(calls: Calls) -> None:
    query = draw(7, 2, 4)
    fusion_attention_varlen(query, query, query, [3, 4], [3, 4], causal=True, scale=2.0)
    assert (calls[0]["actual_seq_qlen"], calls[0]["actual_seq_kvlen"]) == ([3, 7], [3, 7])
    assert (calls[0]["input_layout"], calls[0]["sparse_mode"], calls[0]["scale"]) == ("TND", 2, 2.0)


Q = draw(1, 2, 4, 8)


@pytest.mark.parametrize(
    ("inputs", "more", "says"),
    [
        ((Q.double(), Q.double(), Q.double()), {}, "torch.float64"),
        ((Q, Q.bfloat16(), Q), {}, "for all three"),
        ((Q, Q, Q[:, :, :2]), {}, "do not go together"),
        ((Q, Q[..., :4], Q[..., :4]), {}, "do not go together"),
        ((Q.expand(1, 2, 4, 8), draw(1, 3, 4, 8), draw(1, 3, 4, 8)), {}, "2 query heads are no multiple of 3"),
        ((draw(1, 1, 1, 769),) * 3, {}, "heads of 769.*256 of 768 at most"),
        ((draw(1, 257, 1, 1),) * 3, {}, "257 heads"),
        ((Q, Q, Q), {"mask": torch.zeros(4, 4)}, "torch.float32: the operator takes bools only"),
        ((Q, Q, Q), {"mask": torch.ones(3, 1, 4, 4, dtype=torch.bool)}, r"\(3, 1, 4, 4\) does not broadcast"),
        ((Q, Q, Q), {"mask": torch.ones(1, 1, 1, 4, 4, dtype=torch.bool)}, "does not broadcast"),
        ((Q, Q, Q), {"mask": torch.ones(5, dtype=torch.bool)}, "does not broadcast"),
    ],
)
def test_what_the_operator_would_misread_is_refused(
    inputs: tuple[Tensor, Tensor, Tensor], more: dict[str, Any], says: str, calls: Calls
) -> None:
    with pytest.raises(ValueError, match=says):
        fusion_attention(*inputs, **more)
    assert not calls


@pytest.mark.parametrize(
    ("rows", "columns", "says"),
    [([4], [2, 2], "1 query lengths but 2 key lengths"), ([3], [4], "3 and 4 tokens, not to 4 and 4")],
)
def test_lengths_must_add_up(rows: list[int], columns: list[int], says: str) -> None:
    packed = draw(4, 2, 8)
    with pytest.raises(ValueError, match=re.escape(says)):
        fusion_attention_varlen(packed, packed, packed, rows, columns)


def test_a_mode_without_its_mask_never_reaches_the_operator(calls: Calls) -> None:
    from omni_devices.ascend import fusion

    with pytest.raises(ValueError, match="sparse mode 2 without a mask"):
        fusion._run(Q, Q, Q, "BNSD", 2, None, 2, None, False)
    with pytest.raises(ValueError, match="sparse mode 0 with a mask"):
        fusion._run(Q, Q, Q, "BNSD", 2, torch.ones(4, 4, dtype=torch.bool), 0, None, False)
    assert not calls
