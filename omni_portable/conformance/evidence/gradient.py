"""The gradient of one training step, tensor by tensor, read through the seam that every train engine has.

A train engine shows its weights and nothing of its gradients. With AdamW's beta1 = 0, no decay, no clipping and an eps
far above every gradient, one step changes a weight by lr g / (|g| + eps), which is g lr / eps: the difference of the
weights before and after is the gradient, as the engine's own accumulation, optimizer and weight stream have it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import Algorithm, TrainBatch
from omni_portable.contracts.training import TrainEngine
from omni_portable.models.setup import EngineSetup

EPS = 1e4
"""Gradients of 1 are off by 1e-4 of themselves, those of 1e-3 by 1e-7."""
SCALE = 1e5
"""lr / eps: steps are far larger than weights, so that subtracting the weights loses nothing."""
SAMPLES = 128
"""Elements kept of a gradient tensor, spread evenly over it."""


@dataclass(frozen=True)
class GradientResult:
    """Metrics and (N, W) log-probs of the step, and the gradient of every trained tensor (fp32, CPU)."""

    metrics: Mapping[str, float]
    log_probs: torch.Tensor
    gradients: Mapping[str, torch.Tensor]


def training_gradient(setup: EngineSetup, batch: TrainBatch, algorithm: Algorithm) -> GradientResult:
    """Build a train engine, take one step over the batch, read the gradient off its weights."""
    optimizer = replace(
        setup.config.actor, lr=EPS * SCALE, eps=EPS, beta1=0.0, weight_decay=0.0, warmup_steps=0, grad_clip=0.0
    )
    setup = replace(setup, config=replace(setup.config, actor=optimizer), requires=algorithm.requires)
    engine: TrainEngine = registry.load("train_engine", setup.config.actor.engine)(setup)
    before = {name: tensor.detach().to("cpu", torch.float64, copy=True) for name, tensor in engine.weights()}
    step = engine.train_step(batch, algorithm)
    gradients = {
        name: ((before[name] - tensor.detach().to("cpu", torch.float64)) / SCALE).float()
        for name, tensor in engine.weights()
    }
    return GradientResult(step.metrics, step.log_probs, gradients)


def sampled(tensor: torch.Tensor) -> torch.Tensor:
    """At most about `SAMPLES` elements at an odd stride (an even one could stay in a few columns of a matrix)."""
    flat = tensor.flatten()
    return flat[:: max(1, flat.numel() // SAMPLES) | 1].clone()


def group_of(name: str) -> str:
    """'transformer_blocks.0.attn.to_q.weight' -> 'transformer_blocks.0'; 'proj_out.weight' -> 'proj_out'."""
    first, _, rest = name.partition(".")
    second = rest.partition(".")[0]
    return f"{first}.{second}" if second.isdigit() else first


def group_norms(gradients: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """L2 norm of the gradient per group of parameters."""
    squares: dict[str, float] = defaultdict(float)
    for name, gradient in gradients.items():
        squares[group_of(name)] += gradient.double().square().sum().item()
    return {group: total**0.5 for group, total in squares.items()}


def grouped(samples: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Sampled gradients of each group in one vector, in order of their names."""
    parts: dict[str, list[torch.Tensor]] = defaultdict(list)
    for name in sorted(samples):
        parts[group_of(name)].append(samples[name].flatten())
    return {group: torch.cat(tensors) for group, tensors in parts.items()}
