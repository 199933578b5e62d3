"""A checkpoint knows what its run read: other prompts, models, teachers or adapters under the same path are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from omni_portable.config.schema import (
    DataConfig,
    LoraConfig,
    ModelConfig,
    RewardConfig,
    RunConfig,
    TeacherConfig,
    TrainerConfig,
)
from omni_portable.contracts.errors import CheckpointError, OmniPortableError
from omni_portable.data.prompts import load_prompts
from omni_portable.trainer import inputs
from omni_portable.trainer.checkpoint import TrainerState
from omni_portable.trainer.inputs import check_inputs, digest, run_inputs
from omni_portable.trainer.saving import CheckpointStage, deciding_keys, open_checkpoint


class NoDevice:
    def rng_state(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.uint8)


class NoActor:
    def save(self, folder: Path) -> None:
        (folder / "state").write_text("state")


def folder_of(path: Path, value: float = 1.0) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "README.md").write_text("notes")
    save_file({"w": torch.full((4,), value)}, path / "model.safetensors")
    return path


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (tmp_path / "held.txt").write_text("c\n")
    for name in ("model", "lora", "teacher", "other", "ocr"):
        folder_of(tmp_path / name)
    teachers = {"t": TeacherConfig(path=str(tmp_path / "teacher"), lora=str(tmp_path / "other"))}
    return RunConfig(
        model=ModelConfig(
            family="sd3",
            path=str(tmp_path / "model"),
            lora=LoraConfig(rank=4, path=str(tmp_path / "lora")),
            teachers=teachers,
        ),
        algorithm={"name": "flow_grpo"},
        data=DataConfig(train=str(tmp_path / "train.jsonl"), validation=str(tmp_path / "held.txt")),
        reward=RewardConfig(scorers={"text": {"kind": "ocr", "model_dir": str(tmp_path / "ocr")}}),
        trainer=TrainerConfig(total_steps=9, keep_checkpoints=2),
    )


def read(config: RunConfig) -> dict[str, dict[str, str]]:
    train = load_prompts(config.data.train, split="train")
    held = load_prompts(config.data.validation, split="validation")
    return run_inputs(config, deciding_keys(config), train, held)


def save(root: Path, config: RunConfig) -> Path:
    stage = CheckpointStage(root, NoActor(), NoDevice(), config, read(config))  # type: ignore[arg-type]
    return stage.run(TrainerState(step=3, policy_version=4, fingerprint=stage.fingerprint))


CHANGES = {
    "data.train": lambda root: (root / "train.jsonl").write_text('{"prompt": "a"}\n{"prompt": "z"}\n'),
    "data.validation": lambda root: (root / "held.txt").write_text("d\n"),
    "model.path": lambda root: folder_of(root / "model", 2.0),
    "model.lora.path": lambda root: folder_of(root / "lora", 2.0),
    "model.teachers.t.path": lambda root: (root / "teacher" / "config.json").write_text("[]"),
    "model.teachers.t.lora": lambda root: (root / "other" / "config.json").unlink(),
    "reward.scorers.text.model_dir": lambda root: (root / "ocr" / "rec.onnx").write_bytes(b"x"),
}


def test_everything_that_is_read_is_known(config: RunConfig) -> None:
    assert read(config).keys() == CHANGES.keys()


@pytest.mark.parametrize("key", CHANGES)
def test_other_contents_are_refused_by_name(key: str, config: RunConfig, tmp_path: Path) -> None:
    folder = save(tmp_path / "checkpoints", config)
    assert open_checkpoint(folder, config, read(config)).step == 3
    CHANGES[key](tmp_path)
    with pytest.raises(CheckpointError, match=f"other contents of {key} \\(/") as caught:
        open_checkpoint(folder, config, read(config))
    assert "new run in another trainer.run_dir" in caught.value.remedy


def test_notes_beside_a_model_and_another_date_change_nothing(config: RunConfig, tmp_path: Path) -> None:
    before = read(config)
    (tmp_path / "model" / "README.md").write_text("other notes")
    (tmp_path / "model" / ".cache").mkdir()
    (tmp_path / "model" / ".cache" / "x.json").write_text("{}")
    os.utime(tmp_path / "train.jsonl", (1, 1))
    assert read(config) == before


def test_an_older_checkpoint_is_continued_with_a_warning(
    config: RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_portable.trainer.saving.INPUTS", "none.json")
    folder = save(tmp_path / "checkpoints", config)
    monkeypatch.undo()
    open_checkpoint(folder, config, read(config))
    assert "whether they changed is unknown" in caplog.text


def test_large_weights_are_sampled_all_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "WHOLE", 100)
    monkeypatch.setattr(inputs, "BLOCK", 16)
    path = tmp_path / "w.safetensors"
    path.write_bytes(bytes(64 * 20))
    before = digest(path)
    for place in (0, 5, 64 * 10, 64 * 20 - 1):
        content = bytearray(64 * 20)
        content[place] = 1
        path.write_bytes(content)
        assert (digest(path) != before) or place == 5 or place == 640, place
    path.write_bytes(b"".join(bytes([7]) * 20 for _ in range(64)))
    assert digest(path) != before
    path.write_bytes(bytes(64 * 20 + 1))
    assert digest(path) != before


def test_the_media_of_rows_count_by_name_and_size(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("x")
    assert digest(tmp_path / "p", ["image:a.png:5"]) != digest(tmp_path / "p", ["image:a.png:6"])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "p").write_text("x")
    monkeypatch.setattr(inputs, "_file_digest", refuse)
    with pytest.raises(OmniPortableError, match="/p, which this run uses, cannot be read"):
        digest(tmp_path / "p")


def test_what_only_one_side_knows_is_no_difference(tmp_path: Path) -> None:
    check_inputs(tmp_path, {"a": {"digest": "1"}}, {"b": {"digest": "2", "path": "x"}})


def test_a_run_beyond_its_total_steps_is_refused(config: RunConfig, tmp_path: Path) -> None:
    folder = save(tmp_path / "checkpoints", config)
    config.trainer.total_steps = 3
    assert open_checkpoint(folder, config, read(config)).step == 3, "what comes after the last step may be missing"
    config.trainer.total_steps = 1
    with pytest.raises(CheckpointError, match=r"beyond trainer.total_steps=1: 3 steps are done") as caught:
        open_checkpoint(folder, config, read(config))
    assert "more than 3" in caught.value.remedy


def test_a_file_swapped_between_checkpoints_is_found(config: RunConfig, tmp_path: Path) -> None:
    class Counting(NoActor):
        count = 0

        def save(self, folder: Path) -> None:
            Counting.count += 1
            (folder / "state").write_text(f"state {Counting.count}")

    stage = CheckpointStage(tmp_path / "c", Counting(), NoDevice(), config, read(config))  # type: ignore[arg-type]
    one, two = (stage.run(TrainerState(n, n + 1, stage.fingerprint)) for n in (1, 2))
    for swap, message in (("actor", "actor/state is not what was saved"), ("trainer.json", "trainer.json is not what")):
        (one / swap).rename(tmp_path / "aside")
        (two / swap).rename(one / swap)
        (tmp_path / "aside").rename(two / swap)
        for folder in (one, two):
            with pytest.raises(CheckpointError, match=message):
                open_checkpoint(folder, config, read(config))
        (one / swap).rename(tmp_path / "aside")
        (two / swap).rename(one / swap)
        (tmp_path / "aside").rename(two / swap)
    one.rename(tmp_path / "aside")
    two.rename(one)
    with pytest.raises(CheckpointError, match="step_000001 is of step 2"):
        open_checkpoint(one, config, read(config))
