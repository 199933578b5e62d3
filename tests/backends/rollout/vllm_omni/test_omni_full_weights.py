"""Full updates of an engine's transformer: written in place, and taken back without a copy of what they replace."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omni_backends.rollout.external.updates import WeightUpdates
from omni_backends.rollout.vllm_omni.weights import FullTarget, TransformerWeights
from omni_backends.sync import FormerWeights, WeightReceiver, collect_checksums
from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo
from omni_portable.models.fused_layout import SELF_ATTENTION, FusedLayout
from omni_portable.models.weights import checksums, make_stream

CANONICAL = {"a.to_q.weight": (8, 8), "a.to_k.weight": (8, 8), "a.to_v.weight": (8, 8), "norm.weight": (8,)}


class BreakingTarget(FullTarget):
    """Its next update breaks off, `broken` times, when half of it is written."""

    broken, copies = 0, 0

    def snapshot(self, names: Any, lora: LoraInfo | None) -> dict[str, torch.Tensor]:
        self.copies += 1
        return super().snapshot(names, lora)

    def apply(self, tensors: Mapping[str, torch.Tensor], lora: LoraInfo | None) -> int:
        if self.broken:
            self.broken -= 1
            super().apply(dict(list(tensors.items())[:2]), lora)
            raise RuntimeError("broken on purpose")
        return super().apply(tensors, lora)


def stream(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return make_stream(
        "full", {name: torch.randn(shape, generator=generator) for name, shape in CANONICAL.items()}.items(), None
    )


def test_a_broken_update_goes_back_to_the_former_one_and_only_the_first_copies_weights() -> None:
    module = torch.nn.Module()
    module.a, module.norm = torch.nn.Module(), torch.nn.LayerNorm(8, bias=False)
    module.a.to_qkv = torch.nn.Linear(8, 24, bias=False)
    target = BreakingTarget(TransformerWeights(module.named_parameters(), FusedLayout(fused=SELF_ATTENTION)))
    assert isinstance(target, FormerWeights)
    receiver, updates = WeightReceiver(target), WeightUpdates(4096)
    workers = SimpleNamespace(call=lambda method, arguments: [getattr(receiver, method)(**arguments)])
    first = collect_checksums(workers.call)
    target.broken = 1
    with pytest.raises(WeightSyncError, match="on purpose"):
        updates.send(stream(1), workers.call, 1, keep=False)
    assert collect_checksums(workers.call) == first
    updates.send(stream(1), workers.call, 1, keep=False)
    copies = target.copies
    for version in (2, 3):
        target.broken = 1
        with pytest.raises(WeightSyncError, match="on purpose"):
            updates.send(stream(version), workers.call, version, keep=False)
        assert collect_checksums(workers.call) == checksums(dict(stream(version - 1)).items())
        updates.send(stream(version), workers.call, version, keep=False)
    assert target.copies == copies
    assert collect_checksums(workers.call) == checksums(dict(stream(3)).items())
    updates.close()
