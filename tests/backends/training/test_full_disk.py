"""Every engine says the same of a write that failed: the path, and what to do (`contracts.disk`)."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError

from omni_backends.training import state
from omni_backends.training.fsdp2 import checkpoint
from omni_backends.training.veomni import weights
from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import RunDirectoryError

TENSORS = {"w": torch.zeros(1 << 20)}
NOTHING = state.EngineState("full", None, 0, 0.0, [])


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 1 MiB; the tensors above have 4."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def full(*_: object, **__: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def full_rank(*_: object, **__: object) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    raise dcp.api.CheckpointException("save", {1: (error, [])})  # type: ignore[dict-item]


def save_single(folder: Path) -> None:
    state.write_state(folder, NOTHING, {"weights": TENSORS})


def save_own(folder: Path) -> None:
    weights.write_weights("sd3", folder, TENSORS)


def save_shards(folder: Path) -> None:
    with disk_errors(folder):
        checkpoint._save(dict(TENSORS), folder)


@pytest.mark.parametrize(
    ("save", "module", "name", "instead"),
    [
        (save_single, state, "save_file", full),
        (save_own, weights, "save_file", full),
        (save_shards, dcp, "save", full_rank),
    ],
)
def test_a_full_disk(save, module, name, instead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, instead)
    monkeypatch.setattr(weights, "own_tensors", lambda family, tensors: tensors)
    with pytest.raises(RunDirectoryError, match=f"no space left on the disk that holds {tmp_path}") as caught:
        save(tmp_path)
    assert "trainer.resume=auto" in caught.value.remedy


@pytest.mark.parametrize("save", [save_single, save_own, save_shards])
def test_a_write_that_the_system_refuses(
    save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_files: None
) -> None:
    monkeypatch.setattr(weights, "own_tensors", lambda family, tensors: tensors)
    with pytest.raises(RunDirectoryError, match=f"cannot write {tmp_path}.*File too large"):
        save(tmp_path)


def test_an_error_of_the_ranks_that_is_no_write_keeps_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*_: object, **__: object) -> None:
        raise dcp.api.CheckpointException("save", {0: (ValueError("odd plan"), [])})  # type: ignore[dict-item]

    monkeypatch.setattr(dcp, "save", odd)
    with pytest.raises(RunDirectoryError, match="odd plan"):
        save_shards(tmp_path)
