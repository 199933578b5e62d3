"""Messages of the ranks as bytes, for carriers other than a pipe to a child."""

from __future__ import annotations

import pytest
import torch

from omni_backends.training.fsdp2 import message
from omni_backends.training.fsdp2.message import APART, from_bytes, to_bytes, to_parts
from omni_portable.rollout.distant import DistantTensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_arrive_bit_for_bit(dtype: torch.dtype):
    matrix = (torch.randn(3, 5) * 10).to(dtype)
    sent = {"matrix": matrix, "column": matrix[:, 1], "empty": matrix[:0], "words": ("a", 1, None), "again": matrix}
    got = from_bytes(to_bytes(sent))
    assert got["words"] == sent["words"]
    assert got["again"] is got["matrix"]
    for name in ("matrix", "column", "empty"):
        assert got[name].dtype == dtype
        assert torch.equal(got[name], sent[name])


def test_a_view_travels_without_its_storage_and_without_its_graph():
    whole = torch.zeros(1 << 18, 8, requires_grad=True)
    blob = to_bytes([whole[3] * 2])
    assert len(blob) < 2048
    (row,) = from_bytes(blob)
    assert not row.requires_grad


def test_a_message_without_tensors():
    assert from_bytes(to_bytes(None)) is None
    assert from_bytes(to_bytes(("done", [1, 2]))) == ("done", [1, 2])


def test_messages_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(message, "MAX_MESSAGE", 500)
    to_bytes(torch.zeros(1000))
    with pytest.raises(ValueError, match="beside its tensors, above 500"):
        to_bytes("x" * 600)


class Beside:
    """The parts of an answer that travelled apart."""

    def __init__(self, parts: list[memoryview]) -> None:
        self.parts, self.fetched = parts, 0

    def part(self, number: int) -> memoryview:
        self.fetched += 1
        return self.parts[number]


def test_tensors_apart_are_known_without_their_elements():
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(200, 200, generator=generator)
    sent = {"wide": wide, "column": wide[:, 1], "half": wide.bfloat16(), "empty": wide[:0], "again": wide, "n": 1}
    blob, parts = to_parts(("done", sent))
    assert len(blob) < 4096
    assert [part.nbytes for part in parts] == [wide.nbytes, 800, wide.nbytes // 2, 0]
    source = Beside([memoryview(bytes(part)) for part in parts])
    done, got = from_bytes(blob, source=source)
    assert (done, got["n"], source.fetched) == ("done", 1, 0)
    assert got["again"] is got["wide"]
    for name in ("wide", "column", "half", "empty"):
        assert isinstance(got[name], DistantTensor)
        assert (got[name].shape, got[name].dtype) == (sent[name].shape, sent[name].dtype)
        assert torch.equal(got[name], sent[name])


def test_few_bytes_of_tensors_stay_with_their_message():
    blob, parts = to_parts({"w": torch.ones(APART // 4 - 16)})
    assert parts == []
    got = from_bytes(blob)
    assert type(got["w"]) is torch.Tensor
    assert float(got["w"].sum()) == APART // 4 - 16


def test_a_message_without_its_parts_is_refused():
    blob, _ = to_parts(torch.ones(APART))
    with pytest.raises(ValueError, match="travelled apart came without them"):
        from_bytes(blob)
