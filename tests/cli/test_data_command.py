"""`omni-portable data` as a person uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from omni_portable.cli import main
from omni_portable.config.loader import load_config
from omni_portable.data.kinds import KINDS
from tests.support.media import png, wav


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
    keys = yaml.safe_load(out.partition("keys of a recipe")[2].partition("\n\n")[2])
    image = {"modality": "image", "height": 512, "width": 512}
    assert keys == {"data": {"train": "out.parquet", "media": {"image": image}}}
    assert main(["data", "check", "out.parquet", "--kind", "image-edit"]) == 0
    assert "out.parquet: 2 rows of kind 'image-edit', all in order" in capsys.readouterr().out


ROWS = {
    "ocr-prompts": ("sd3/flow_grpo_ocr_tiny", {"prompt": 'a sign "A"'}),
    "pickscore-prompts": ("sd3/flow_grpo_preference", {"prompt": "a very red house on a hill"}),
    "image-edit": ("qwen_image_edit/flow_grpo_edit", {"prompt": "x", "image": "a.png"}),
    "t2va": ("minimax_h3/flow_grpo_t2va", {"prompt": "x"}),
    "fl2va": ("minimax_h3/flow_grpo_fl2va", {"prompt": "x", "images": ["a.png"]}),
    "mmk12": ("qwen_vl/gspo_mmk12", {"question": "x", "answer": "1", "image": "a.png"}),
    "avqa": (
        "qwen3_omni/gspo_avqa",
        {"problem": "x", "options": ["A. x", "B. y"], "solution": "A", "image": "a.png", "audio": "tone.wav"},
    ),
    "preference-images": ("sd3/diffusion_dpo_offline", {"prompt": "x", "img_win": "a.png", "img_lose": "b.png"}),
    "preference-multimodal": (
        "qwen3_omni/token_dpo_preference",
        {"prompt": "x", "chosen": "y", "rejected": "z", "audios": ["tone.wav"]},
    ),
    "gsm8k": ("qwen3/gspo_gsm8k", {"question": "x", "answer": "#### 1"}),
}
"""Kind -> a recipe that the printed keys fit, and a row."""

MEDIA = {
    "image-edit": ["image"],
    "fl2va": ["first_frame"],
    "mmk12": ["image"],
    "avqa": ["image", "audio"],
    "preference-multimodal": ["audio"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_printed_keys_make_a_recipe(folder, capsys, kind):
    (folder / "b.png").write_bytes(png(2))
    wav(folder)
    base, row = ROWS[kind]
    (folder / "in.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["data", "convert", kind, "in.jsonl", "made.parquet"]) == 0
    pasted = capsys.readouterr().out.partition("\n\n")[2]
    path = folder / "mine.yaml"
    path.write_text(f"defaults: [/{base}@_global_, _self_]\n{pasted}")
    config, own = load_config(str(path)), yaml.safe_load(pasted)
    assert config.data.train == "made.parquet"
    assert list(own["data"].get("media", {})) == MEDIA.get(kind, [])
    assert own.get("algorithm", config.algorithm)["name"] == config.algorithm["name"]
    assert own.get("reward", {}).get("scorers", {}).keys() <= config.reward.scorers.keys()


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
