"""`omni-portable data` as a person uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from omni_portable.cli import main
from tests.support.media import png


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(png())
    rows = [{"prompt": "make it red", "image": "a.png"}, {"prompt": "make it blue", "image": "b.png"}]
    (tmp_path / "edit.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_convert_says_what_became_of_the_rows(folder, capsys):
    assert main(["data", "convert", "image-edit", "edit.jsonl", "edit.jsonl", "out.parquet", "--skip-bad"]) == 0
    out = capsys.readouterr().out
    assert "wrote out.parquet: 2 rows\nleft out: 2 broken\nthe first broken row: edit.jsonl row 2: field 'image'" in out
    assert "data.media.image: {modality: image" in out
    assert main(["data", "check", "out.parquet", "--kind", "image-edit"]) == 0
    assert "out.parquet: 2 rows of kind 'image-edit', all in order" in capsys.readouterr().out


def test_a_broken_row_stops_it(folder, capsys):
    assert main(["data", "convert", "image-edit", "edit.jsonl", "out.parquet"]) == 1
    assert "edit.jsonl row 2: field 'image': there is no file" in capsys.readouterr().err
    assert not (folder / "out.parquet").exists()
    assert main(["data", "check", "edit.jsonl", "--kind", "image-edit"]) == 1
    assert "edit.jsonl row 2" in capsys.readouterr().err


def test_a_file_is_replaced_only_on_demand_and_a_source_never(folder, capsys):
    convert = ["data", "convert", "image-edit", "edit.jsonl", "--skip-bad"]
    assert main([*convert, "out.parquet"]) == 0
    assert main([*convert, "out.parquet"]) == 1
    assert "OUT is out.parquet, which exists already" in capsys.readouterr().err
    assert main([*convert, "out.parquet", "--overwrite"]) == 0
    before = (folder / "edit.jsonl").read_text()
    assert main([*convert, "./edit.jsonl", "--overwrite"]) == 1
    assert "which is also a source of rows" in capsys.readouterr().err
    assert (folder / "edit.jsonl").read_text() == before


def test_a_row_with_base64_can_be_skipped_and_does_not_fill_the_screen(folder, capsys):
    rows = [{"prompt": "x", "image": "a.png"}, {"prompt": "y", "image": "iVBORw0KGgo/" * 9999}]
    (folder / "b64.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["data", "convert", "image-edit", "b64.jsonl", "out.parquet"]) == 1
    problem = capsys.readouterr().err
    assert "b64.jsonl row 2: field 'image': 'iVBORw0KGgo/" in problem
    assert "looks like base64, which is not read here" in problem
    assert len(problem) < 600
    assert main(["data", "convert", "image-edit", "b64.jsonl", "out.parquet", "--skip-bad"]) == 0
    assert "left out: 1 broken" in capsys.readouterr().out


def test_kinds_are_described_and_unknown_ones_refused(folder, capsys):
    assert main(["data", "kinds"]) == 0
    assert "fl2va\n  prompts for video" in capsys.readouterr().out
    assert main(["data", "convert", "image-edits", "edit.jsonl", "o.parquet"]) == 2
    assert "did you mean 'image-edit'" in capsys.readouterr().err


def test_kinds_load_without_torch():
    code = "import sys; from omni_portable.cli import main; main(['data', 'kinds']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
