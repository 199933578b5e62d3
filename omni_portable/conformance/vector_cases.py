"""The functions behind each name of a reference-vector file: one dictionary, :data:`CASES`.

Each entry translates the published conventions of the file into ours (see the package README) and calls the function
that training uses; nothing is computed here that training would compute elsewhere, except batch means of row values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from omni_portable.algorithms.advantages import group_advantages
from omni_portable.algorithms.diffusion_losses.distill import flow_matching_mse
from omni_portable.algorithms.diffusion_losses.dpo import diffusion_dpo_loss
from omni_portable.algorithms.diffusion_losses.dppo import flow_dppo_loss
from omni_portable.algorithms.diffusion_losses.guard import grpo_guard_loss, shared_scale
from omni_portable.algorithms.diffusion_losses.nft import diffusion_nft_loss, nft_reward_probability
from omni_portable.algorithms.flow_grpo.loss import flow_grpo_loss
from omni_portable.algorithms.kl import gaussian_kl
from omni_portable.algorithms.pairs import best_worst_pairs
from omni_portable.algorithms.token_losses.advantages import grpo_token_advantages
from omni_portable.algorithms.token_losses.kl_penalty import kl_penalty
from omni_portable.algorithms.token_losses.policy_gradient import TokenLoss, gspo_loss, ppo_clip_loss
from omni_portable.conformance.vector_file import VectorCase, VectorFileError
from omni_portable.contracts.algorithm import LossRows
from omni_portable.contracts.rollout import StepKind
from omni_portable.samplers.kernels import log_prob, published_std, step_moments

Outputs = dict[str, Any]


class Inputs:
    """Typed access to a case's inputs; what is missing or of another type is the file's fault."""

    def __init__(self, case: VectorCase) -> None:
        self._case = case

    def tensor(self, key: str) -> torch.Tensor:
        """fp32 tensor from a number or nested lists."""
        try:
            return torch.tensor(self.get(key, (list, float, int)), dtype=torch.float32)
        except (TypeError, ValueError) as error:
            raise VectorFileError(f"{self._case.label}: input '{key}' is no array of numbers: {error}") from error

    def optional(self, key: str) -> torch.Tensor | None:
        return None if self._case.inputs.get(key) is None else self.tensor(key)

    def number(self, key: str) -> float:
        return float(self.get(key, (float, int)))

    def flag(self, key: str) -> bool:
        return bool(self.get(key, (bool,)))

    def text(self, key: str) -> Any:
        return self.get(key, (str,))

    def items(self, key: str) -> list[Any]:
        return list(self.get(key, (list,)))

    def check_label(self, key: str, start: str) -> None:
        """Refuse a case whose descriptive input `key` (where given) names another convention than ours."""
        label = self._case.inputs.get(key, start)
        if not isinstance(label, str) or not label.startswith(start):
            raise VectorFileError(f"{self._case.label}: input '{key}' is {label!r}, expected '{start}...'")

    def rows(self, key: str, count: int) -> torch.Tensor:
        """(count,) fp32 from one number for all rows or a list of one per row."""
        value = self.tensor(key)
        return value.expand(count) if value.dim() == 0 else value

    def get(self, key: str, kinds: tuple[type, ...]) -> Any:
        value = self._case.inputs.get(key)
        if value is None or not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise VectorFileError(f"{self._case.label}: input '{key}' must be {wanted}, got {type(value).__name__}")
        return value


def run_case(case: VectorCase) -> Outputs:
    """Our outputs of a case whose name is in :data:`CASES`, as plain numbers, lists and sections."""
    return _plain(CASES[case.name](Inputs(case)))


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _sampler(kind: StepKind) -> Callable[[Inputs], Outputs]:
    def run(inputs: Inputs) -> Outputs:
        inputs.check_label("step_kind", kind)
        sample = inputs.tensor("sample")
        sigma, sigma_next = (inputs.rows(key, len(sample)) for key in ("sigma", "sigma_next"))
        moments = step_moments(
            kind,
            sample,
            inputs.tensor("velocity"),
            sigma,
            sigma_next,
            inputs.number("sigma_max"),
            inputs.number("noise_level"),
        )
        std_dev = published_std(kind, moments.std, moments.dt)
        return {
            "prev_sample_mean": moments.mean,
            "std_dev": std_dev[0] if inputs.tensor("sigma").dim() == 0 else std_dev,
            "sqrt_minus_dt": torch.sqrt(-moments.dt),
            "log_prob": log_prob(kind, inputs.tensor("prev_sample"), moments, inputs.flag("include_normalizer")),
        }

    return run


def _group_advantages(inputs: Inputs) -> torch.Tensor:
    return group_advantages(
        inputs.tensor("rewards"),
        inputs.items("groups"),
        global_std=inputs.flag("global_std"),
        normalize_by_std=inputs.flag("normalize_by_std"),
        epsilon=inputs.number("epsilon"),
    )


def _advantage_group(inputs: Inputs) -> Outputs:
    return {"advantages": _group_advantages(inputs)}


def _nft_reward_probability(inputs: Inputs) -> Outputs:
    advantages = _group_advantages(inputs)
    probability = nft_reward_probability(
        advantages, advantage_clip=inputs.number("advantage_clip"), mode=inputs.text("mode")
    )
    return {"advantages": advantages, "reward_probability": probability}


def _grpo_tokens(inputs: Inputs) -> Outputs:
    return {
        "advantages": grpo_token_advantages(
            inputs.tensor("token_rewards"),
            inputs.tensor("mask"),
            inputs.items("groups"),
            normalize_by_std=inputs.flag("normalize_by_std"),
            epsilon=inputs.number("epsilon"),
            keep_lone_rewards=True,
        )
    }


def _averaged(rows: LossRows, **extra: torch.Tensor) -> Outputs:
    """Loss and metrics as published: plain means over the rows."""
    metrics = {key: value.mean() for key, value in rows.metrics.items()}
    if "actor/ratio" in metrics:
        metrics["actor/ratio_mean"] = metrics["actor/ratio"]
    return {"loss": rows.loss.mean(), "metrics": {**metrics, **extra}}


def _policy(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return inputs.tensor("log_prob"), inputs.tensor("old_log_prob"), inputs.tensor("advantages")


def _flow_grpo(inputs: Inputs) -> Outputs:
    rows = flow_grpo_loss(
        *_policy(inputs),
        clip_ratio=inputs.number("clip_ratio"),
        advantage_clip=inputs.number("advantage_clip"),
        importance_weight=inputs.optional("importance_weights"),
    )
    return _averaged(rows, **{"actor/ratio_std": rows.metrics["actor/ratio"].std()})


def _flow_dppo(inputs: Inputs) -> Outputs:
    rows = flow_dppo_loss(
        *_policy(inputs),
        inputs.tensor("mean"),
        inputs.tensor("old_mean"),
        inputs.tensor("std_dev") * inputs.tensor("sqrt_minus_dt"),
        kl_mask_threshold=inputs.number("kl_mask_threshold"),
        scale_kl_by_variance=inputs.flag("scale_kl_by_variance"),
        importance_weight=inputs.optional("importance_weights"),
    )
    ratio = rows.metrics["actor/ratio"]
    return _averaged(
        rows,
        **{
            "actor/ratio_std": ratio.std(correction=0),  # published with the population's std, unlike the others
            "actor/ratio_min": ratio.min(),
            "actor/ratio_max": ratio.max(),
            "actor/kl_new_old_max": rows.metrics["actor/kl_new_old_mean"].max(),
        },
    )


def _grpo_guard(inputs: Inputs) -> Outputs:
    std, minus_dt = shared_scale(inputs.tensor("std_dev"), inputs.tensor("sqrt_minus_dt"))
    rows = grpo_guard_loss(
        *_policy(inputs),
        inputs.tensor("mean"),
        inputs.tensor("old_mean"),
        std,
        minus_dt,
        clip_ratio=inputs.number("clip_ratio"),
        advantage_clip=inputs.number("advantage_clip"),
        importance_weight=inputs.optional("importance_weights"),
    )
    return _averaged(rows, **{"actor/ratio_std": rows.metrics["actor/ratio"].std()})


def _reference_kl(inputs: Inputs) -> Outputs:
    rows = gaussian_kl(inputs.tensor("mean"), inputs.tensor("reference_mean"), inputs.tensor("std_dev"))
    return {"loss": rows.mean()}


def _distill(inputs: Inputs) -> Outputs:
    return {"loss": flow_matching_mse(inputs.tensor("prediction"), inputs.tensor("teacher_prediction")).mean()}


def _diffusion_dpo(inputs: Inputs) -> Outputs:
    inputs.check_label("order", "adjacent")
    names = ("prediction", "reference_prediction", "noise", "latents")
    return _averaged(diffusion_dpo_loss(*(inputs.tensor(name) for name in names), beta=inputs.number("beta")))


def _diffusion_nft(inputs: Inputs) -> Outputs:
    names = ("prediction", "old_prediction", "clean", "noisy", "t", "reward_probability")
    return _averaged(
        diffusion_nft_loss(
            *(inputs.tensor(name) for name in names),
            mix_beta=inputs.number("mix_beta"),
            advantage_clip=inputs.number("advantage_clip"),
            adaptive_weight_min=inputs.number("adaptive_weight_min"),
            reference_prediction=inputs.optional("reference_prediction"),
            reference_kl_coefficient=inputs.number("reference_kl_coefficient"),
        )
    )


def _token_outputs(result: TokenLoss) -> Outputs:
    return {"loss": result.loss, "metrics": result.metrics}


def _ppo_clip(inputs: Inputs) -> Outputs:
    return _token_outputs(
        ppo_clip_loss(
            *_policy(inputs),
            inputs.tensor("mask"),
            clip_low=inputs.number("clip_low"),
            clip_high=inputs.number("clip_high"),
            dual_clip=inputs.number("dual_clip"),
            aggregation=inputs.text("aggregation"),
        )
    )


def _gspo(inputs: Inputs) -> Outputs:
    # GSPO has no dual clip; files give the key to all token losses.
    return _token_outputs(
        gspo_loss(
            *_policy(inputs),
            inputs.tensor("mask"),
            clip_low=inputs.number("clip_low"),
            clip_high=inputs.number("clip_high"),
            aggregation=inputs.text("aggregation"),
        )
    )


def _kl_penalty(inputs: Inputs) -> Outputs:
    estimator = inputs.text("estimator")
    return {"kl": kl_penalty(inputs.tensor("log_prob"), inputs.tensor("reference_log_prob"), estimator)}


def _online_dpo_pairs(inputs: Inputs) -> Outputs:
    return {"indices": best_worst_pairs(inputs.items("groups"), inputs.tensor("scores").tolist())}


CASES: dict[str, Callable[[Inputs], Outputs]] = {
    "sampler.sde": _sampler("sde"),
    "sampler.cps": _sampler("cps"),
    "sampler.dance_sde": _sampler("dance_sde"),
    "advantage.group": _advantage_group,
    "advantage.nft_reward_probability": _nft_reward_probability,
    "advantage.grpo_tokens": _grpo_tokens,
    "loss.flow_grpo": _flow_grpo,
    "loss.flow_dppo": _flow_dppo,
    "loss.grpo_guard": _grpo_guard,
    "loss.reference_kl": _reference_kl,
    "loss.distill_flow_matching_mse": _distill,
    "loss.diffusion_dpo": _diffusion_dpo,
    "loss.diffusion_nft": _diffusion_nft,
    "loss.ppo_clip": _ppo_clip,
    "loss.gspo": _gspo,
    "kl.penalty": _kl_penalty,
    "pairs.online_dpo": _online_dpo_pairs,
}
"""Case name -> our implementation."""
