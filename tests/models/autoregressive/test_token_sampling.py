"""The next token: the right distribution, from the row's own draw alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.models.autoregressive.sampling import BLOCK, choose, uniforms
from tests.support.token_models import token_request


def logits(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 2


def test_draws_belong_to_the_sample_and_its_position() -> None:
    short, long = uniforms(token_request(max_new_tokens=3)), uniforms(token_request(max_new_tokens=9))
    assert short.dtype == torch.float64
    assert torch.equal(short, long[:3])
    for change in ({"sample_index": 1}, {"seed": 12}, {"prompt_id": "other"}):
        assert not torch.equal(uniforms(token_request(max_new_tokens=3, **change)), short)
    assert torch.equal(uniforms(token_request(max_new_tokens=3, request_id="other", group_id="other")), short)


@pytest.mark.parametrize("size", [7, BLOCK, 3 * BLOCK + 5])
def test_frequencies_are_the_softmax(size: int) -> None:
    scores = logits(1, size)
    draws = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000  # a perfectly even sample
    ids, _ = choose(scores.expand(len(draws), -1), draws, temperature=0.7)
    share = torch.bincount(ids, minlength=size) / len(draws)
    assert (share - (scores[0] / 0.7).softmax(-1)).abs().max() < 2e-4


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    scores, draws = logits(5, 900), torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    together, log_probs = choose(scores, draws, temperature=1.3, top_p=0.8, top_k=100)
    for row in range(5):
        alone, own = choose(scores[row : row + 1], draws[row : row + 1], temperature=1.3, top_p=0.8, top_k=100)
        assert alone[0] == together[row]
        torch.testing.assert_close(own[0], log_probs[row])


def test_truncation_changes_what_is_drawn_but_not_its_log_prob() -> None:
    scores = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    draws = torch.linspace(0, 1 - 1e-9, 101, dtype=torch.float64)
    many = scores.expand(101, -1)
    for settings_, kept in (
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.81}, {0, 1, 2}),
        ({"top_p": 0.79}, {0, 1}),
        ({"top_p": 0.01}, {0}),
        ({"top_k": 3, "top_p": 0.9}, {0, 1, 2}),
    ):
        ids, log_probs = choose(many, draws, temperature=1.0, **settings_)
        assert set(ids.tolist()) == kept
        torch.testing.assert_close(log_probs, scores[0][ids])


def test_temperature_zero_is_greedy_and_scored_at_one() -> None:
    scores = logits(4, 50)
    ids, log_probs = choose(scores, torch.zeros(4, dtype=torch.float64), temperature=0.0)
    assert torch.equal(ids, scores.argmax(-1))
    torch.testing.assert_close(log_probs, scores.log_softmax(-1).max(-1).values)


@settings(deadline=None, max_examples=60)
@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 10))
def test_impossible_tokens_are_never_drawn(draw: float, seed: int) -> None:
    scores = logits(1, 2 * BLOCK, seed)
    scores[0, 1::2] = -torch.inf
    ids, _ = choose(scores, torch.tensor([draw], dtype=torch.float64), temperature=1.0)
    assert ids[0] % 2 == 0


def test_the_largest_draw_is_still_a_token() -> None:
    ids, _ = choose(logits(1, 1000), torch.tensor([1.0 - 2.0**-53], dtype=torch.float64), temperature=1.0)
    assert 0 <= int(ids[0]) < 1000
