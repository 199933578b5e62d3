"""What our pipeline does in vLLM-Omni's worker: encode, denoise, decode, with the adapter and the shared sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from omni_backends.rollout.native.artifacts import decode
from omni_backends.rollout.native.denoise import PackRun, Prompted, Sample, start_samples
from omni_backends.rollout.vllm_omni.messages import decode_request, encode_error, encode_trajectory
from omni_portable.contracts.errors import OmniPortableError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import DiffusionAdapter
from omni_portable.contracts.rollout import Conditioning, Extent, RolloutRequest
from omni_portable.rollout.batching import ShapeKey, check_request, shape_key
from omni_portable.rollout.prompt_cache import PromptCache
from omni_portable.rollout.statistics import RolloutStatistics

COUNTERS = ("requests", "forwards", "prompt_cache/hits", "prompt_cache/misses")
Answer = dict[str, Any]


class Drawer:
    """Draws samples with one adapter whose transformer is the engine's.

    Args:
        adapter: loaded with text encoder and VAE, its transformer bridged.
        device: of the worker.
        prompt_cache_size: prompt embeddings kept.
        decode_batch_size: samples decoded at once; 0 decodes a whole batch.
    """

    def __init__(
        self, adapter: DiffusionAdapter, device: torch.device, prompt_cache_size: int, decode_batch_size: int
    ) -> None:
        self._adapter, self._device = adapter, device
        self._decode_batch_size = decode_batch_size
        self._cache = PromptCache(prompt_cache_size, self._encode)
        self._runs: dict[tuple[int, ...], PackRun] = {}
        self._widths: dict[int, tuple[int, int]] = {}
        self.statistics = RolloutStatistics(COUNTERS)
        self.version = 0

    def whole(self, messages: Sequence[Mapping[str, Any]], between_steps: Callable[[], None]) -> list[Answer]:
        """Draw a batch of whole requests; answers are in the order of `messages`.

        Requests that cannot share a forward (see :class:`ShapeKey`) get one each; rows are ordered as their pack is,
        whatever order they arrived in. Errors of ours become answers.

        Args:
            between_steps: called before every forward; may raise to stop.
        """
        answers: list[Answer | None] = [None] * len(messages)
        with self._exact():
            for rows in self._groups(messages):
                try:
                    found = self._draw([messages[row] for row in rows], between_steps)
                except OmniPortableError as error:
                    found = [encode_error(error)] * len(rows)
                for row, answer in zip(rows, found, strict=True):
                    answers[row] = answer
        return [answer for answer in answers if answer is not None]

    def start(self, message: Mapping[str, Any]) -> Sample:
        """A sample at its initial latents, for batches that are formed at every step."""
        with self._exact():
            request = decode_request(message)
            self.statistics.count("requests")
            return self._start([request], self._key(request))[0]

    def advance(self, samples: Sequence[Sample]) -> None:
        """One step of every sample, in as few forwards as their keys allow."""
        groups: dict[ShapeKey, list[Sample]] = {}
        for sample in samples:
            groups.setdefault(sample.key, []).append(sample)
        current: dict[tuple[int, ...], PackRun] = {}
        with self._exact(), self.statistics.timed("denoise"):
            for group in groups.values():
                identity = tuple(id(sample) for sample in group)
                run = self._runs.get(identity) or PackRun(self._adapter, group, self._device)
                current[identity] = run
                run.advance()
                self.statistics.count("forwards")
                self.statistics.batch(run.size)
                for row, sample in enumerate(group):
                    widest = self._widths.get(id(sample), (0, 0))
                    self._widths[id(sample)] = max(widest, (run.size, row))
        self._runs = current

    def finish(self, sample: Sample) -> Answer:
        """The answer of a sample whose latents are clean."""
        size, row = self._widths.pop(id(sample), (1, 0))
        with self._exact():
            try:
                artifacts = self._decode([sample], sample.request.extent)[0]
                trajectory = sample.trajectory(artifacts, self.version, "vllm_omni", batch_size=size, batch_row=row)
            except OmniPortableError as error:
                return encode_error(error)
            return encode_trajectory(trajectory)

    def forget(self) -> None:
        """Drop what belongs to samples under way (all of them were aborted)."""
        self._runs, self._widths = {}, {}

    def _draw(self, messages: Sequence[Mapping[str, Any]], between_steps: Callable[[], None]) -> list[Answer]:
        requests = [decode_request(message) for message in messages]
        for request in requests:
            check_request(request)
        between_steps()
        self.statistics.count("requests", len(requests))
        self.statistics.batch(len(requests))
        samples = self._start(requests, self._key(requests[0]))
        run = PackRun(self._adapter, samples, self._device)
        for _ in range(run.num_steps):
            between_steps()
            with self.statistics.timed("denoise"):
                run.advance()
            self.statistics.count("forwards")
        between_steps()
        artifacts = self._decode(samples, run.extent)
        return [
            encode_trajectory(run.trajectory(row, artifacts[row], self.version, "vllm_omni")) for row in range(run.size)
        ]

    def _groups(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[list[int]]:
        groups: dict[ShapeKey, list[int]] = {}
        for row, message in enumerate(messages):
            groups.setdefault(self._key(decode_request(message)), []).append(row)
        for rows in groups.values():
            yield sorted(rows, key=lambda row: (str(messages[row]["pack"]), int(messages[row]["row"])))

    def _key(self, request: RolloutRequest) -> ShapeKey:
        return shape_key(request, self._adapter.latent_shape(request.extent))

    def _start(self, requests: Sequence[RolloutRequest], key: ShapeKey) -> list[Sample]:
        with self.statistics.timed("encode"):
            prompts = [self._prompted(request, key.with_negative) for request in requests]
        return start_samples(self._adapter, requests, key, prompts, self._device)

    def _decode(self, samples: Sequence[Sample], extent: Extent) -> list[dict[str, MediaArtifact]]:
        artifacts: list[dict[str, MediaArtifact]] = []
        size = self._decode_batch_size or len(samples)
        with self.statistics.timed("decode"):
            for first in range(0, len(samples), size):
                latents = torch.stack([sample.latents for sample in samples[first : first + size]])
                artifacts += decode(self._adapter, latents, extent)
        return artifacts

    def _prompted(self, request: RolloutRequest, with_negative: bool) -> Prompted:
        negative = self._conditioning(request.negative_prompt, request) if with_negative else None
        return Prompted(self._conditioning(request.prompt, request), negative)

    def _conditioning(self, prompt: str, request: RolloutRequest) -> Conditioning:
        hits = self._cache.statistics().hits
        found = self._cache.get(prompt, request.media, request.extent)
        hit = self._cache.statistics().hits > hits
        self.statistics.count("prompt_cache/hits" if hit else "prompt_cache/misses")
        return found

    def _encode(self, prompt: str, media: Mapping[str, MediaArtifact], extent: Extent) -> Conditioning:
        encoded = self._adapter.encode([prompt], [media] if media else None, extent)[0]
        return {name: tensor.detach().to("cpu") for name, tensor in encoded.items()}

    @contextmanager
    def _exact(self) -> Iterator[None]:
        """Plain tensors without gradients, as in the native engine (the engine runs pipelines in inference mode)."""
        with torch.inference_mode(False), torch.no_grad():
            yield
