"""What passes the trainer when samples are drawn, taught and dealt to ranks: with the workers' own code on both sides,
and the object store between them a list."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

pytest.importorskip("ray")

from ray.exceptions import ObjectLostError  # noqa: E402

from omni_backends.launch.ray.engine import RemoteRolloutEngine  # noqa: E402
from omni_backends.launch.ray.host import RolloutHost, TeacherHost  # noqa: E402
from omni_backends.launch.ray.teachers import RemoteTeacher  # noqa: E402
from omni_backends.training.fsdp2.message import from_bytes, to_bytes  # noqa: E402
from omni_backends.training.fsdp2.shares import check_batch, deal  # noqa: E402
from omni_portable.config.schema import ModelConfig, TeacherConfig, TeacherPoolConfig  # noqa: E402
from omni_portable.contracts.algorithm import TrainBatch  # noqa: E402
from omni_portable.contracts.errors import ClusterError, TeacherError, WorkerLostError  # noqa: E402
from omni_portable.contracts.media import MediaArtifact  # noqa: E402
from omni_portable.contracts.rollout import RolloutResult  # noqa: E402
from omni_portable.contracts.teacher import TeacherOutput  # noqa: E402
from omni_portable.contracts.tokens import AnyRequest, AnyTrajectory, TokenRequest  # noqa: E402
from omni_portable.rollout.codec import pack  # noqa: E402
from omni_portable.rollout.distant import Bundles, DistantTensor  # noqa: E402
from omni_portable.trainer.teaching import TeacherStage, bare  # noqa: E402
from tests.support.requests import make_request, make_trajectory  # noqa: E402
from tests.support.token_models import token_request, token_trajectory  # noqa: E402

SAMPLES, LEAST = 8, 64 << 10


@dataclass(frozen=True)
class Reference:
    """To an object of the store."""

    number: int


class Store:
    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.fetched: list[Reference] = []

    def put(self, value: Any) -> Reference:
        self.objects.append(value)
        return Reference(len(self.objects) - 1)

    def bring(self, reference: Reference) -> Any:
        self.fetched.append(reference)
        return self.objects[reference.number]


class Worker:
    """A process that hosts a role; counts the bytes that it is sent and that it answers with."""

    label = "there"
    patience_s = 60.0

    def __init__(self, host: Any, role: Any, store: Store) -> None:
        host._role = role
        self._host, self._store, self.bring = host, store, store.bring
        self.went = self.came = 0

    async def asked_apart(self, method: str, *arguments: Any, extra: int) -> tuple[Any, ...]:
        self.went += sum(len(one) for one in arguments if isinstance(one, bytes))
        there = [self._store.objects[one.number] if isinstance(one, Reference) else one for one in arguments]
        answer, *others = await asyncio.to_thread(getattr(self._host, method), *there)
        assert len(others) == extra
        self.came += len(answer)
        return answer, *map(self._store.put, others)


class Drawing:
    """Draws what is as large as `side` says: denoised samples, or responses to what was encoded of a picture."""

    def __init__(self, side: int) -> None:
        self._side = side

    async def generate(self, requests: Sequence[AnyRequest]) -> RolloutResult:
        generator = torch.Generator().manual_seed(self._side)
        encoded = {name: self._encoded(generator) for name in sorted({r.group_id for r in requests})}
        return RolloutResult([self._one(request, encoded[request.group_id], generator) for request in requests])

    def _encoded(self, generator: torch.Generator) -> dict[str, torch.Tensor]:
        width = self._side**2
        return {
            "media_embeds": torch.randn(16, width, generator=generator),
            "media_at": torch.arange(16),
            "deepstack": torch.randn(3, 16, width, generator=generator),
        }

    def _one(self, request: AnyRequest, encoded: dict[str, torch.Tensor], generator: torch.Generator) -> AnyTrajectory:
        if isinstance(request, TokenRequest):
            made = token_trajectory(0, 3 + request.sample_index, request=request)
            return replace(made, inputs=made.inputs | encoded)
        steps = torch.randn(3, 16, self._side, self._side, generator=generator)
        changed: dict[str, Any] = {"latents": steps[:2], "next_latents": steps[1:], "final_latents": steps[2]}
        made_up = replace(make_trajectory(request), **changed, conditioning=dict(encoded))
        return replace(made_up, step_indices=torch.arange(2), log_probs=torch.zeros(2))


class Knowing:
    """Says something as large as the samples that it is given whole."""

    def __init__(self, broken: float = 0.0) -> None:
        self._broken = broken

    async def teach_async(self, trajectories: Sequence[AnyTrajectory]) -> list[TeacherOutput]:
        return [self._one(trajectory) for trajectory in trajectories]

    def _one(self, trajectory: Any) -> TeacherOutput:
        assert not trajectory.request.media
        inputs = getattr(trajectory, "inputs", None)
        held = [trajectory.latents, *trajectory.conditioning.values()] if inputs is None else [*inputs.values()]
        assert all(type(tensor) is torch.Tensor for tensor in held), "each is fetched once, and then here"
        if inputs is None:
            return TeacherOutput("a", velocity=trajectory.latents.sin() + self._broken)
        logits = inputs["deepstack"].sum() + inputs["media_embeds"].flatten() + self._broken
        length = trajectory.length
        return TeacherOutput("a", log_prob=logits[:length].clone(), logits=logits.expand(length, -1))


def requests_of(kind: str, side: int) -> list[AnyRequest]:
    """Two prompts with a picture each."""
    make: Any = token_request if kind == "tokens" else make_request
    pixels = [torch.full((3, 8 * side, 8 * side), index, dtype=torch.uint8) for index in range(2)]
    media = [{"image": MediaArtifact("image", "image", each, "CHW")} for each in pixels]
    return [make(index, media=media[index // 4]) for index in range(SAMPLES)]


def stage(teacher: Any, **policy: Any) -> TeacherStage:
    model = ModelConfig(teachers={"a": TeacherConfig(path="a")})
    return TeacherStage(model, TeacherPoolConfig(placement="pool", **policy), {"a": [teacher]})


@dataclass(frozen=True)
class Passed:
    """A step's samples, from drawing to ranks.

    Args:
        trajectories: as they wait for training.
        ranks: what each of two ranks was given.
        sizes: bytes from rollout, to the teacher, from it, and to the ranks.
        store: where the rest is.
    """

    trajectories: Sequence[AnyTrajectory]
    ranks: list[list[AnyTrajectory]]
    sizes: list[int]
    store: Store


def passed(kind: str, side: int, least: int) -> Passed:
    store, requests = Store(), requests_of(kind, side)
    rollout, teacher = Worker(RolloutHost(), Drawing(side), store), Worker(TeacherHost(), Knowing(), store)
    engine = RemoteRolloutEngine(rollout, "there", 1, least, tensors=True)  # type: ignore[arg-type]
    drawn = asyncio.run(engine.generate(requests)).trajectories
    assert [one.request for one in drawn] == requests
    assert all(one.request.media is asked.media for one, asked in zip(drawn, requests, strict=True))
    asking = stage(RemoteTeacher(teacher, least))  # type: ignore[arg-type]
    waiting = [bare(trajectory) for trajectory in asyncio.run(asking.run(drawn)).trajectories]
    sizes, ranks = [rollout.came, teacher.went, teacher.came, 0], []
    batch = TrainBatch(waiting, torch.ones(SAMPLES), noise_keys=tuple("abcdefgh"), seed=1)
    rows = "tokens" if kind == "tokens" else "transitions"
    check_batch(batch, 2, rows=rows, alike=True, routed=False)
    rounds = deal(batch, 2, 2, train=True)
    assert store.fetched == [], "nothing that was dealt out came to the trainer"
    for rank in range(2):
        bundles = Bundles()
        blob = to_bytes([dealt[rank] for dealt in rounds], bundles)
        sizes[3] += len(blob)
        parts = [store.objects[source.reference.number] for source in bundles.sources]  # type: ignore[attr-defined]
        shares = from_bytes(blob, [[memoryview(part) for part in each] for each in parts])
        ranks.append([trajectory for share in shares for trajectory in share.batch.trajectories])
    return Passed(waiting, ranks, sizes, store)


@pytest.mark.parametrize("kind", ["tokens", "denoised"])
def test_what_passes_the_trainer_does_not_grow_with_the_samples(kind: str) -> None:
    small, large = passed(kind, 32, LEAST), passed(kind, 64, LEAST)
    assert small.sizes == large.sizes
    assert max(large.sizes) < 40000
    near = passed(kind, 64, 0)
    assert min(near.sizes) > 1 << 20
    assert not any(isinstance(tensor, DistantTensor) for tensor in tensors(near.trajectories[0]))
    assert pack(large.ranks) == pack(near.ranks), "the ranks get the same bits"
    assert large.store.fetched == []
    assert pack(large.trajectories) == pack(near.trajectories), "and so does whoever reads them in the trainer"


def tensors(trajectory: Any) -> list[torch.Tensor]:
    assert trajectory.teacher is not None
    inputs = getattr(trajectory, "inputs", None)
    own = [trajectory.latents, *trajectory.conditioning.values()] if inputs is None else [*inputs.values()]
    return [*own, *trajectory.teacher.tensors().values()]


def test_the_trainer_has_what_it_reads_of_a_response() -> None:
    trajectory: Any = passed("tokens", 64, LEAST).trajectories[5]
    distant = {name for name, tensor in trajectory.inputs.items() if isinstance(tensor, DistantTensor)}
    assert distant == {"media_embeds", "deepstack"}
    assert isinstance(trajectory.teacher.logits, DistantTensor)
    near = (trajectory.response_ids, trajectory.log_probs, trajectory.sampled_log_probs, trajectory.teacher.log_prob)
    assert all(type(tensor) is torch.Tensor for tensor in near)
    assert trajectory.request.media == {}, "pictures that prompts came with do not wait for training"


@pytest.mark.parametrize("kind", ["tokens", "denoised"])
def test_an_output_that_is_not_finite_comes_to_the_trainer_and_is_refused(kind: str) -> None:
    store = Store()
    worker = Worker(TeacherHost(), Knowing(broken=float("nan")), store)
    drawn = asyncio.run(Drawing(64).generate(requests_of(kind, 64))).trajectories
    asking = stage(RemoteTeacher(worker, LEAST))  # type: ignore[arg-type]
    with pytest.raises(TeacherError, match="for the sample 'r0' is not finite in (velocity|log_prob, logits)"):
        asyncio.run(asking.run(drawn))


def test_samples_that_are_gone_with_their_machine_are_neither_asked_about_again_nor_left_out() -> None:
    asked = []

    class Lost(Worker):
        async def asked_apart(self, method: str, *arguments: Any, extra: int) -> tuple[Any, ...]:
            asked.append(method)
            raise WorkerLostError("the process of 'there' is gone") from ObjectLostError("ab" * 28, None, "")

    worker = Lost(TeacherHost(), Knowing(), Store())
    drawn = asyncio.run(Drawing(4).generate(requests_of("denoised", 4))).trajectories
    asking = stage(RemoteTeacher(worker, LEAST), retries=3, on_error="drop_group")  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="tensors of 8 samples, the first 'r0', are gone with the machine"):
        asyncio.run(asking.run(drawn))
    assert asked == ["teach"]
