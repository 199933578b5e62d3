"""A vLLM engine beside the native one on the same tiny model: they must say the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_backends.rollout.native_tokens.engine import NativeTokenEngine
from omni_portable.config.schema import RolloutConfig
from omni_portable.contracts.rollout import RolloutResult
from omni_portable.contracts.tokens import TokenRequest, TokenTrajectory
from omni_portable.models.setup import EngineSetup
from omni_portable.models.weights import make_stream
from tests.support.engines import make_setup
from tests.support.token_models import folder, prompts, token_request

MAX_NUM_SEQS = 8
FAULTY_WORKER = "tests.support.vllm_faults.FaultyWorker"
"""Our worker with calls that make it fail."""
GAP = 1e-5
"""Largest difference of log-probs between engines in fp32."""


def vllm_setup(
    name: str, *, lora_rank: int = 0, path: Path | None = None, dtype: torch.dtype = torch.float32, **options: Any
) -> EngineSetup:
    """Of a tiny model (in `path`, where given), with `rollout.options`."""
    family = name.partition("/")[0]
    setup = make_setup(family, path or folder(name), lora_rank=lora_rank, max_num_seqs=MAX_NUM_SEQS)
    setup.config.rollout.options = {"max_model_len": 512, "kv_cache_mib": 64, **options}
    return replace(setup, load=replace(setup.load, dtype=dtype))


def native_rollout() -> RolloutConfig:
    return RolloutConfig(max_num_seqs=MAX_NUM_SEQS)


def _faulty(whole: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Arguments of an engine whose workers can be made to fail."""

    def arguments(*given: Any) -> dict[str, Any]:
        return {**whole(*given), "worker_extension_cls": FAULTY_WORKER}

    return arguments


class Pair:
    """Two engines that are given the same requests and weights.

    Args:
        name: tiny model.
        lora_rank: 0 for full weights.
        path: of another model of the family than the tiny one.
        options: `dtype`, and `rollout.options` of the vLLM engine.
    """

    def __init__(self, name: str, *, lora_rank: int = 0, path: Path | None = None, **options: Any) -> None:
        from omni_backends.rollout.vllm import host
        from omni_backends.rollout.vllm.engine import VllmEngine

        self.name = name
        setup = vllm_setup(name, lora_rank=lora_rank, path=path, **options)
        self.native = NativeTokenEngine(replace(setup, config=replace(setup.config, rollout=native_rollout())))
        self._patch = pytest.MonkeyPatch()  # for as long as the engine lives: it may be started again
        self._patch.setattr(host, "engine_arguments", _faulty(host.engine_arguments))
        self.engine = VllmEngine(setup)
        self.mode = "adapter" if lora_rank else "full"
        self.first = self.held()

    def close(self) -> None:
        self.engine.close()
        self._patch.undo()

    @property
    def version(self) -> int:
        return self.engine.health().policy_version

    def held(self) -> dict[str, torch.Tensor]:
        """A copy of the native engine's weights."""
        return {name: tensor.detach().clone() for name, tensor in self.native._weights._tensors().items()}

    def changed(self, seed: int, scale: float = 0.1) -> dict[str, torch.Tensor]:
        """The first weights, moved."""
        return {
            name: tensor
            + scale * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed + index)).to(tensor.dtype)
            for index, (name, tensor) in enumerate(self.first.items())
        }

    def stream(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        return make_stream(self.mode, tensors.items(), self.native._weights._lora)  # type: ignore[arg-type]

    def update(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Give both engines new weights, and let them run."""
        for engine in (self.engine, self.native):
            engine.pause()
            engine.update_weights(self.stream(tensors), engine.health().policy_version + 1)
            engine.resume()

    def requests(self, count: int = 8, **changes: Any) -> list[TokenRequest]:
        """Of the prompts that the family takes (videos do not go through vLLM)."""
        fitting = [(p, m) for p, m in prompts(self.name) if all(a.modality != "video" for a in m.values())]
        rows = [fitting[index % len(fitting)] for index in range(count)]
        given = {"max_new_tokens": 8, **changes}
        return [token_request(index, prompt=p, media=m, **given) for index, (p, m) in enumerate(rows)]

    def both(self, requests: Sequence[TokenRequest]) -> tuple[list[TokenTrajectory], list[TokenTrajectory]]:
        return draw(self.engine, requests), draw(self.native, requests)

    def assert_same(self, requests: Sequence[TokenRequest]) -> None:
        """Equal tokens and endings; log-probs within :data:`GAP`, checksums equal."""
        ours, natives = self.both(requests)
        assert_equal(ours, natives)
        assert self.engine.weights_checksum() == self.native.weights_checksum()

    def assert_replayed(self, requests: Sequence[TokenRequest]) -> None:
        """An actor gives what vLLM draws the same log-probs."""
        found = draw(self.engine, requests)
        replayed, drawn = torch.cat(self.actor_log_probs(found)), torch.cat([t.log_probs for t in found])
        assert (replayed - drawn).abs().max() <= GAP
        assert torch.corrcoef(torch.stack([replayed.exp().double(), drawn.exp().double()]))[0, 1] >= 0.9999

    def actor_log_probs(self, trajectories: Sequence[TokenTrajectory]) -> list[torch.Tensor]:
        """What a replay with the native engine's adapter gives, request by request."""
        from omni_portable.contracts.tokens import TokenRow

        adapter = self.native._adapter
        with torch.no_grad():
            return [
                adapter.score([TokenRow(t.inputs, t.response_ids)], t.request.scored_temperature).log_prob[0]
                for t in trajectories
            ]


def draw(engine: Any, requests: Sequence[TokenRequest]) -> list[TokenTrajectory]:
    return list(result(engine, requests).trajectories)  # type: ignore[arg-type]


def result(engine: Any, requests: Sequence[TokenRequest]) -> RolloutResult:
    found: RolloutResult = asyncio.run(engine.generate(requests))
    return found


def assert_equal(left: Sequence[TokenTrajectory], right: Sequence[TokenTrajectory]) -> None:
    assert [t.request for t in left] == [t.request for t in right]
    for one, other in zip(left, right, strict=True):
        assert one.response_ids.tolist() == other.response_ids.tolist()
        assert one.finish_reason == other.finish_reason
        assert one.artifacts["response"].data == other.artifacts["response"].data
        assert (one.log_probs - other.log_probs).abs().max() <= GAP
