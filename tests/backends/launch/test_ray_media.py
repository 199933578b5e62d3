"""Media that travel apart: what is separated, what comes back, and what a reward worker is sent. Needs no cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("ray")

from omni_backends.launch.ray.media import (  # noqa: E402
    Parcel,
    addressed,
    completed,
    rejoined,
    separated,
    with_prompts,
    without_prompts,
)
from omni_portable.contracts.media import DistantArtifact, MediaArtifact  # noqa: E402
from omni_portable.contracts.rollout import RolloutResult  # noqa: E402
from omni_portable.contracts.tokens import AnyTrajectory  # noqa: E402
from omni_portable.rollout.codec import pack, unpack  # noqa: E402
from omni_portable.trainer.stages import reward_samples  # noqa: E402
from tests.support.requests import make_request, make_trajectory  # noqa: E402

LARGE, SMALL = (3, 160, 160), (3, 8, 8)
APART = 64 << 10


class Store:
    """In place of a worker whose object store this is; counts what is fetched."""

    label = "rollout-0"

    def __init__(self) -> None:
        self.fetched: list[Any] = []

    def bring(self, reference: bytes) -> bytes:
        self.fetched.append(reference)
        return reference


def media(index: int, shape: tuple[int, ...]) -> dict[str, MediaArtifact]:
    generator = torch.Generator().manual_seed(index)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return {
        "image": MediaArtifact("image", "image", pixels, "CHW"),
        "sound": MediaArtifact("sound", "audio", torch.full((1, 4), float(index)), "CT", sample_rate=16000),
        "said": MediaArtifact("said", "text", f"words {index}", "str"),
    }


def drawn(*shapes: tuple[int, ...]) -> RolloutResult:
    trajectories: list[AnyTrajectory] = [
        replace(make_trajectory(make_request(index)), artifacts=media(index, shape))
        for index, shape in enumerate(shapes)
    ]
    return RolloutResult(trajectories, ("gone",))


def travelled(result: RolloutResult, store: Store) -> RolloutResult:
    sent, names, parcels = separated(result, APART)
    back, names = unpack(pack([sent, names]))
    return rejoined(back, names, parcels, store)  # type: ignore[arg-type]


def test_large_media_stay_where_they_are_until_they_are_looked_at() -> None:
    store, result = Store(), drawn(LARGE, SMALL)
    assert media(0, SMALL)["image"].data.nbytes < APART <= media(0, LARGE)["image"].data.nbytes  # type: ignore[union-attr]
    back = travelled(result, store)
    assert back.aborted == ("gone",)
    large, small = (trajectory.artifacts for trajectory in back.trajectories)
    assert [isinstance(large[name], DistantArtifact) for name in ("image", "sound", "said")] == [True, True, False]
    assert not any(isinstance(artifact, DistantArtifact) for artifact in small.values())
    labels = [(a.name, a.modality, a.layout, a.sample_rate) for a in large.values()]
    assert labels == [(a.name, a.modality, a.layout, a.sample_rate) for a in media(0, LARGE).values()]
    assert store.fetched == []
    for name in ("image", "sound"):
        assert pack(large[name]) == pack(media(0, LARGE)[name])
    assert large["said"].data == "words 0"
    assert len(store.fetched) == 1, "all media of a sample come together, once"


def test_the_bytes_of_a_result_do_not_grow_with_its_media() -> None:
    sizes = []
    for side in (200, 400):
        sent, names, parcels = separated(drawn((3, side, side)), APART)
        sizes.append(len(pack([sent, names])))
        assert len(parcels["r0"]) > 3 * side * side
    assert sizes[0] == sizes[1] < 8192


def test_a_reward_worker_gets_references_and_puts_the_samples_together() -> None:
    store = Store()
    back = travelled(drawn(LARGE, SMALL, LARGE), store)
    samples = reward_samples(back.trajectories)
    sent, positions, references = addressed(samples)
    assert positions == [0, -1, 1]
    there, positions = unpack(pack([sent, positions]))
    whole = completed(there, positions, references)
    assert store.fetched == []
    for index, (sample, shape) in enumerate(zip(whole, (LARGE, SMALL, LARGE), strict=True)):
        expected = media(index, shape)
        assert set(sample.artifacts) == set(expected)
        for name, artifact in expected.items():
            assert not isinstance(sample.artifacts[name], DistantArtifact)
            assert pack(sample.artifacts[name]) == pack(artifact)


def test_media_that_are_packed_after_all_are_fetched() -> None:
    """As by a teacher of another kind, or a data plane that keeps them."""
    store = Store()
    (trajectory,) = travelled(drawn(LARGE), store).trajectories
    again = unpack(pack(trajectory.artifacts))
    assert torch.equal(again["image"].data, torch.as_tensor(media(0, LARGE)["image"].data))
    assert len(store.fetched) == 1


def test_media_of_two_parcels_in_one_sample_travel_with_it() -> None:
    store = Store()
    one, two = (list(travelled(drawn(LARGE), store).trajectories) for _ in range(2))
    mixed = {"a": one[0].artifacts["image"], "b": two[0].artifacts["image"]}
    (sample,) = reward_samples([replace(one[0], artifacts=mixed)])
    sent, positions, references = addressed([sample])
    assert (sent, positions, references) == ([sample], [-1], [])


def test_a_parcel_knows_its_reference() -> None:
    store = Store()
    parcel = Parcel(pack(media(4, LARGE)), store)  # type: ignore[arg-type]
    distant = DistantArtifact(media(0, SMALL)["image"], parcel)
    assert "data" not in vars(distant)
    assert torch.equal(torch.as_tensor(distant.here().data), torch.as_tensor(media(4, LARGE)["image"].data))
    assert store.fetched == [parcel.reference]


def test_media_that_prompts_came_with_do_not_come_back() -> None:
    """But those that an engine put in their place do, and so does a request that had none."""
    given, other = media(1, LARGE), media(2, LARGE)
    requests = [
        make_request(0, media=given),
        make_request(1, target=given),
        make_request(2),
        make_request(3, media=given),
    ]
    asked = unpack(pack(requests))
    changed = [*asked[:3], replace(asked[3], media=other)]
    result = RolloutResult([make_trajectory(request) for request in changed], ("gone",))
    sent, left = without_prompts(result, asked)
    assert left == ["r0", "r1"]
    assert len(pack(replace(sent, trajectories=sent.trajectories[:3]))) < 8192
    back = with_prompts(unpack(pack(sent)), left, requests)
    assert back.aborted == ("gone",)
    assert [one.request for one in back.trajectories[:3]] == requests[:3]
    assert back.trajectories[0].request.media is given
    assert pack(back.trajectories[3].request.media) == pack(other)
