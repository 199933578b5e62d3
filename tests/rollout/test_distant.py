"""Tensors whose elements are elsewhere: what is known without them, when they are fetched, and how they are packed."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from omni_portable.contracts.errors import DataError
from omni_portable.rollout.blob import flat_bytes
from omni_portable.rollout.codec import pack, pack_parts, unpack, unpack_parts
from omni_portable.rollout.distant import Bundles, DistantTensor


class Source:
    """Counts what is fetched."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors, self.fetched = tensors, 0

    def part(self, number: int) -> memoryview:
        self.fetched += 1
        return memoryview(flat_bytes(self.tensors[number]).numpy())

    def distant(self, index: int = 0) -> DistantTensor:
        tensor = self.tensors[index]
        return DistantTensor(tensor.shape, tensor.dtype, self, index)


def test_shape_and_type_are_known_without_the_elements() -> None:
    source = Source(torch.randn(3, 4, dtype=torch.float64))
    tensor = source.distant()
    assert isinstance(tensor, torch.Tensor)
    assert (tensor.shape, tensor.dtype, tensor.ndim, tensor.nbytes) == ((3, 4), torch.float64, 2, 96)
    assert tensor.device.type == "cpu"
    assert repr([tensor]) == "[DistantTensor((3, 4), torch.float64)]"
    assert source.fetched == 0


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x[1],
        lambda x: x + 1,
        lambda x: torch.stack([x.detach(), x], dim=1),
        lambda x: x.to("cpu", torch.float32) * 2,
        lambda x: x.detach().to("cpu").contiguous().reshape(-1).numpy(),
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.numpy(force=True),
        copy.deepcopy,
        lambda x: pickle.loads(pickle.dumps(x)),  # noqa: S301
    ],
)
def test_what_is_computed_with_it_is_what_the_tensor_gives(compute) -> None:
    whole = torch.randn(3, 4)
    source = Source(whole)
    found, expected = compute(source.distant()), compute(whole)
    assert source.fetched >= 1
    assert type(found) is type(expected)
    assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected))


def test_packed_with_bundles_only_its_place_travels() -> None:
    first, second = Source(torch.randn(5), torch.randn(1 << 20)), Source(torch.arange(6).view(2, 3))
    shared = first.distant(1)
    value = {"a": shared, "b": [second.distant(), torch.ones(2)], "again": shared}
    for pack_one, unpack_one in ((pack, unpack), (pack_parts, unpack_parts)):
        bundles = Bundles([second])
        blob = pack_one(value, bundles)
        assert (blob if isinstance(blob, bytes) else blob[0].numpy()).__len__() < 2048
        assert bundles.sources == [second, first]
        assert bundles.size == (4 << 20) + 48
        back = unpack_one(blob, bundles.sources)
        assert first.fetched == second.fetched == 0
        assert back["again"] is back["a"]
        assert torch.equal(back["a"], first.tensors[1])
        assert torch.equal(back["b"][0], second.tensors[0])
        first.fetched = second.fetched = 0


def test_packed_without_bundles_it_is_fetched_once() -> None:
    source = Source(torch.randn(7))
    back = unpack(pack([source.distant(), source.distant()]))
    assert source.fetched == 1
    assert back[0] is back[1]
    assert type(back[0]) is torch.Tensor
    assert torch.equal(back[0], source.tensors[0])


def test_read_by_whoever_computes_with_it_it_is_fetched_once() -> None:
    source, bundles = Source(torch.randn(7)), Bundles()
    back = unpack(pack([source.distant(), source.distant()], bundles), bundles.sources, fetch=True)
    assert source.fetched == 1
    assert back[0] is back[1]
    assert type(back[0]) is torch.Tensor
    assert torch.equal(back[0], source.tensors[0])


def test_a_place_without_a_source_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be read"):
        unpack(pack(Source(torch.zeros(3)).distant(), Bundles()))


def test_an_impossible_place_or_shape_is_refused() -> None:
    source = Source(torch.zeros(33))
    bundles = Bundles()
    blob = pack(source.distant(), bundles)
    for wrong in (blob.replace(b"[33]", b"[-3]"), blob.replace(b'number\\": 0', b'number\\":-1')):
        assert wrong != blob
        with pytest.raises(DataError, match="cannot be read"):
            unpack(wrong, bundles.sources)


def test_elements_that_do_not_fit_are_refused() -> None:
    wrong = DistantTensor((4,), torch.float32, Source(torch.zeros(3)), 0)
    with pytest.raises(ValueError, match="impossible"):
        wrong.here()
