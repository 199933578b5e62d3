"""Where a converter writes: never over its sources, over another file only when told to, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread

import pytest

from omni_portable.contracts.errors import DataError
from omni_portable.data import converting, writers
from omni_portable.data.converting import convert_files
from omni_portable.data.kinds import find_kind
from omni_portable.data.kinds.base import Column, Values
from omni_portable.data.raw import read_raw
from omni_portable.data.writers import write_rows

GSM8K = find_kind("gsm8k")
TEXT = (Column("prompt", "text"),)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three rows; the folder is the current one."""
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{i}?", "answer": f"#### {i}"} for i in range(3)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "in.jsonl"


def rows(text: str, count: int = 50) -> Iterator[Values]:
    yield from ({"prompt": f"{text} {index}"} for index in range(count))


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_a_file_that_exists_is_replaced_only_on_demand(source, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    with pytest.raises(DataError, match="out.jsonl, which exists already\n.*--overwrite"):
        convert_files(GSM8K, [source], out)
    assert out.read_text() == "precious"
    assert convert_files(GSM8K, [source], out, overwrite=True).written == 3
    assert len(list(read_raw(out))) == 3


def test_a_forgotten_out_does_not_cost_the_last_source(source, tmp_path):
    before = source.read_text()
    (tmp_path / "more.jsonl").write_text(before)
    with pytest.raises(DataError, match="more.jsonl, which exists already"):
        convert_files(GSM8K, [source], tmp_path / "more.jsonl")
    assert (tmp_path / "more.jsonl").read_text() == before


@pytest.mark.parametrize("spelling", ["in.jsonl", "./sub/../in.jsonl", "link.jsonl", "hard.jsonl", "sub/in.jsonl"])
def test_a_source_is_never_replaced_whatever_it_is_called(source, tmp_path, spelling):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.jsonl").symlink_to("in.jsonl")
    (tmp_path / "hard.jsonl").hardlink_to(source)
    (tmp_path / "sub" / "in.jsonl").symlink_to("../link.jsonl")
    before = source.read_text()
    with pytest.raises(DataError, match="which is also a source of rows"):
        convert_files(GSM8K, [Path("none.jsonl"), source], Path(spelling), overwrite=True)
    assert source.read_text() == before


def test_a_link_stays_one_when_the_file_behind_it_is_replaced(source, tmp_path):
    (tmp_path / "real.jsonl").write_text("old")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    convert_files(GSM8K, [source], tmp_path / "link.jsonl", overwrite=True)
    assert (tmp_path / "link.jsonl").is_symlink()
    assert len(list(read_raw(tmp_path / "real.jsonl"))) == 3


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("folder.parquet", "which is a folder"),
        ("file.txt/out.jsonl", "nothing can be written in"),
        ("out.csv", "ends neither in"),
        ("pipe.jsonl", "which is no plain file"),
    ],
)
def test_an_out_that_cannot_be_is_refused_before_rows_are_read(source, tmp_path, monkeypatch, out, message):
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "file.txt").write_text("")
    os.mkfifo(tmp_path / "pipe.jsonl")
    monkeypatch.setattr(converting, "read_raw", None)
    with pytest.raises(DataError, match=message):
        convert_files(GSM8K, [source], tmp_path / out, overwrite=True)


def test_a_place_without_rights_is_refused_before_rows_are_read(source, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    monkeypatch.setattr(converting, "read_raw", None)
    with pytest.raises(DataError, match=f"cannot write .*new/out.jsonl: nothing can be written in {tmp_path}"):
        convert_files(GSM8K, [source], tmp_path / "new" / "out.jsonl")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_file_system_that_refuses_gives_one_clear_error(tmp_path, monkeypatch, suffix):
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(DataError, match="cannot write .*: Read-only file system"):
        write_rows(tmp_path / f"out.{suffix}", rows("x"), TEXT)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("writer", ["_write_jsonl", "_write_parquet"])
def test_a_full_disk_gives_one_clear_error(tmp_path, monkeypatch, writer):
    real = getattr(writers, writer)
    monkeypatch.setattr(writers, writer, lambda path, *rest: real(Path("/dev/full"), *rest))
    out = tmp_path / f"out.{writer[7:]}"
    with pytest.raises(DataError, match="out.*: No space left on device\n.*make room"):
        write_rows(out, rows("x" * 1000, 500), TEXT)
    assert not out.exists()
    assert not left_behind(tmp_path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_at_once_never_mix_and_only_one_gets_a_new_name(tmp_path, overwrite):
    both_write, problems = Barrier(2, timeout=20), []

    def write(text: str) -> None:
        def slow() -> Iterator[Values]:
            for index, row in enumerate(rows(text)):
                if index in (10, 40):
                    both_write.wait()
                yield row

        try:
            write_rows(tmp_path / "out.jsonl", slow(), TEXT, overwrite=overwrite)
        except DataError as error:
            problems.append(str(error))

    threads = [Thread(target=write, args=(text,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [row["prompt"] for _, row in read_raw(tmp_path / "out.jsonl")]
    assert found in [[row["prompt"] for row in rows(text)] for text in "ab"]
    assert len(problems) == (0 if overwrite else 1)
    assert all("exists already" in problem for problem in problems)
    assert not left_behind(tmp_path)


def test_without_hard_links_a_file_still_gets_its_name(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_rows(tmp_path / "out.jsonl", rows("a"), TEXT)
    with pytest.raises(DataError, match="exists already"):
        write_rows(tmp_path / "out.jsonl", rows("b"), TEXT)
    assert next(read_raw(tmp_path / "out.jsonl"))[1] == {"prompt": "a 0"}
    assert not left_behind(tmp_path)


def test_a_converter_that_is_killed_leaves_no_half_of_a_file(tmp_path):
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom omni_portable.data.writers import write_rows\n"
        "from omni_portable.data.kinds.base import Column\n"
        "def rows():\n    for i in range(9999):\n        if i == 5000: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        yield {'prompt': 'x' * 100}\n"
        "write_rows(Path('out.jsonl'), rows(), (Column('prompt', 'text'),), overwrite=True)"
    )
    (tmp_path / "out.jsonl").write_text('{"prompt": "old"}\n')
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / "out.jsonl").read_text() == '{"prompt": "old"}\n'
    write_rows(tmp_path / "out.jsonl", rows("new"), TEXT, overwrite=True)
    assert len(list(read_raw(tmp_path / "out.jsonl"))) == 50, "what the dead one left is in nobody's way"


def test_an_error_in_a_row_leaves_nothing_behind(tmp_path):
    def broken() -> Iterator[Values]:
        yield {"prompt": "a"}
        raise DataError("row 2 is broken")

    for suffix in ("jsonl", "parquet"):
        with pytest.raises(DataError, match="row 2 is broken"):
            write_rows(tmp_path / f"out.{suffix}", broken(), TEXT)
    assert not list(tmp_path.iterdir())


def test_a_medium_that_goes_meanwhile_is_named(tmp_path):
    with pytest.raises(DataError, match="column 'image': .*gone.png cannot be read: No such file"):
        write_rows(tmp_path / "out.parquet", iter([{"image": tmp_path / "gone.png"}]), (Column("image", "image"),))
