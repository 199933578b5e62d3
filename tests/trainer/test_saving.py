"""What decides the numbers of a run, and refusing a checkpoint that was made with other settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from omni_portable.config.schema import LoraConfig, ModelConfig, RunConfig, TrainerConfig
from omni_portable.contracts.errors import CheckpointError, RunDirectoryError
from omni_portable.trainer.checkpoint import TrainerState, list_checkpoints
from omni_portable.trainer.saving import (
    FREE_KEYS,
    CheckpointStage,
    deciding_keys,
    fingerprint,
    open_checkpoint,
    restore,
)


class FileActor:
    """A train engine whose state is one text file."""

    def __init__(self, text: str = "weights") -> None:
        self.text = text

    def save(self, folder: Path) -> None:
        (folder / "state.txt").write_text(self.text)

    def load(self, folder: Path) -> None:
        self.text = (folder / "state.txt").read_text()


class CountingDevice:
    """A device whose random state is one byte."""

    state = torch.tensor([7], dtype=torch.uint8)

    def rng_state(self) -> torch.Tensor:
        return self.state

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.state = state


def make_config(**changes: object) -> RunConfig:
    return dataclasses.replace(
        RunConfig(
            model=ModelConfig(family="sd3", path="m", lora=LoraConfig(rank=4)),
            algorithm={"name": "flow_grpo", "clip_ratio": 1e-4},
            trainer=TrainerConfig(keep_checkpoints=2),
        ),
        **changes,
    )


def save(root: Path, config: RunConfig, step: int = 3) -> tuple[Path, TrainerState]:
    stage = CheckpointStage(root, FileActor(f"weights {step}"), CountingDevice(), config)  # type: ignore[arg-type]
    state = TrainerState(step=step, policy_version=step + 1, fingerprint=stage.fingerprint)
    return stage.run(state), state


def test_deciding_keys_are_dotted_and_complete() -> None:
    keys = deciding_keys(make_config())
    assert keys["model.lora.rank"] == 4
    assert keys["algorithm.clip_ratio"] == 1e-4
    assert keys["trainer.seed"] == 0
    assert keys["reward.scorers"] == {}
    assert not {key for key in keys if key in FREE_KEYS or key.partition(".")[0] in FREE_KEYS}


def test_every_free_key_exists() -> None:
    def paths(prefix: str, value: object) -> set[str]:
        inner = value.items() if isinstance(value, dict) else ()
        return {prefix} | {p for k, v in inner for p in paths(f"{prefix}.{k}" if prefix else k, v)}

    assert paths("", dataclasses.asdict(RunConfig())) >= FREE_KEYS


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda c: setattr(c.trainer, "total_steps", 999), True),
        (lambda c: setattr(c.trainer, "run_dir", "elsewhere"), True),
        (lambda c: setattr(c.rollout, "sleep_level", 2), True),
        (lambda c: setattr(c.trainer, "actor_sleeps", ["optimizer"]), True),
        (lambda c: setattr(c.consistency, "probe", False), True),
        (lambda c: setattr(c.actor, "lr", 2e-4), False),
        (lambda c: setattr(c.trainer, "seed", 1), False),
        (lambda c: setattr(c.rollout, "max_num_seqs", 7), False),
        (lambda c: c.algorithm.update(clip_ratio=2e-4), False),
        (lambda c: c.reward.scorers.update(s={"kind": "ocr"}), False),
    ],
)
def test_the_fingerprint_covers_what_decides_the_numbers(change, same: bool) -> None:
    config = make_config()
    before = fingerprint(config)
    change(config)
    assert (fingerprint(config) == before) is same


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    config = make_config()
    torch.manual_seed(5)
    folder, state = save(tmp_path, config)
    expected = torch.rand(3)
    assert open_checkpoint(folder, config) == state
    actor, device = FileActor("other"), CountingDevice()
    device.state = torch.tensor([9], dtype=torch.uint8)
    torch.manual_seed(6)
    restore(folder, actor, device)  # type: ignore[arg-type]
    assert actor.text == "weights 3"
    assert device.state.tolist() == [7]
    assert torch.equal(torch.rand(3), expected)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, make_config(), step)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000002", "step_000003"]


def test_other_settings_are_listed_with_both_values(tmp_path: Path) -> None:
    folder, _ = save(tmp_path, make_config())
    changed = make_config(algorithm={"name": "flow_grpo", "kl_coef": 0.1})
    changed.actor.lr = 0.5
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder, changed)
    problem = caught.value.problem
    assert "actor.lr: 0.0001 then, 0.5 now" in problem
    assert "algorithm.clip_ratio: 0.0001 then, not set now" in problem
    assert "algorithm.kl_coef: not set then, 0.1 now" in problem
    assert "rollout" not in problem


def test_a_key_that_appears_with_the_value_null_is_listed_too(tmp_path: Path) -> None:
    folder, _ = save(tmp_path, make_config())
    config = make_config()
    config.algorithm["limit"] = None
    with pytest.raises(CheckpointError, match="algorithm.limit: not set then, None now"):
        open_checkpoint(folder, config)


def test_a_long_list_is_cut_and_counted(tmp_path: Path) -> None:
    folder, _ = save(tmp_path, make_config())
    many = make_config(algorithm={"name": "flow_grpo", "clip_ratio": 1e-4} | {f"key{i}": i for i in range(11)})
    with pytest.raises(CheckpointError, match="key0.*and 3 more"):
        open_checkpoint(folder, many)


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("omni_portable.trainer.saving.save_file", full)
    with pytest.raises(RunDirectoryError, match="no space left"):
        save(tmp_path, make_config())
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_fails_to_save_leaves_nothing(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        raise CheckpointError("engine has no state")

    stage = CheckpointStage(tmp_path, SimpleNamespace(save=broken), CountingDevice(), make_config())  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="no state"):
        stage.run(TrainerState(1, 1, stage.fingerprint))
    assert list(tmp_path.iterdir()) == []
