from __future__ import annotations

import errno
import os
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from omni_backends.training.fsdp2.channel import Channel
from omni_backends.training.fsdp2.failure import Failure, RankError, RankTraceback, died
from omni_portable.contracts.errors import DataError


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    left, right = Pipe()
    return Channel(left), Channel(right)


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("psm_*")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_arrive_bit_for_bit(ends, dtype: torch.dtype):
    sent = {
        "matrix": (torch.randn(3, 5) * 10).to(dtype),
        "column": (torch.randn(4, 4) * 10).to(dtype)[:, 1],
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.empty(0, 3).to(dtype),
        "words": ["a", 1, None],
    }
    ends[0].send(sent)
    got = ends[1].receive()
    assert got["words"] == sent["words"]
    for name in ("matrix", "column", "scalar", "empty"):
        assert got[name].dtype == dtype
        assert torch.equal(got[name], sent[name])


def test_a_view_is_sent_without_its_storage_and_memory_is_given_back(ends):
    before = segments()
    whole = torch.zeros(1 << 20, 8)
    ends[0].send([whole[3], whole[3]])
    (segment,) = segments() - before
    assert os.stat(f"/dev/shm/{segment}").st_size < 8192
    first, second = ends[1].receive()
    assert first is not whole[3]
    assert torch.equal(first, second)
    assert segments() == before


def test_a_message_that_nobody_read_leaves_nothing_behind(ends):
    before = segments()
    ends[0].send(torch.ones(1000))
    assert segments() != before
    ends[0].close()
    assert segments() == before


def test_too_little_shared_memory_is_an_error_not_a_crash(ends, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = segments()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RankError, match="shared memory .* has no room for the 4032 bytes"):
        ends[0].send(torch.ones(1000))
    assert segments() == before


def test_the_other_end_gone(ends):
    ends[0].connection.close()
    with pytest.raises(EOFError):
        ends[1].receive()


def test_errors_of_ours_come_out_as_what_they_are():
    try:
        raise DataError("bad row", remedy="mend it", choices=("a", "b"))
    except DataError as error:
        failure = Failure.of(error)
    raised = failure.error("rank 1", "accumulate")
    assert isinstance(raised, DataError)
    assert (raised.remedy, raised.choices) == ("mend it", ("a", "b"))
    assert "bad row (rank 1, accumulate)" in str(raised)
    assert isinstance(raised.__cause__, RankTraceback)
    assert "test_fsdp2_channel" in str(raised.__cause__)


def test_other_errors_carry_their_traceback():
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        failure = Failure.of(error)
    raised = failure.error("rank 0", "step")
    assert isinstance(raised, RankError)
    assert "ZeroDivisionError" in str(raised)
    assert "_ = 1 / 0" in str(raised)


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "killed by signal 9 (SIGKILL)"), (3, "exit code 3"), (None, "closed its connection")]
)
def test_deaths_are_named(code: int | None, words: str):
    assert words in str(died("rank 1", "step", code))
