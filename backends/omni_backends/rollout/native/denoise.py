"""One pack of requests on its way from noise to clean latents, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omni_portable.contracts.errors import NonFiniteError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Conditioning, Extent, RolloutRequest, Trajectory
from omni_portable.models.policy import Transition, join_conditioning, transition
from omni_portable.rollout.batching import ShapeKey
from omni_portable.samplers.noise import INITIAL, unit_noise


@dataclass(frozen=True)
class Prompted:
    """Conditioning of one request on the host, without batch dimension; `negative` where the pack's key asks for it."""

    positive: Conditioning
    negative: Conditioning | None


@dataclass(frozen=True)
class _Recorded:
    """One stored transition of one row: step, latents before and after (...), log-prob ()."""

    step: int
    latents: torch.Tensor
    next_latents: torch.Tensor
    log_prob: torch.Tensor


class PackRun:
    """Denoises B requests of one :class:`ShapeKey` in lockstep; the caller holds no_grad and calls `advance` in order.

    An aborted request keeps its row until the pack ends: the batch shape of the others must not change under way, or
    the actor could not repeat their arithmetic.
    """

    def __init__(
        self,
        adapter: DiffusionAdapter,
        requests: Sequence[RolloutRequest],
        key: ShapeKey,
        prompts: Sequence[Prompted],
        device: torch.device,
    ) -> None:
        self._adapter, self._requests, self._key, self._device = adapter, requests, key, device
        self._prompts = prompts
        self._schedule = requests[0].schedule
        self._positive = self._collate([prompt.positive for prompt in prompts])
        negatives = [prompt.negative for prompt in prompts if prompt.negative is not None]
        self._negative = self._collate(negatives) if negatives else None
        noise = unit_noise(requests, INITIAL, key.latent_shape).to(device)
        self._latents = adapter.initial_latents(requests, noise)
        self._recorded: list[list[_Recorded]] = [[] for _ in requests]

    @property
    def size(self) -> int:
        """B, the rows of every forward."""
        return len(self._requests)

    @property
    def extent(self) -> Extent:
        """Size of every sample of the pack."""
        return self._key.extent

    @property
    def num_steps(self) -> int:
        return self._schedule.num_steps

    @property
    def latents(self) -> torch.Tensor:
        """(B, ...) fp32 on the device, as far as they are."""
        return self._latents

    def advance(self, step: int) -> None:
        """One forward: every row goes from sigma[step] to sigma[step + 1], stochastic where its own plan says so."""
        stochastic = [step in request.plan.stochastic_steps for request in self._requests]
        outcome = transition(
            self._adapter,
            latents=self._latents,
            step_index=torch.full((self.size,), step, dtype=torch.int64),
            schedule=self._schedule,
            kind=self._requests[0].plan.kind,
            noise_level=self._key.noise_level,
            include_normalizer=self._key.include_normalizer,
            conditioning=self._positive,
            negative=self._negative,
            guidance_scale=self._key.guidance_scale,
            stochastic=torch.tensor(stochastic),
            noise=self._noise(step, stochastic),
        )
        kept = [self._key.record_every_step or (self._key.record_transitions and drawn) for drawn in stochastic]
        if any(kept):
            self._record(step, kept, outcome)
        self._latents = outcome.next_latents

    def trajectory(self, row: int, artifacts: dict[str, MediaArtifact], version: int, engine: str) -> Trajectory:
        """What the request in `row` produced; its tensors own their storage and live on the host.

        Raises:
            NonFiniteError: the clean latents or a recorded log-prob are NaN or infinite.
        """
        request, prompt, kept = self._requests[row], self._prompts[row], self._recorded[row]
        trajectory = Trajectory(
            request=request,
            schedule_fingerprint=self._schedule.fingerprint,
            policy_version=version,
            step_indices=torch.tensor([item.step for item in kept], dtype=torch.int64),
            latents=self._stack([item.latents for item in kept], self._key.latent_shape),
            next_latents=self._stack([item.next_latents for item in kept], self._key.latent_shape),
            log_probs=self._stack([item.log_prob for item in kept], ()),
            final_latents=self._latents[row].detach().to("cpu", copy=True),
            conditioning=join_conditioning(prompt.positive, prompt.negative),
            artifacts=artifacts,
            batch_size=self.size,
            batch_row=row,
            engine=engine,
        )
        _check_finite(trajectory)
        return trajectory

    def _collate(self, conditionings: Sequence[Conditioning]) -> Conditioning:
        return {name: tensor.to(self._device) for name, tensor in self._adapter.collate(conditionings).items()}

    def _noise(self, step: int, stochastic: Sequence[bool]) -> torch.Tensor | None:
        """Noise of the stochastic rows; zeros in the others, which ignore theirs."""
        rows = [row for row, wanted in enumerate(stochastic) if wanted]
        if not rows:
            return None
        drawn = unit_noise([self._requests[row] for row in rows], step, self._key.latent_shape)
        if len(rows) == self.size:
            return drawn.to(self._device)
        noise = torch.zeros((self.size, *self._key.latent_shape), dtype=torch.float32)
        noise[rows] = drawn
        return noise.to(self._device)

    def _record(self, step: int, kept: Sequence[bool], outcome: Transition) -> None:
        before, after, log_probs = (t.to("cpu") for t in (self._latents, outcome.next_latents, outcome.log_prob))
        for row, wanted in enumerate(kept):
            if wanted:
                self._recorded[row].append(_Recorded(step, before[row], after[row], log_probs[row]))

    @staticmethod
    def _stack(tensors: Sequence[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        return torch.stack(list(tensors)) if tensors else torch.empty((0, *shape), dtype=torch.float32)


def _check_finite(trajectory: Trajectory) -> None:
    stochastic = set(trajectory.request.plan.stochastic_steps)
    drawn = [index for index, step in enumerate(trajectory.step_indices.tolist()) if step in stochastic]
    log_probs = trajectory.log_probs[drawn]  # a deterministic step has none
    for what, tensor in (("clean latents", trajectory.final_latents), ("log-probs", log_probs)):
        if not bool(torch.isfinite(tensor).all()):
            raise NonFiniteError(
                f"the {what} of request '{trajectory.request.request_id}' (policy version {trajectory.policy_version}) "
                "are not finite",
                remedy="check the weights, the noise level and the dtype of the transformer",
            )
