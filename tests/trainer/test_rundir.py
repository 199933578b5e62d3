"""The run directory: one owner, whole writes, errors that teach."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from omni_portable.config.loader import list_recipes, load_config
from omni_portable.contracts.disk import disk_errors
from omni_portable.contracts.errors import RunDirectoryError
from omni_portable.trainer import run as training
from omni_portable.trainer.rundir import RunDirectory, run_directory, write_text


def _hold(path: str, ready: multiprocessing.synchronize.Event, done: multiprocessing.synchronize.Event) -> None:
    with RunDirectory(Path(path), "auto"):
        ready.set()
        done.wait(30)


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path / "run"), ready, done))
    holder.start()
    try:
        assert ready.wait(60)
        with pytest.raises(RunDirectoryError, match=f"process {holder.pid}"), RunDirectory(tmp_path / "run", "auto"):
            pass
    finally:
        done.set()
        holder.join()
    with RunDirectory(tmp_path / "run", "auto") as directory:
        assert (directory.path / "checkpoints").is_dir()


def test_a_directory_with_a_run_is_refused_unless_resumed(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("x")
    with pytest.raises(RunDirectoryError, match="already holds a run"), RunDirectory(tmp_path, "never"):
        pass
    with RunDirectory(tmp_path, "auto"):
        pass


def test_a_checkpoint_of_the_run_itself_continues_it(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("x")
    with RunDirectory(tmp_path, str(tmp_path / "checkpoints" / "step_000001")):
        pass


def test_a_checkpoint_of_another_run_does_not_overwrite_this_one(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.yaml").write_text("x")
    other = tmp_path / "a" / "checkpoints" / "step_000001"
    with pytest.raises(RunDirectoryError, match="holds a run, and trainer.resume=.*step_000001 is no checkpoint of it"):
        RunDirectory(tmp_path / "b", str(other)).__enter__()
    with RunDirectory(tmp_path / "new", str(other)):
        pass


def test_a_name_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="cannot write.*name too long"):
        RunDirectory(tmp_path / ("x" * 300), "never").__enter__()


@pytest.mark.parametrize(("number", "message"), [(errno.ENOSPC, "no space left"), (errno.EROFS, "cannot write.*Read-")])
def test_complaints_of_the_tensor_library_are_the_disks(tmp_path: Path, number: int, message: str) -> None:
    with pytest.raises(RunDirectoryError, match=message), disk_errors(tmp_path):
        raise SafetensorError(f"Error while serializing: I/O error: something (os error {number})")
    with pytest.raises(SafetensorError, match="odd"), disk_errors(tmp_path):
        raise SafetensorError("odd")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunDirectoryError, match="cannot write"), RunDirectory(tmp_path / "file" / "run", "never"):
        pass


def test_a_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "state.json"
    write_text(target, "old")

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RunDirectoryError, match="no space left"):
        write_text(target, "new")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_errors_that_are_not_the_disks_pass_through(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="weird") as caught, disk_errors(tmp_path):
        raise OSError(errno.EBADF, "weird")
    assert not isinstance(caught.value, RunDirectoryError)


def test_a_disk_that_fails_is_named_with_the_cure(tmp_path: Path) -> None:
    for error in (
        OSError(errno.EIO, "x"),
        SafetensorError("I/O error: x (os error 5)"),
        SafetensorError("I/O error: write zero"),
    ):
        with pytest.raises(RunDirectoryError, match=f"cannot write {tmp_path}") as caught, disk_errors(tmp_path):
            raise error
        assert "trainer.resume=auto" in caught.value.remedy


def test_too_little_space_is_refused_before_work_starts(tmp_path: Path) -> None:
    with RunDirectory(tmp_path, "never") as directory:
        with pytest.raises(RunDirectoryError, match="checkpoints needs about"):
            directory.require_space(1 << 60, "checkpoints")
        directory.require_space(1, "checkpoints")


def test_recipes_of_one_name_have_directories_of_their_own() -> None:
    folders = {run_directory(load_config(name)) for name in list_recipes()}
    assert len(folders) == len(list_recipes())
    assert Path("runs/qwen_vl/gspo_mmk12_tiny") in folders
    config = load_config("qwen3/gspo_gsm8k_tiny", ["trainer.run_dir=here"])
    assert run_directory(config) == Path("here")


def test_a_second_run_is_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text("x")
    monkeypatch.setattr(training, "make_launcher", lambda config: pytest.fail("the launcher was made first"))
    config = load_config("sd3/flow_grpo_ocr_tiny", [f"trainer.run_dir={tmp_path}"])
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        training.run(config)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
