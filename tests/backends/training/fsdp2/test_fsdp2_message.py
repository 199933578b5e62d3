"""Messages of the ranks as bytes, for carriers other than a pipe to a child."""

from __future__ import annotations

import pytest
import torch

from omni_backends.training.fsdp2 import message
from omni_backends.training.fsdp2.message import from_bytes, to_bytes


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
