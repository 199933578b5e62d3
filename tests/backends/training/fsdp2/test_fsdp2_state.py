"""Checkpoints, sleep, the weight stream and exports of sharded weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from omni_backends.training.fsdp2.stream import buckets
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.contracts.errors import CapabilityError, CheckpointError, LifecycleError, WeightSyncError
from omni_portable.models.weights import receive
from tests.backends.training.fsdp2.blocks import BlocksTransformer, blocks_batch
from tests.backends.training.fsdp2.conftest import lora_setup
from tests.backends.training.toy import ToyAlgorithm

POLICIES = ("current", "old", "ema")


def checksums(engine) -> dict[str, dict[str, str]]:
    return {policy: engine.weights_checksum(policy) for policy in POLICIES}


@pytest.fixture
def saved(lora_pair, tmp_path: Path) -> Path:
    batch = blocks_batch(8)
    lora_pair.train_step(batch, ToyAlgorithm())
    lora_pair.update_old_policy(0.5)
    lora_pair.train_step(batch, ToyAlgorithm())
    folder = tmp_path / "actor"
    folder.mkdir()
    lora_pair.save(folder)
    return folder


def test_a_checkpoint_restores_bit_for_bit_under_any_number_of_ranks(lora_pair, saved, start):
    kept, batch = checksums(lora_pair), blocks_batch(8)
    steps = lora_pair.optimizer_steps
    after = lora_pair.train_step(batch, ToyAlgorithm()).metrics
    moved = checksums(lora_pair)
    assert moved["current"] != kept["current"]
    lora_pair.load(saved)
    assert (checksums(lora_pair), lora_pair.optimizer_steps) == (kept, steps)
    assert lora_pair.train_step(batch, ToyAlgorithm()).metrics == after
    assert checksums(lora_pair) == moved
    three = start(lora_setup(3))
    assert checksums(three) != kept
    three.load(saved)
    assert (checksums(three), three.optimizer_steps) == (kept, steps)
    again = three.train_step(batch, ToyAlgorithm()).metrics
    assert again.keys() == after.keys()
    assert all(abs(again[name] - after[name]) <= 1e-6 for name in after)


def test_no_file_of_a_checkpoint_is_a_pickle(saved):
    files = sorted(str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file())
    assert {Path(name).suffix for name in files} == {".safetensors", ".json"}
    assert {name.partition("/")[0] for name in files} == {
        "engine.json", "steps.safetensors", "weights", "exp_avg", "exp_avg_sq", "old", "ema",
    }  # fmt: skip
    assert len([name for name in files if name.startswith("weights/")]) == 2
    assert set(json.loads((saved / "engine.json").read_text())["files"]) == set(files) - {"engine.json"}


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "foreign", "document", "lora"])
def test_a_damaged_checkpoint_changes_nothing(lora_pair, saved, damage: str):
    lora_pair.train_step(blocks_batch(8), ToyAlgorithm())
    kept = checksums(lora_pair)
    target = sorted((saved / "exp_avg_sq").iterdir())[1]
    content = target.read_bytes()
    if damage == "flip":
        target.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "truncate":
        target.write_bytes(content[:-8])
    elif damage == "remove":
        target.unlink()
    elif damage == "foreign":
        (target.parent / "more.safetensors").write_bytes(content)
    else:
        document = json.loads((saved / "engine.json").read_text())
        document["lora" if damage == "lora" else "files"] = {}
        (saved / "engine.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"engine\.json|exp_avg_sq|steps|has no"):
        lora_pair.load(saved)
    assert checksums(lora_pair) == kept


def test_a_checkpoint_of_one_process_is_refused_by_name(lora_pair, tmp_path):
    one = SingleTrainEngine(lora_setup(1))
    one.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"no folder 'weights' of shards"):
        lora_pair.load(tmp_path)


def test_sleep_and_wake_are_exact_and_guarded(lora_pair):
    batch = blocks_batch(8)
    lora_pair.train_step(batch, ToyAlgorithm())
    kept = checksums(lora_pair)
    ack = lora_pair.sleep()
    assert ack.ok
    assert "rank 1" in ack.detail
    for refused in (
        lambda: lora_pair.train_step(batch, ToyAlgorithm()),
        lambda: lora_pair.log_probs(batch),
        lambda: lora_pair.weights(),
        lambda: lora_pair.sleep(),
        lambda: lora_pair.sleep(2),
    ):
        with pytest.raises(LifecycleError, match="fsdp2"):
            refused()
    lora_pair.wake()
    assert checksums(lora_pair) == kept
    lora_pair.sleep(tags=("optimizer",))
    assert torch.isfinite(lora_pair.log_probs(batch)).all()
    lora_pair.wake(("optimizer",))
    lora_pair.train_step(batch, ToyAlgorithm())


def test_the_stream_is_whole_verified_and_of_one_version(lora_pair, full_pair):
    for engine, mode in ((lora_pair, "adapter"), (full_pair, "full")):
        stream = engine.weights()
        assert stream.manifest.mode == mode
        received = receive(stream)
        assert {name: info.checksum for name, info in stream.manifest.tensors.items()} == engine.weights_checksum()
        assert all(type(tensor) is torch.Tensor for tensor in received.values())
        with pytest.raises(WeightSyncError, match="read twice"):
            next(iter(stream))
    stale = lora_pair.weights()
    lora_pair.update_old_policy(0.5)
    with pytest.raises(WeightSyncError, match="changed while they were read"):
        list(stale)
    with pytest.raises(CapabilityError, match="keeps no 'reference' policy"):
        lora_pair.weights("reference")
    assert full_pair.weights_checksum("reference") == full_pair.weights_checksum()


def test_buckets_are_bounded():
    sizes = {"a": 3, "b": 4, "c": 9, "d": 1, "e": 2}
    assert list(buckets(sizes, 7)) == [["a", "b"], ["c"], ["d", "e"]]
    assert list(buckets({}, 7)) == []


def test_exports_load_elsewhere(lora_pair, full_pair, tmp_path):
    lora_pair.train_step(blocks_batch(8), ToyAlgorithm())
    lora_pair.export(tmp_path / "lora", "ema")
    model = PeftModel.from_pretrained(BlocksTransformer(), str(tmp_path / "lora"))
    ema = dict(lora_pair.weights("ema"))
    loaded = {name: tensor for name, tensor in model.named_parameters() if ".lora_" in name}
    assert len(loaded) == len(ema)
    for name, tensor in ema.items():
        assert torch.equal(loaded[f"base_model.model.{name.replace('.weight', '.default.weight')}"], tensor)
    assert set(load_file(tmp_path / "lora" / "pytorch_lora_weights.safetensors")) == {f"transformer.{n}" for n in ema}
    with pytest.raises(CapabilityError, match="has no save_pretrained"):  # the toy is no library model
        full_pair.export(tmp_path / "full")
