"""Models that need something of their own: shared embeddings, a vision tower, a LoRA beside experts, bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_portable.contracts.errors import CapabilityError, WeightSyncError
from omni_portable.models.qwen3.tiny import build_tiny_qwen3
from omni_portable.models.qwen_vl.tiny import build_tiny_qwen2_5_vl
from tests.support.engines import require_installed
from tests.support.vllm_pair import Pair, assert_equal, draw, vllm_setup

require_installed("vllm")


@contextmanager
def running(*arguments: Any, **options: Any) -> Iterator[Pair]:
    pair = Pair(*arguments, **options)
    try:
        yield pair
    finally:
        pair.close()


def test_input_and_output_embeddings_that_are_one_tensor_stay_one(tmp_path: Path) -> None:
    with running("qwen3", path=build_tiny_qwen3(tmp_path / "tied", tied=True)) as pair:
        assert "lm_head.weight" not in pair.first
        pair.assert_same(pair.requests(4))
        pair.update(pair.changed(2))
        pair.assert_same(pair.requests(4))


def test_a_lora_of_a_model_with_a_tower() -> None:
    with running("qwen_vl", lora_rank=4) as pair:
        pair.assert_same(pair.requests(6))
        pair.update(pair.changed(1))
        pair.assert_same(pair.requests(6))
        pair.assert_replayed(pair.requests(8))


def test_qwen2_5_vl_with_heads_that_vllm_has_a_kernel_for(tmp_path: Path) -> None:
    with running("qwen_vl/qwen2_5", path=build_tiny_qwen2_5_vl(tmp_path / "wide", heads=1)) as pair:
        pair.update(pair.changed(1))
        requests = pair.requests(8)
        assert any(request.media for request in requests)
        pair.assert_same(requests)
        pair.assert_replayed(requests)
        together = draw(pair.engine, requests)
        assert_equal([together[3]], draw(pair.engine, [requests[3]]))
        assert_equal(together[::-1], draw(pair.engine, requests[::-1]))


def test_a_lora_beside_experts_is_merged_where_that_was_asked_for() -> None:
    from omni_backends.rollout.vllm.engine import VllmEngine

    with pytest.raises(CapabilityError, match="merge_lora=true"):
        VllmEngine(vllm_setup("qwen3_omni", lora_rank=4))
    with running("qwen3_omni", lora_rank=4, merge_lora=True) as pair:
        pair.assert_same(pair.requests(6))
        pair.update(pair.changed(1))
        pair.assert_same(pair.requests(6))
        held = pair.engine.weights_checksum()
        wrong = pair.changed(2)
        wrong[next(iter(wrong))][0, 0] = torch.nan
        pair.engine.pause()
        with pytest.raises(WeightSyncError, match="not finite"):
            pair.engine.update_weights(pair.stream(wrong), pair.version + 1)
        assert pair.engine.weights_checksum() == held


def test_in_bfloat16_weights_arrive_and_the_gap_is_small() -> None:
    """The gap is rounding; every run measures it (rollout_corr/logprob_abs_diff)."""
    with running("qwen3", dtype=torch.bfloat16) as pair:
        assert pair.engine.weights_checksum() == pair.native.weights_checksum()
        pair.update(pair.changed(1))
        assert pair.engine.weights_checksum() == pair.native.weights_checksum()
        found = draw(pair.engine, pair.requests(8))
        gaps = torch.cat([t.log_probs for t in found]) - torch.cat(pair.actor_log_probs(found))
        assert gaps.abs().max() < 0.3


def test_a_lora_that_vllm_cannot_bind_is_refused_at_the_start() -> None:
    from omni_backends.rollout.vllm.engine import VllmEngine

    setup = vllm_setup("qwen3", lora_rank=4)
    setup.config.model.lora.targets = ["lm_head"]
    with pytest.raises(WeightSyncError, match="lm_head"):
        VllmEngine(setup)
