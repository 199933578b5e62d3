"""The contract, on every data plane."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from omni_portable.contracts import registry
from omni_portable.contracts.dataplane import COLUMNS, DataPlane, GroupTag
from omni_portable.contracts.errors import DataError
from tests.support.planes import media_group, same_media
from tests.support.requests import make_group


def fill(plane, *names):
    for position, name in enumerate(names):
        plane.put(make_group(name, position, [3, 2]))
    return plane


def names(plane):
    return [tag.group_id for tag in plane.tags()]


def test_it_is_registered_and_implements_the_contract(plane):
    assert plane.name in registry.names("data_plane")
    assert isinstance(plane, DataPlane)


def test_tags_describe_groups_without_reading_them(plane):
    assert fill(plane, "a", "b").tags() == [GroupTag("a", 0, 2, 2), GroupTag("b", 1, 2, 2)]


def test_take_returns_the_stored_groups_in_the_order_asked_for(plane):
    fill(plane, "a", "b", "c")
    assert [group.group_id for group in plane.take(["c", "a"])] == ["c", "a"]
    assert names(plane) == ["b"]
    assert plane.take([]) == []


def test_a_group_comes_back_whole(plane):
    group = media_group()
    plane.put(group)
    (back,) = plane.take(["g"], COLUMNS)
    assert same_media(group, back)
    assert (back.rewards, back.components, back.details) == (group.rewards, group.components, group.details)
    for one, other in zip(group.trajectories, back.trajectories, strict=True):
        assert torch.equal(one.final_latents, other.final_latents)
        assert one.request == other.request


def test_a_large_group_comes_back_whole_and_a_small_one_beside_it(plane):
    """Large columns, tensors and parts of tensors may go other ways than small ones."""
    large, whole = media_group("large"), torch.randn(3, 1 << 17)
    shared = {"prompt_embeds": torch.randn(77, 512)}
    pixels = torch.arange(3 << 16, dtype=torch.int32).to(torch.uint8).view(3, 256, 256)
    large.trajectories = [
        replace(
            each,
            final_latents=whole[index],
            next_latents=whole.t()[: 1 << 15],
            conditioning=shared,
            artifacts={"image": replace(each.artifacts["image"], data=pixels + index)},
        )
        for index, each in enumerate(large.trajectories)
    ]
    expected = [(whole[index].clone(), pixels + index) for index in range(2)]
    plane.put(large)
    plane.put(media_group("small", 1))
    small, back = plane.take(["small", "large"])
    assert small.group_id == "small"
    assert same_media(large, back)
    for trajectory, (latents, image) in zip(back.trajectories, expected, strict=True):
        assert torch.equal(trajectory.final_latents, latents)
        assert torch.equal(trajectory.next_latents, whole.t()[: 1 << 15])
        assert torch.equal(trajectory.conditioning["prompt_embeds"], shared["prompt_embeds"])
        assert torch.equal(trajectory.artifacts["image"].data, image)
        trajectory.final_latents.add_(1.0)  # its memory is the reader's own
    assert names(plane) == []


def test_media_that_nobody_reads_go_with_the_group(plane):
    group = media_group()
    plane.put(group)
    (back,) = plane.take(["g"], ["train"])
    assert all(each.artifacts == {} for each in back.trajectories)
    assert torch.equal(back.trajectories[1].final_latents, group.trajectories[1].final_latents)
    assert all(each.artifacts for each in group.trajectories), "the producer's own group keeps its media"
    assert names(plane) == []


@pytest.mark.parametrize("columns", [["media"], ["train", "sound"], []])
def test_columns_that_make_no_group_are_refused(plane, columns):
    fill(plane, "a")
    with pytest.raises(DataError, match="valid choices: train, media"):
        plane.take(["a"], columns)
    assert names(plane) == ["a"]


@pytest.mark.parametrize("method", ["take", "drop"])
@pytest.mark.parametrize("asked", [["a", "x"], ["a", "a"]])
def test_a_bad_id_leaves_everything_in_place(plane, method, asked):
    fill(plane, "a", "b")
    with pytest.raises(DataError):
        getattr(plane, method)(asked)
    assert names(plane) == ["a", "b"]
    assert len(plane.take(["a", "b"])) == 2


def test_drop_removes(plane):
    fill(plane, "a", "b").drop(["a"])
    assert names(plane) == ["b"]


def test_a_second_put_of_an_id_is_an_error(plane):
    fill(plane, "a")
    with pytest.raises(DataError, match="'a' already"):
        plane.put(make_group("a", 5, [0]))
    assert plane.tags()[0].submission == 0


def test_there_is_room_where_nothing_waits(plane):
    asyncio.run(asyncio.wait_for(plane.room(1 << 20), 60))


def test_threads_put_and_take_at_once(plane):
    def one(number):
        plane.put(make_group(f"g{number}", number, [number]))
        return plane.take([f"g{number}"])[0].submission if number % 2 else -1

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(one, range(8)))
    assert got == [-1, 1, -1, 3, -1, 5, -1, 7]
    assert sorted(names(plane)) == ["g0", "g2", "g4", "g6"]
