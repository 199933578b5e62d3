"""What is checked in the same way for every diffusers family."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from omni_portable.config.loader import load_config
from omni_portable.contracts.device import AttentionChoice
from omni_portable.models.diffusers_adapter import DiffusersAdapter
from omni_portable.models.fused_layout import FusedLayout
from omni_portable.models.lora import inject_lora, lora_named_tensors
from omni_portable.models.weights import named_tensors
from omni_portable.trainer.run import run

Names = set[str]


def choice(component: Any, actor: str, library: Any = "diffusers") -> AttentionChoice:
    """A kernel by its name in a library."""
    return AttentionChoice(component, "family", actor, library, actor, "torch")


def operators(function: Callable[[], Any]) -> Names:
    """Names of the operators that a call runs."""
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return {event.key for event in profile.key_averages()}


def assert_round_trip(adapter: DiffusersAdapter, layout: FusedLayout, fused: Iterable[str]) -> None:
    """Actor -> fused rollout layout -> actor is bit-exact for the base weights and for a LoRA on the published targets.

    Args:
        fused: patterns of names that must exist in the fused layout.
    """
    transformer = adapter.transformer
    before = {name: tensor.clone() for name, tensor in named_tensors(transformer).items()}
    rollout = layout.fuse(before.items())
    for pattern in fused:
        assert any(re.fullmatch(pattern, name) for name in rollout), pattern
    _assert_equal(layout.split(rollout.items()), before)
    for name, tensor in before.items():
        ((target, same),) = adapter.rollout_layout(name, tensor)
        whole, _, shard = target.partition(":")
        assert same is tensor
        assert layout.canonical_name(whole, shard or None) == name
    inject_lora(transformer, rank=2, alpha=4, targets=adapter.lora_targets(), seed=0)
    lora = dict(lora_named_tensors(transformer))
    with torch.no_grad():
        for index, tensor in enumerate(lora.values()):
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(index)))
    engine = {target: tensor for name, t in lora.items() for target, tensor in adapter.rollout_layout(name, t)}
    assert len(engine) == len(lora)
    _assert_equal(layout.split(engine.items()), lora)


def train_once(recipe: str, run_dir: Path, *overrides: str) -> dict[str, float]:
    """Metrics of the last step of a recipe on a tiny model, through the real loop."""
    config = load_config(recipe, [f"trainer.run_dir={run_dir}", "trainer.total_steps=1", *overrides])
    run(config)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return next(row for row in reversed(rows) if "actor/grad_norm" in row)


def _assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(tensor, right[name]) for name, tensor in left.items())
