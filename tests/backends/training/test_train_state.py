from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.errors import CheckpointError, RunDirectoryError
from tests.backends.training.toy import (
    ToyAlgorithm,
    assert_equal,
    make_batch,
    make_config,
    make_setup,
    make_trajectories,
    snapshot,
)

pytestmark = pytest.mark.usefixtures("toy")

ALL = Requires(reference_policy=True, old_policy=True)


def build(lora: int = 0, requires: Requires = ALL, dtype: torch.dtype = torch.float32, **actor: object):
    config = make_config(ema_decay=0.9, warmup_steps=7, **actor)
    config.model.lora.rank = lora
    return SingleTrainEngine(make_setup(config, requires=requires, dtype=dtype))


def train(engine: SingleTrainEngine, steps: int, seed: int) -> list[dict[str, float]]:
    batches = [make_batch(make_trajectories(4, seed=seed + i)) for i in range(steps)]
    algorithm = ToyAlgorithm(pull=0.1, requires=Requires(reference_policy=True))
    return [engine.train_step(batch, algorithm).metrics for batch in batches]


def everything(engine: SingleTrainEngine) -> dict[str, torch.Tensor]:
    found = {f"weights/{n}": t for n, t in engine._optimizer.masters.items()}
    found |= {f"optimizer/{n}": t for n, t in engine._optimizer.state_tensors().items()}
    for policy, copy in engine._policies.copies.items():
        found |= {f"{policy}/{n}": t for n, t in copy.tensors().items()}
    return snapshot(found)


@pytest.mark.parametrize(("lora", "dtype"), [(0, torch.float32), (2, torch.float32), (0, torch.bfloat16)])
def test_resume_equals_the_uninterrupted_run(tmp_path: Path, lora: int, dtype: torch.dtype):
    through = build(lora, dtype=dtype)
    train(through, 2, seed=0)
    through.update_old_policy(0.0)
    train(through, 1, seed=50)
    through.save(tmp_path)
    saved = everything(through)
    expected = train(through, 2, seed=100)

    resumed = build(lora, dtype=dtype)
    train(resumed, 1, seed=900)  # whatever it did before must not matter
    resumed.load(tmp_path)
    assert_equal(everything(resumed), saved)
    assert resumed.optimizer_steps == 3
    assert train(resumed, 2, seed=100) == expected
    assert_equal(everything(resumed), everything(through))
    assert resumed.weights_checksum() == through.weights_checksum()
    assert resumed.weights_checksum("old") == through.weights_checksum("old") != through.weights_checksum()


def test_files_are_safetensors_and_json(tmp_path: Path):
    engine = build()
    train(engine, 1, seed=0)
    engine.save(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        "engine.json",
        "weights.safetensors",
        "optimizer.safetensors",
        "ema.safetensors",
        "old.safetensors",
        "reference.safetensors",
    }
    document = json.loads((tmp_path / "engine.json").read_text())
    assert (document["mode"], document["optimizer_steps"], document["lora"]) == ("full", 1, None)
    assert document["lr"] == pytest.approx(1e-2 * 2 / 7)
    assert "unused.weight" not in document["updated"]


def test_a_fresh_engine_saves_and_loads(tmp_path: Path):
    first, second = build(), build()
    first.save(tmp_path)
    train(second, 1, seed=0)
    second.load(tmp_path)
    assert second.optimizer_steps == 0
    assert_equal(everything(first), everything(second))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 0x10
    path.write_bytes(bytes(data))


def _swap_for_valid(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, path)


DAMAGE = {"missing": Path.unlink, "truncated": _truncate, "bit": _flip, "emptied": lambda p: p.write_bytes(b"")}


@pytest.mark.parametrize("damage", sorted(DAMAGE))
@pytest.mark.parametrize("name", ["weights", "optimizer", "ema", "old", "reference"])
def test_a_damaged_file_is_named_and_changes_nothing(tmp_path: Path, name: str, damage: str):
    engine = build()
    train(engine, 1, seed=0)
    engine.save(tmp_path)
    train(engine, 1, seed=5)
    before = everything(engine)
    DAMAGE[damage](tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match=rf"{name}\.safetensors"):
        engine.load(tmp_path)
    assert_equal(everything(engine), before)
    assert engine.optimizer_steps == 2


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{", '{"format": 99}', '{"format": 1}', '{"format": 1, "files": {"a": 3}}']
)
def test_a_bad_engine_json_is_named(tmp_path: Path, text: str | None):
    engine = build()
    engine.save(tmp_path)
    path = tmp_path / "engine.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(CheckpointError, match=r"engine\.json"):
        engine.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"updated": ["nowhere.weight"]}, "nowhere.weight"),
        ({"updated": []}, r"optimizer\.safetensors holds the unexpected"),
        ({"mode": "adapter"}, "engine.json"),
        ({"optimizer_steps": "three"}, "engine.json"),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(tmp_path: Path, change: dict, match: str):
    engine = build()
    train(engine, 1, seed=0)
    engine.save(tmp_path)
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=match):
        engine.load(tmp_path)


def test_a_checkpoint_of_another_kind_of_run_is_refused(tmp_path: Path):
    build(lora=2).save(tmp_path)
    with pytest.raises(CheckpointError, match="trains adapter"):
        build().load(tmp_path)
    with pytest.raises(CheckpointError, match="'rank': 2"):
        build(lora=3).load(tmp_path)


def test_a_policy_that_the_checkpoint_lacks_is_named(tmp_path: Path):
    build(requires=Requires()).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"no old\.safetensors"):
        build().load(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(RunDirectoryError, match="absent"):
        build().save(tmp_path / "absent")
