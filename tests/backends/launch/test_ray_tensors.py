"""Tensors of samples that stay in the object store: what goes apart, what is passed on, and how much that is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("ray")

from omni_backends.launch.ray.tensors import Bundle, Outbox, Outgoing, reference_of, sources_of, thinned  # noqa: E402
from omni_backends.training.fsdp2.message import from_bytes, to_bytes  # noqa: E402
from omni_backends.training.fsdp2.shares import check_batch, deal  # noqa: E402
from omni_portable.contracts.algorithm import TrainBatch  # noqa: E402
from omni_portable.contracts.rollout import RolloutResult  # noqa: E402
from omni_portable.rollout.codec import pack, unpack  # noqa: E402
from omni_portable.rollout.distant import Bundles, DistantTensor  # noqa: E402
from tests.support.requests import make_request, make_trajectory  # noqa: E402
from tests.support.trajectories import bit_equal  # noqa: E402

SAMPLES = 4
APART = 64 << 10


class Store:
    """In place of an object store; a reference is the object's number."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.fetched: list[int] = []

    def bring(self, reference: int) -> Any:
        self.fetched.append(reference)
        return self.objects[reference]


def drawn(side: int) -> RolloutResult:
    """A prompt's samples: views of one stack of latents, and a conditioning that all have."""
    generator = torch.Generator().manual_seed(side)
    steps = torch.randn(SAMPLES, 3, 16, side, side, generator=generator)
    shared = {"prompt_embeds": torch.randn(64, 512, generator=generator), "pooled": torch.randn(8, generator=generator)}
    trajectories = [
        replace(
            make_trajectory(make_request(index)),
            step_indices=torch.arange(2),
            latents=steps[index, :2],
            next_latents=steps[index, 1:],
            log_probs=torch.randn(2, generator=generator),
            final_latents=steps[index, 2],
            conditioning=dict(shared),
        )
        for index in range(SAMPLES)
    ]
    return RolloutResult(trajectories, ("gone",))


def travelled(result: RolloutResult, store: Store) -> tuple[RolloutResult, int]:
    """As from a rollout worker to the trainer: what that has, and bytes that came."""
    groups = {trajectory.request.request_id: trajectory.request.group_id for trajectory in result.trajectories}
    groups["gone"] = "g9"
    outbox = Outbox(groups)
    blob = pack(thinned(result, outbox, APART), Bundles(list(outbox.sources)))
    first = len(store.objects)
    store.objects += [source.parts for source in outbox.sources]
    assert len(outbox.sources) == sources_of(list(groups.values()))
    return unpack(blob, [Bundle(first + place, store.bring) for place in range(len(outbox.sources))]), len(blob)


def test_the_trainer_has_shapes_and_small_tensors_and_the_rest_comes_when_it_is_computed_with() -> None:
    store, result = Store(), drawn(32)
    back, _ = travelled(result, store)
    assert back.aborted == ("gone",)
    for ours, theirs in zip(back.trajectories, result.trajectories, strict=True):
        large = (ours.latents, ours.next_latents, ours.final_latents, ours.conditioning["prompt_embeds"])
        assert all(isinstance(tensor, DistantTensor) for tensor in large)
        assert type(ours.log_probs) is type(ours.conditioning["pooled"]) is torch.Tensor
        assert ours.latents.shape == theirs.latents.shape
    assert store.fetched == []
    assert back.trajectories[0].conditioning["prompt_embeds"] is back.trajectories[1].conditioning["prompt_embeds"]
    assert bit_equal(back.trajectories, result.trajectories)
    assert torch.equal(
        back.trajectories[2].conditioning["prompt_embeds"], result.trajectories[2].conditioning["prompt_embeds"]
    )


def test_what_samples_share_is_kept_once_and_small_samples_travel_whole() -> None:
    store = Store()
    travelled(drawn(32), store)
    *own, gone, shared, others, all_have = store.objects
    latents = 16 * 32 * 32 * 4
    assert [sum(part.nbytes for part in parts) for parts in own] == [5 * latents] * SAMPLES
    assert sum(part.nbytes for part in shared) == 64 * 512 * 4 >= APART
    assert gone == others == all_have == []
    small, _ = travelled(drawn(4), Store())
    assert type(small.trajectories[0].latents) is torch.Tensor


def test_what_several_prompts_share_is_kept_once_too() -> None:
    """As a negative prompt is; each prompt's own conditioning goes to whoever has its samples, and nobody else."""
    store, result, every = Store(), drawn(4), torch.ones(APART // 4)
    per_prompt = [torch.full((APART // 4,), float(index)) for index in range(2)]
    several = [
        replace(trajectory, request=make_request(2 * at), conditioning={"own": per_prompt[at // 2], "negative": every})
        for at, trajectory in enumerate(result.trajectories)
    ]
    back, _ = travelled(RolloutResult(several), store)
    *own, gone, first, second, others, all_have = store.objects
    assert own == [[]] * SAMPLES
    assert gone == others == []
    assert [[part.nbytes for part in parts] for parts in (first, second, all_have)] == [[APART]] * 3
    for at, trajectory in enumerate(back.trajectories):
        assert torch.equal(trajectory.conditioning["own"], per_prompt[at // 2])
        assert torch.equal(trajectory.conditioning["negative"], every)


def test_bytes_that_pass_the_trainer_do_not_grow_with_the_samples() -> None:
    """From rollout, and to each of two ranks; before, all of it passed twice."""
    passed = []
    for side in (32, 64):
        store, result = Store(), drawn(side)
        before = len(pack(result))
        back, came = travelled(result, store)
        batch = TrainBatch(back.trajectories, torch.ones(SAMPLES), noise_keys=tuple("abcd"), seed=1)
        check_batch(batch, 1, rows="transitions", alike=True, routed=False)
        rounds = deal(batch, 1, 2, train=True)
        went, asked = 0, []
        for rank in range(2):
            bundles = Bundles()
            blob = to_bytes([dealt[rank] for dealt in rounds], bundles)
            went += len(blob)
            asked.append([reference_of(source) for source in bundles.sources])
            shares = from_bytes(blob, [[memoryview(p) for p in store.objects[r]] for r in asked[-1]])
            theirs = [t for share in shares for t in share.batch.trajectories]
            expected = [t for dealt in rounds for t in dealt[rank].batch.trajectories]
            assert store.fetched == []
            for one, other in zip(theirs, expected, strict=True):
                assert type(one.latents) is torch.Tensor
                index = other.request.sample_index
                assert torch.equal(one.next_latents, torch.as_tensor(result.trajectories[index].next_latents))
        assert asked == [[0, SAMPLES + 1, 2], [1, SAMPLES + 1, 3]], "a rank gets its own samples and what they share"
        assert before > 1 << 20
        passed.append(came + went)
    assert passed[0] == passed[1] < 32768


def test_a_message_to_a_child_fetches_what_is_distant() -> None:
    store = Store()
    back, _ = travelled(drawn(32), store)
    (trajectory,) = from_bytes(to_bytes([back.trajectories[1]]))
    assert type(trajectory.latents) is torch.Tensor
    assert torch.equal(trajectory.latents, torch.as_tensor(drawn(32).trajectories[1].latents))


def test_only_bundles_are_handed_on_by_reference() -> None:
    with pytest.raises(TypeError, match="tensors of a Outgoing cannot be handed on by reference"):
        reference_of(Outgoing())
