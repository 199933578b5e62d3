"""Requests to a rollout engine and the trajectories it returns, plus the engine's protocol."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from omni_portable.contracts.errors import ArtifactError
from omni_portable.contracts.lifecycle import Ack, EngineState
from omni_portable.contracts.media import PREFIX, MediaArtifact
from omni_portable.contracts.weights import WeightStream

if TYPE_CHECKING:
    import torch

    from omni_portable.contracts.teacher import TeacherOutput
    from omni_portable.contracts.tokens import AnyTrajectory, TokenPrefix

StepKind = Literal["ode", "sde", "cps", "dance_sde"]
Conditioning = dict[str, "torch.Tensor"]
"""Named tensors a model needs beside latents and sigma; no batch dimension for one prompt, a leading B for a batch."""


@dataclass(frozen=True)
class Extent:
    """Size of one sample.

    Args:
        height / width: pixels.
        num_frames: 1 for images.
        frame_rate: frames per second of a video, which also fixes the length of its sound; 0 for images.
    """

    height: int
    width: int
    num_frames: int = 1
    frame_rate: float = 0.0

    @property
    def seconds(self) -> float:
        """Length of a video; 0 for images."""
        return self.num_frames / self.frame_rate if self.frame_rate else 0.0


@dataclass(frozen=True)
class Schedule:
    """The sigmas of one denoising run, made once per request shape and carried with the request.

    Args:
        sigmas: T + 1 noise levels from 1 (or close) down to 0, each exactly representable in fp32.
        timestep_scale: model timestep = sigma * timestep_scale (1000 for most families).
        key: what the schedule was made from (family, steps, shift, size), for error messages.
    """

    sigmas: tuple[float, ...]
    timestep_scale: float = 1000.0
    key: str = ""

    @property
    def num_steps(self) -> int:
        return len(self.sigmas) - 1

    @property
    def sigma_max(self) -> float:
        """The second sigma: what the flow-SDE uses in place of sigma where sigma is 1 (flow_grpo's convention)."""
        return self.sigmas[1]

    @property
    def fingerprint(self) -> str:
        """Hash of the exact fp32 values: equal fingerprints mean bit-equal schedules."""
        packed = struct.pack(f"<{len(self.sigmas) + 1}f", *self.sigmas, self.timestep_scale)
        return hashlib.sha256(packed).hexdigest()[:16]


@dataclass(frozen=True)
class SamplingPlan:
    """Which denoising steps are stochastic and what the engine must record; made by the algorithm.

    Args:
        kind: step kernel of the stochastic steps; all others are ODE steps.
        noise_level: eta of the kernel, > 0 wherever a log-prob is recorded.
        stochastic_steps: sorted step indices; empty for a deterministic run.
        include_normalizer: whether log-probs include the Gaussian normaliser (no effect for cps).
        record_transitions: keep (latents, next latents, log-prob) of the stochastic steps.
        record_every_step: keep those of all steps; a deterministic one has the log-prob NaN.
        keep_negative: hand back the negative prompt's conditioning even where guidance does not run.
    """

    kind: StepKind = "ode"
    noise_level: float = 0.0
    stochastic_steps: tuple[int, ...] = ()
    include_normalizer: bool = True
    record_transitions: bool = True
    record_every_step: bool = False
    keep_negative: bool = False


@dataclass(frozen=True)
class RolloutRequest:
    """One sample to draw.

    Args:
        request_id: unique within the run.
        group_id: shared by the samples of one prompt in one rollout; advantages are computed per group.
        prompt_id: stable id of the prompt in its dataset (enters the noise seed).
        sample_index: index in the group (enters the noise seed).
        seed: seed of this rollout round, derived from the run's seed and the round.
        prompt / negative_prompt: text; the negative one is used only where guidance asks for it.
        height / width / num_frames / frame_rate: see :class:`Extent`.
        schedule / plan: see :class:`Schedule` and :class:`SamplingPlan`.
        guidance_scale: 1 means no classifier-free guidance (one forward per step).
        metadata: fields of the prompt row that rewards may ask for (e.g. 'ground_truth').
        media: named input media (image to edit, first frame, ...).
        target: named media that a dataset gives in place of a sample; empty where the sample is to be drawn.
    """

    request_id: str
    group_id: str
    prompt_id: str
    sample_index: int
    seed: int
    prompt: str
    height: int
    width: int
    schedule: Schedule
    plan: SamplingPlan
    negative_prompt: str = ""
    guidance_scale: float = 1.0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    media: Mapping[str, MediaArtifact] = field(default_factory=dict)
    num_frames: int = 1
    frame_rate: float = 0.0
    target: Mapping[str, MediaArtifact] = field(default_factory=dict)

    @property
    def extent(self) -> Extent:
        """Size of the sample."""
        return Extent(self.height, self.width, self.num_frames, self.frame_rate)


@dataclass
class Trajectory:
    """What one request produced. Latents may have any shape (...); W is the number of stochastic steps kept.

    Args:
        request: the request as the engine ran it.
        schedule_fingerprint: of the schedule the engine really used (compared with the request's, bit for bit).
        policy_version: version of the weights that made it.
        step_indices: (W,) int64.
        latents / next_latents: (W, ...) fp32, before and after each recorded step.
        log_probs: (W,) fp32, mean over latent elements.
        final_latents: (...) fp32, the clean latents.
        conditioning: prompt embeddings and the like as used, so that the actor need not encode again.
        artifacts: named media.
        batch_size: number of requests packed in the forward passes that made it.
        batch_row: this request's row in that pack.
        engine: name of the rollout engine.
        teacher: what a teacher outside the train engine said of it; None where nobody asked.
    """

    request: RolloutRequest
    schedule_fingerprint: str
    policy_version: int
    step_indices: torch.Tensor
    latents: torch.Tensor
    next_latents: torch.Tensor
    log_probs: torch.Tensor
    final_latents: torch.Tensor
    conditioning: Conditioning
    artifacts: dict[str, MediaArtifact]
    batch_size: int = 1
    batch_row: int = 0
    engine: str = ""
    teacher: TeacherOutput | None = None

    def __repr__(self) -> str:
        """Without tensors: event loops format the results of their tasks, and formatting tensors takes seconds."""
        return (
            f"Trajectory({self.request.request_id!r}, version={self.policy_version}, "
            f"steps={tuple(self.step_indices.shape)}, artifacts={sorted(self.artifacts)})"
        )

    def fields(self) -> dict[str, Any]:
        """Flat form with ``media_artifact__<name>`` keys and ``metadata.media_artifacts``, as data planes store it."""
        flat: dict[str, Any] = {PREFIX + name: artifact for name, artifact in self.artifacts.items()}
        flat["metadata.media_artifacts"] = sorted(self.artifacts)
        return flat

    def __post_init__(self) -> None:
        for name, artifact in self.artifacts.items():
            if not isinstance(artifact, MediaArtifact):
                raise ArtifactError(f"request '{self.request.request_id}' returned an unlabelled tensor as '{name}'")


@dataclass
class RolloutResult:
    """Answer to one :meth:`RolloutEngine.generate` call.

    Args:
        trajectories: what finished, in request order.
        aborted: ids of the others.
        partials: of aborted requests for tokens, what had been drawn of the response (a prefix that the request came
            with included); absent where that is nothing, and of denoised samples, which begin again.
    """

    trajectories: Sequence[AnyTrajectory]
    aborted: tuple[str, ...] = ()
    partials: Mapping[str, TokenPrefix] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineHealth:
    """A cheap reading of an engine's condition."""

    state: EngineState
    policy_version: int
    in_flight: int
    detail: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class RolloutEngine(Protocol):
    """Generates trajectories with the current policy.

    Every lifecycle call returns an :class:`Ack` or raises; an illegal transition raises `LifecycleError`. A failed
    weight update raises `WeightSyncError` and leaves the engine paused at its old version.
    """

    name: str

    async def generate(self, requests: Sequence[Any]) -> RolloutResult:
        """Run the requests (:class:`RolloutRequest` or `tokens.TokenRequest`, as the engine's kind of model asks for),
        packing up to max_num_seqs of equal shape into one forward; order is kept."""
        ...

    def abort(self, request_ids: Iterable[str] | None = None) -> Ack:
        """Abort the named requests, or all (None). Partial diffusion samples are discarded; `generate` returns what
        was drawn of a response as a partial."""
        ...

    def pause(self) -> Ack:
        """Abort what is in flight, then refuse new requests until :meth:`resume`."""
        ...

    def resume(self) -> Ack: ...

    def sleep(self, level: int = 1) -> Ack:
        """Release the weights' memory: level 1 keeps a copy off the device, level 2 discards."""
        ...

    def wake(self, tags: Sequence[str] = ("weights",)) -> Ack: ...

    def update_weights(self, stream: WeightStream, version: int) -> Ack:
        """Load the stream completely or not at all; checks the manifest's checksums against what was received."""
        ...

    def weights_checksum(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Checksum per tensor of what the engine now holds, in the canonical layout."""
        ...

    def health(self) -> EngineHealth: ...

    def statistics(self) -> dict[str, float]:
        """``perf/rollout/...`` metrics since the last call: batch sizes, forwards, cache hits, seconds by part."""
        ...


@runtime_checkable
class StagedUpdates(Protocol):
    """What an engine may offer beside `update_weights`: receiving and applying as two steps, so that many replicas
    change together or not at all. `update_weights` is the one after the other."""

    def stage_weights(self, stream: WeightStream, version: int) -> Ack:
        """Receive the whole stream and verify it; the policy is not touched. A former staged update is dropped.

        Raises:
            WeightSyncError: the stream does not fit its manifest.
        """
        ...

    def commit_weights(self, version: int) -> Ack:
        """Apply what was staged for `version`, as `update_weights` would.

        Raises:
            WeightSyncError: nothing was staged for it, or it cannot be applied.
        """
        ...

    def discard_weights(self) -> Ack:
        """Drop what was staged, if anything was."""
        ...


@runtime_checkable
class RecallableUpdates(Protocol):
    """What an engine may offer beside `update_weights`: taking the last update back, where others could not follow."""

    def recall_weights(self, version: int) -> Ack:
        """Stand at an earlier version again, with its weights where they are still here: an engine keeps those that an
        update replaced until it is resumed, when everybody has the new ones.

        Returns:
            An Ack that is `ok` where the engine holds the weights of `version`. Where it is not, those that it holds
            count for nothing: it stays paused until an update to `version`, or to a later one, has come.

        Raises:
            LifecycleError: the engine is not paused.
            WeightSyncError: `version` is not an earlier one, or its weights could not be put back; then the engine
                waits for an update, too.
        """
        ...
