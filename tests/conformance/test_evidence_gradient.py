"""The gradient that is read off published weights is the gradient of the loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from omni_portable.conformance.evidence.gradient import group_norms, group_of, grouped, sampled, training_gradient
from omni_portable.conformance.evidence.replay import run_free
from omni_portable.conformance.evidence.settings import golden_setup
from omni_portable.conformance.evidence.training import golden_batch
from omni_portable.contracts.rollout import Extent
from omni_portable.models.policy import transition
from omni_portable.models.setup import load_adapter
from omni_portable.trainer.preflight import prepare_algorithm
from tests.conformance.evidence_doubles import SETTINGS, toy_context


def test_it_equals_autograds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Flow-GRPO's loss written out: rows that the clip holds have no gradient, the others -A ratio d log-prob."""
    setup = golden_setup(toy_context(monkeypatch, tmp_path).setup, SETTINGS)
    adapter, case = load_adapter(setup, ("transformer",)), SETTINGS.cases[0]
    recorded = run_free(adapter, SETTINGS, case, torch.device("cpu"))
    schedule = adapter.schedule(SETTINGS.num_steps, Extent(SETTINGS.height, SETTINGS.width))
    result = training_gradient(setup, golden_batch(SETTINGS, recorded, schedule), prepare_algorithm(setup.config))

    total = torch.zeros(())
    for index, step in enumerate(case.stochastic_steps):
        taken = transition(
            adapter,
            latents=recorded["latents"][:, step],
            step_index=torch.full((3,), step),
            schedule=schedule,
            kind=case.step_kind,
            noise_level=case.noise_level,
            conditioning={"tokens": recorded["conditioning.tokens"]},
            next_latents=recorded["latents"][:, step + 1],
        )
        old = recorded["log_probs"][:, index] - torch.tensor(SETTINGS.ratio_offsets)
        ratio, advantages = (taken.log_prob - old).exp(), torch.tensor(SETTINGS.advantages)
        total = total + torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)).sum()
    loss = total / 9
    loss.backward()
    parameters = adapter.transformer.named_parameters()
    expected = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters}

    assert result.metrics["actor/loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert result.gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.linalg.norm(result.gradients[name] - gradient) <= 2e-6 * torch.linalg.norm(gradient) + 1e-9, name
    norm = sum(value**2 for value in group_norms(result.gradients).values()) ** 0.5
    assert norm == pytest.approx(result.metrics["actor/grad_norm"], rel=1e-5)
    assert torch.equal(result.log_probs, recorded["log_probs"])


def test_the_runs_own_optimizer_settings_do_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    setup = golden_setup(toy_context(monkeypatch, tmp_path).setup, SETTINGS)
    adapter = load_adapter(setup, ("transformer",))
    recorded = run_free(adapter, SETTINGS, SETTINGS.cases[0], torch.device("cpu"))
    batch = golden_batch(SETTINGS, recorded, adapter.schedule(SETTINGS.num_steps, Extent(32, 48)))
    other = replace(setup.config.actor, lr=1.0, beta1=0.5, weight_decay=0.3, warmup_steps=9, grad_clip=1e-9)
    results = [
        training_gradient(one, batch, prepare_algorithm(setup.config)).gradients
        for one in (setup, replace(setup, config=replace(setup.config, actor=other)))
    ]
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("transformer_blocks.0.attn.to_q.weight", "transformer_blocks.0"),
        ("transformer_blocks.12.attn.to_q.lora_A.weight", "transformer_blocks.12"),
        ("proj_out.weight", "proj_out"),
        ("time_text_embed.timestep_embedder.linear_1.bias", "time_text_embed"),
        ("scale", "scale"),
    ],
)
def test_groups(name: str, group: str) -> None:
    assert group_of(name) == group


def test_samples_reach_all_columns_of_a_matrix() -> None:
    columns = torch.arange(96).expand(96, 96)
    kept = sampled(columns)
    assert 100 <= len(kept) <= 140
    assert len(kept.unique()) > 60
    assert sampled(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]


def test_samples_of_a_group_are_joined_in_order_of_names() -> None:
    joined = grouped({"b.weight": torch.tensor([2.0]), "a.0.x": torch.tensor([1.0]), "b.bias": torch.tensor([3.0])})
    assert {group: vector.tolist() for group, vector in joined.items()} == {"a.0": [1.0], "b": [3.0, 2.0]}
