"""Scoring and decoding of all families: equal bits for equal batches, and no number that padding can reach."""

from __future__ import annotations

import pytest
import torch

from omni_portable.models.autoregressive import scoring
from tests.support.token_models import FAMILIES, encoded, load, some_rows


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def test_equal_rows_give_equal_bits_with_and_without_gradient(family: str) -> None:
    adapter = load(family)
    rows = some_rows(adapter, family)
    with torch.no_grad():
        first, again = adapter.score(rows, 0.9), adapter.score(rows, 0.9)
    tracked = adapter.score(rows, 0.9)
    assert torch.equal(first.log_prob, again.log_prob)
    assert torch.equal(first.log_prob, tracked.log_prob.detach())
    assert tracked.log_prob.requires_grad
    assert first.mask.sum(1).tolist() == [len(row.response_ids) for row in rows]


def test_a_row_does_not_depend_on_its_neighbours(family: str) -> None:
    adapter = load(family)
    rows = some_rows(adapter, family)
    with torch.no_grad():
        together = adapter.score(rows, 1.0)
        for index, row in enumerate(rows):
            alone = adapter.score([row], 1.0).log_prob[0]
            torch.testing.assert_close(together.log_prob[index, : len(alone)], alone, atol=1e-5, rtol=0)


def test_decoding_sees_what_scoring_does(family: str) -> None:
    adapter = load(family)
    rows = some_rows(adapter, family, seed=6)
    steps = min(len(row.response_ids) for row in rows)
    with torch.no_grad():
        scored = adapter.score(rows, 1.0).log_prob
        decoding = adapter.begin([row.inputs for row in rows])
        for step in range(steps):
            ids = torch.stack([row.response_ids[step] for row in rows])
            seen = decoding.logits().log_softmax(-1).gather(-1, ids[:, None])[:, 0]
            torch.testing.assert_close(seen, scored[:, step], atol=1e-5, rtol=0)
            decoding.advance(ids)


def test_logits_in_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = load("qwen3")
    rows = some_rows(adapter, "qwen3")

    def gradient() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        adapter.transformer.zero_grad()
        scores = adapter.score(rows, 0.8, entropy=True)
        ((scores.log_prob + scores.entropy) * scores.mask).sum().backward()
        weight = adapter.transformer.lm_head.weight
        return scores.log_prob.detach(), scores.entropy.detach(), weight.grad.clone()

    whole = gradient()
    monkeypatch.setattr(scoring, "LOGITS_AT_ONCE", 300)  # one token at a time
    for left, right in zip(whole, gradient(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5)


def test_entropy_and_logits_fit_the_log_probs() -> None:
    adapter = load("qwen3")
    rows = some_rows(adapter, "qwen3")
    scores = adapter.score(rows, 0.5, entropy=True, logits=True)
    probabilities = scores.logits.softmax(-1)
    torch.testing.assert_close(scores.entropy, -(probabilities * probabilities.log()).sum(-1), atol=1e-5, rtol=1e-5)
    ids = torch.nn.utils.rnn.pad_sequence([row.response_ids for row in rows], batch_first=True)
    torch.testing.assert_close(scores.log_prob, probabilities.log().gather(-1, ids[..., None])[..., 0])


def test_checkpointing_changes_no_gradient(family: str) -> None:
    def gradients(checkpointing: bool) -> list[torch.Tensor]:
        adapter = load(family)
        if checkpointing:
            adapter.transformer.eval()
            adapter.transformer.enable_gradient_checkpointing()
        scores = adapter.score(some_rows(adapter, family), 1.0)
        (scores.log_prob * scores.mask).sum().backward()
        return [p.grad for p in adapter.transformer.parameters() if p.grad is not None]

    plain, saved = gradients(False), gradients(True)
    assert len(plain) == len(saved) > 0
    for left, right in zip(plain, saved, strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5)


def test_the_actor_needs_no_tower(family: str) -> None:
    whole, actor = load(family), load(family, ("transformer",))
    rows = some_rows(whole, family)
    with torch.no_grad():
        assert torch.equal(whole.score(rows, 1.0).log_prob, actor.score(rows, 1.0).log_prob)


def test_towers_are_no_part_of_the_policy(family: str) -> None:
    adapter = load(family)
    names = {name for name, _ in adapter.transformer.named_parameters()}
    assert not any("visual" in name or "audio" in name for name in names)
    assert any(name.startswith("lm_head") for name in names)
    assert all(not tensor.requires_grad for inputs in encoded(adapter, family) for tensor in inputs.values())
