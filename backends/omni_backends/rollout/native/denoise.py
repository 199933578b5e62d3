"""Requests on their way from noise to clean latents, what is recorded of them, and one forward for several of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """One stored transition: step, latents before and after (...), log-prob ()."""

    step: int
    latents: torch.Tensor
    next_latents: torch.Tensor
    log_prob: torch.Tensor


@dataclass(eq=False)
class Sample:
    """One request under way.

    Args:
        request / key / prompted: what is drawn, what its batch must agree on, and its conditioning.
        latents: (...) fp32 on the device, as far as they are.
        step: denoising steps taken.
        recorded: transitions stored so far, on the host.
    """

    request: RolloutRequest
    key: ShapeKey
    prompted: Prompted
    latents: torch.Tensor
    step: int = 0
    recorded: list[_Recorded] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether the latents are clean."""
        return self.step == self.request.schedule.num_steps

    def trajectory(
        self, artifacts: dict[str, MediaArtifact], version: int, engine: str, *, batch_size: int, batch_row: int
    ) -> Trajectory:
        """What the request produced; its tensors own their storage and live on the host.

        Raises:
            NonFiniteError: the clean latents or a recorded log-prob are NaN or infinite.
        """
        kept, shape = self.recorded, self.key.latent_shape
        trajectory = Trajectory(
            request=self.request,
            schedule_fingerprint=self.request.schedule.fingerprint,
            policy_version=version,
            step_indices=torch.tensor([item.step for item in kept], dtype=torch.int64),
            latents=_stack([item.latents for item in kept], shape),
            next_latents=_stack([item.next_latents for item in kept], shape),
            log_probs=_stack([item.log_prob for item in kept], ()),
            final_latents=self.latents.detach().to("cpu", copy=True),
            conditioning=join_conditioning(self.prompted.positive, self.prompted.negative),
            artifacts=artifacts,
            batch_size=batch_size,
            batch_row=batch_row,
            engine=engine,
        )
        _check_finite(trajectory)
        return trajectory


def start_samples(
    adapter: DiffusionAdapter,
    requests: Sequence[RolloutRequest],
    key: ShapeKey,
    prompts: Sequence[Prompted],
    device: torch.device,
) -> list[Sample]:
    """Samples of one :class:`ShapeKey` at their initial latents, each a function of its own request alone."""
    noise = unit_noise(requests, INITIAL, key.latent_shape).to(device)
    latents = adapter.initial_latents(requests, noise)
    return [
        Sample(request, key, prompted, row)
        for request, prompted, row in zip(requests, prompts, latents.unbind(), strict=True)
    ]


class PackRun:
    """Denoises B samples of one :class:`ShapeKey` together, each from its own step; the caller holds no_grad.

    Engines that form a batch once advance it until all samples are done; engines that form a new one at every step
    advance it once. An aborted request keeps its row as long as the batch lives: the batch shape of the others must not
    change under way, or the actor could not repeat their arithmetic.
    """

    def __init__(self, adapter: DiffusionAdapter, samples: Sequence[Sample], device: torch.device) -> None:
        self._adapter, self.samples, self._device = adapter, tuple(samples), device
        self._key = samples[0].key
        self._positive = self._collate([sample.prompted.positive for sample in samples])
        negatives = [sample.prompted.negative for sample in samples if sample.prompted.negative is not None]
        self._negative = self._collate(negatives) if negatives else None

    @property
    def size(self) -> int:
        """B, the rows of every forward."""
        return len(self.samples)

    @property
    def extent(self) -> Extent:
        """Size of every sample of the pack."""
        return self._key.extent

    @property
    def num_steps(self) -> int:
        return self.samples[0].request.schedule.num_steps

    @property
    def latents(self) -> torch.Tensor:
        """(B, ...) fp32 on the device, as far as they are."""
        return torch.stack([sample.latents for sample in self.samples])

    def advance(self) -> None:
        """One forward: every row goes from sigma[step] to sigma[step + 1], stochastic where its own plan says so."""
        stochastic = [sample.step in sample.request.plan.stochastic_steps for sample in self.samples]
        latents = self.latents
        outcome = transition(
            self._adapter,
            latents=latents,
            step_index=torch.tensor([sample.step for sample in self.samples], dtype=torch.int64),
            schedule=self.samples[0].request.schedule,
            kind=self.samples[0].request.plan.kind,
            noise_level=self._key.noise_level,
            include_normalizer=self._key.include_normalizer,
            conditioning=self._positive,
            negative=self._negative,
            guidance_scale=self._key.guidance_scale,
            stochastic=torch.tensor(stochastic),
            noise=self._noise(stochastic),
        )
        key = self._key
        kept = [key.record_every_step or (key.record_transitions and drawn) for drawn in stochastic]
        if any(kept):
            self._record(kept, latents, outcome)
        for sample, row in zip(self.samples, outcome.next_latents.unbind(), strict=True):
            sample.latents = row
            sample.step += 1

    def trajectory(self, row: int, artifacts: dict[str, MediaArtifact], version: int, engine: str) -> Trajectory:
        """What the sample in `row` produced (see :meth:`Sample.trajectory`)."""
        sample = self.samples[row]
        return sample.trajectory(artifacts, version, engine, batch_size=self.size, batch_row=row)

    def _collate(self, conditionings: Sequence[Conditioning]) -> Conditioning:
        return {name: tensor.to(self._device) for name, tensor in self._adapter.collate(conditionings).items()}

    def _noise(self, stochastic: Sequence[bool]) -> torch.Tensor | None:
        """Noise of the stochastic rows; zeros in the others, which ignore theirs."""
        rows = [row for row, wanted in enumerate(stochastic) if wanted]
        if not rows:
            return None
        noise = torch.zeros((self.size, *self._key.latent_shape), dtype=torch.float32)
        for row in rows:
            sample = self.samples[row]
            noise[row] = unit_noise([sample.request], sample.step, self._key.latent_shape)[0]
        return noise.to(self._device)

    def _record(self, kept: Sequence[bool], latents: torch.Tensor, outcome: Transition) -> None:
        before, after, log_probs = (t.to("cpu") for t in (latents, outcome.next_latents, outcome.log_prob))
        for row, wanted in enumerate(kept):
            if wanted:
                sample = self.samples[row]
                sample.recorded.append(_Recorded(sample.step, before[row], after[row], log_probs[row]))


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
