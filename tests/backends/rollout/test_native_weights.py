import asyncio
from dataclasses import replace

import pytest
import torch

from omni_backends.rollout.native import weights as weights_module
from omni_portable.contracts.errors import LifecycleError, WeightSyncError
from omni_portable.contracts.lifecycle import EngineState
from omni_portable.contracts.weights import WeightManifest
from omni_portable.models.weights import apply_tensors, checksums, make_stream
from tests.support.requests import make_request
from tests.support.trajectories import bit_equal

REQUESTS = [make_request(i) for i in range(4)]


def generate(engine):
    return asyncio.run(engine.generate(REQUESTS)).trajectories


class Stream:
    """A stream whose manifest and delivery may be tampered with."""

    def __init__(self, manifest, tensors):
        self.manifest, self.tensors = manifest, tensors

    def __iter__(self):
        for name, tensor in self.tensors:
            if isinstance(tensor, Exception):
                raise tensor
            yield name, tensor


def tampered(stream, change):
    """The same manifest; `change` maps the list of (name, tensor) to what is delivered."""
    return Stream(stream.manifest, change(list(stream)))


def break_off(items):
    return [*items[:2], ("x", OSError("connection lost"))]


def flip_one_bit(items):
    name, tensor = items[2]
    changed = tensor.clone()
    changed.view(torch.int32).view(-1)[0] ^= 1
    return [*items[:2], (name, changed), *items[3:]]


FAULTS = {
    "stream breaks off at tensor 2": break_off,
    "one bit flipped in tensor 2": flip_one_bit,
    "last tensor missing": lambda items: items[:-1],
    "tensor sent twice": lambda items: [*items, items[0]],
    "unannounced tensor": lambda items: [*items, ("intruder", torch.zeros(1))],
    "wrong shape": lambda items: [(items[0][0], items[0][1].flatten()), *items[1:]],
    "wrong dtype": lambda items: [(items[0][0], items[0][1].double()), *items[1:]],
}


@pytest.fixture(params=[0, 4], ids=["full", "lora"])
def engine(request, make_engine):
    return make_engine(lora_rank=request.param)


def assert_untouched(engine, version, outputs, held):
    """Paused at the old version with the old bits, and usable."""
    assert engine.health().state is EngineState.PAUSED
    assert engine.health().policy_version == version
    assert engine.weights_checksum() == held
    engine.resume()
    assert bit_equal(generate(engine), outputs)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_stream_changes_nothing(engine, new_weights, fault):
    outputs, held = generate(engine), engine.weights_checksum()
    engine.pause()
    with pytest.raises(WeightSyncError):
        engine.update_weights(tampered(new_weights(engine), FAULTS[fault]), 1)
    assert_untouched(engine, 0, outputs, held)


@pytest.mark.parametrize("position", [0, 1, 3])
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_failure_while_applying_tensor_k_restores_the_old_weights(engine, new_weights, monkeypatch, position, error):
    outputs, held = generate(engine), engine.weights_checksum()
    engine.pause()
    stream, calls = new_weights(engine), []

    def failing(module, tensors):
        calls.append(len(tensors))
        if len(calls) == 1:
            apply_tensors(module, dict(list(tensors.items())[:position]))
            raise error
        return apply_tensors(module, tensors)

    monkeypatch.setattr(weights_module, "apply_tensors", failing)
    wanted = WeightSyncError if isinstance(error, RuntimeError) else KeyboardInterrupt
    with pytest.raises(wanted):
        engine.update_weights(stream, 1)
    assert len(calls) == 2
    assert_untouched(engine, 0, outputs, held)


def test_a_write_that_does_not_arrive_is_noticed(engine, new_weights, monkeypatch):
    outputs, held = generate(engine), engine.weights_checksum()
    engine.pause()

    def forgetful(module, tensors):
        kept = dict(list(tensors.items())[:-1])
        return apply_tensors(module, kept)

    monkeypatch.setattr(weights_module, "apply_tensors", forgetful)
    with pytest.raises(WeightSyncError, match="does not hold what was sent"):
        engine.update_weights(new_weights(engine), 1)
    monkeypatch.undo()
    assert_untouched(engine, 0, outputs, held)


def test_a_good_update_is_proved_and_serves_the_new_policy(engine, new_weights):
    old = generate(engine)
    engine.pause()
    stream = new_weights(engine)
    announced = {name: info.checksum for name, info in stream.manifest.tensors.items()}
    ack = engine.update_weights(stream, 7)
    engine.resume()
    assert (ack.operation, ack.policy_version, ack.bytes) == ("update_weights", 7, stream.manifest.bytes)
    assert engine.weights_checksum() == announced
    new = generate(engine)
    assert {t.policy_version for t in new} == {7}
    assert {t.policy_version for t in old} == {0}
    assert not bit_equal(new, old)


def test_a_failed_update_may_be_repeated(engine, new_weights):
    engine.pause()
    with pytest.raises(WeightSyncError):
        engine.update_weights(tampered(new_weights(engine), break_off), 1)
    assert engine.update_weights(new_weights(engine), 1).policy_version == 1


@pytest.mark.parametrize("version", [0, 3, 4])
def test_the_version_must_grow(make_engine, new_weights, version):
    engine = make_engine()
    engine.pause()
    engine.update_weights(new_weights(engine), 4)
    held = engine.weights_checksum()
    with pytest.raises(WeightSyncError, match="version 4"):
        engine.update_weights(new_weights(engine), version)
    assert engine.weights_checksum() == held


def test_an_update_is_taken_back_until_the_engine_is_resumed(engine, new_weights):
    """Also the first: to what the engine began with."""
    outputs, held = generate(engine), engine.weights_checksum()
    engine.pause()
    engine.update_weights(new_weights(engine), 3)
    assert engine.weights_checksum() != held
    ack = engine.recall_weights(0)
    assert (ack.ok, ack.policy_version, ack.bytes > 0) == (True, 0, True)
    assert_untouched(engine, 0, outputs, held)
    engine.pause()
    engine.update_weights(new_weights(engine), 1)
    engine.resume()
    engine.pause()
    assert not engine.recall_weights(0).ok, "everybody had it: nobody goes back"
    with pytest.raises(LifecycleError, match="weights of version 1, which was recalled and cannot resume"):
        engine.resume()
    assert engine.update_weights(new_weights(engine), 0).policy_version == 0


def test_weights_that_counted_for_nothing_are_not_gone_back_to(make_engine, new_weights):
    engine = make_engine(lora_rank=0)
    engine.pause()
    stream = new_weights(engine)
    engine.sleep(2)
    engine.wake()
    engine.update_weights(stream, 1)
    assert not engine.recall_weights(0).ok


def test_engine_keeps_its_own_copy(make_engine, new_weights):
    engine = make_engine(lora_rank=0)
    engine.pause()
    stream = new_weights(engine)
    tensors = list(stream._tensors.values())
    engine.update_weights(stream, 1)
    held = engine.weights_checksum()
    for tensor in tensors:
        tensor.add_(1.0)
    assert engine.weights_checksum() == held


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 8}, "rank=8"),
        ({"alpha": 99.0}, "alpha=99"),
        ({"expected_modules": 3}, "expected_modules=3"),
        ({"targets": ("to_q",)}, "targets="),
    ],
)
def test_lora_that_is_not_the_engine_s_is_refused(make_engine, new_weights, change, message):
    engine = make_engine()
    engine.pause()
    with pytest.raises(WeightSyncError, match=message):
        engine.update_weights(new_weights(engine, lora=replace(engine._weights._lora, **change)), 1)


def test_stale_scale_in_the_layers_is_noticed(make_engine, new_weights):
    engine = make_engine()
    engine.pause()
    engine._adapter.transformer.to_v.scaling["default"] = 1.0
    with pytest.raises(WeightSyncError, match="scale"):
        engine.update_weights(new_weights(engine), 1)


@pytest.mark.parametrize("drop", [1, 2])
def test_an_update_that_binds_fewer_modules_is_refused(make_engine, new_weights, drop):
    engine = make_engine()
    engine.pause()
    items = list(new_weights(engine))[:-drop]
    with pytest.raises(WeightSyncError, match="lacks tensor"):
        engine.update_weights(make_stream("adapter", items, engine._weights._lora), 1)


def test_full_and_adapter_updates_are_not_confused(make_engine, new_weights):
    full, lora = make_engine(lora_rank=0), make_engine(lora_rank=4)
    for engine, other in ((full, lora), (lora, full)):
        engine.pause()
        with pytest.raises(WeightSyncError, match="of mode"):
            engine.update_weights(new_weights(other), 1)


def test_an_empty_manifest_is_refused(make_engine):
    engine = make_engine(lora_rank=0)
    engine.pause()
    with pytest.raises(WeightSyncError, match="lacks tensor"):
        engine.update_weights(Stream(WeightManifest("full"), []), 1)


def test_checksums_by_name_reach_the_base_and_name_the_unknown(make_engine):
    engine = make_engine()
    base = engine.weights_checksum(["embed.weight", "to_q.weight"])
    transformer = engine._adapter.transformer
    assert base == checksums(
        [("embed.weight", transformer.embed.weight), ("to_q.weight", transformer.to_q.base_layer.weight)]
    )
    with pytest.raises(WeightSyncError, match="nonsense"):
        engine.weights_checksum(["embed.weight", "nonsense"])


def test_a_lost_base_that_cannot_be_read_again_keeps_the_engine_paused(make_engine, new_weights, monkeypatch):
    from omni_backends.rollout.native import engine as engine_module
    from omni_portable.contracts.errors import LifecycleError, ModelError

    engine = make_engine()
    stream, again = new_weights(engine), new_weights(engine)
    engine.pause()
    engine.sleep(2)
    engine.wake()

    def missing(setup, components):
        raise ModelError("the folder is gone")

    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "load_adapter", missing)
        with pytest.raises(WeightSyncError, match="the folder is gone"):
            engine.update_weights(stream, 1)
    with pytest.raises(LifecycleError, match="without weights"):
        engine.resume()
    engine.update_weights(again, 1)
    engine.resume()
    assert len(generate(engine)) == 4
