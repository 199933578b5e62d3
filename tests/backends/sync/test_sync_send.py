"""A weight sync arrives everywhere, bit for bit, or nowhere; the error names worker, tensor and cause."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omni_backends.sync import Slice, collect_checksums, send_weights
from omni_portable.contracts.errors import ConfigError, WeightSyncError
from omni_portable.contracts.weights import LoraInfo, TensorInfo, WeightManifest
from omni_portable.models.weights import NamedTensorStream, checksums, make_stream
from tests.support.sync_target import DictTarget, LocalWorkers

Tensors = dict[str, torch.Tensor]


def tensors(seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "large.weight": random(70, 100),
        "half.weight": random(9, 33).to(torch.bfloat16),
        "strided.weight": random(12, 40).T,
        "bias": random(7),
        "scale": random(1).reshape(()),
        "nothing": torch.empty(0, 4),
        "mask": torch.tensor([True, False, True]),
        "count": torch.tensor([1, -2, 3]),
    }


def workers(count: int = 2, **faults: Any) -> LocalWorkers:
    return LocalWorkers(*(DictTarget(tensors(seed=99), **faults) for _ in range(count)))


def full(values: Tensors) -> NamedTensorStream:
    return make_stream("full", values.items(), None)


def assert_unchanged(group: LocalWorkers, version: int = 0) -> None:
    """Everybody holds the old weights and the old version, and would take another update."""
    before = checksums(tensors(seed=99).items())
    assert all(target.checksums(None) == before for target in group.targets)
    assert [receiver.version for receiver in group.receivers] == [version] * len(group.receivers)
    for target in group.targets:
        target.fail.clear()
    send_weights(full(tensors(seed=5)), group, version=version + 1)


@pytest.mark.parametrize("bucket_bytes", [4096, 8192, 1 << 20])
def test_every_worker_holds_what_was_sent(bucket_bytes: int) -> None:
    group, sent = workers(), tensors()
    report = send_weights(full(sent), group, version=3, bucket_bytes=bucket_bytes)
    for target in group.targets:
        for name, tensor in sent.items():
            assert torch.equal(target.held[name], tensor)
            assert target.held[name].dtype == tensor.dtype
    assert collect_checksums(group) == checksums(sent.items())
    assert collect_checksums(group, ["bias"]) == checksums([("bias", sent["bias"])])
    assert [receiver.version for receiver in group.receivers] == [3, 3]
    total = sum(tensor.numel() * tensor.element_size() for tensor in sent.values())
    assert (report.version, report.workers, report.tensors, report.bytes) == (3, 2, len(sent), total)
    assert report.buckets == group.calls.count("weights_bucket")
    assert (report.buckets > 1) == (bucket_bytes < total)
    assert 0 < report.transfer_seconds <= report.seconds
    assert "8 tensors to 2 workers by shared_memory" in report.describe()


def test_later_syncs_do_not_touch_what_earlier_ones_brought() -> None:
    group = workers(1)
    send_weights(full(tensors(1)), group, version=1)
    first = group.targets[0].held
    kept = {name: tensor.clone() for name, tensor in first.items()}
    held = dict(first)
    send_weights(full(tensors(2)), group, version=2)
    assert all(torch.equal(held[name], kept[name]) for name in kept)


def test_ranks_hold_their_slices() -> None:
    sent = {"wide.weight": torch.arange(24.0).reshape(4, 6), "tall.weight": torch.arange(24.0).reshape(6, 4)}
    cuts = [{"wide.weight": Slice(1, 3 * rank, 3), "tall.weight": Slice(0, 3 * rank, 3)} for rank in range(2)]
    group = LocalWorkers(*(DictTarget(sent, slices) for slices in cuts))
    send_weights(full(sent), group, version=1)
    for rank, target in enumerate(group.targets):
        assert torch.equal(target.held["wide.weight"], sent["wide.weight"][:, 3 * rank : 3 * rank + 3])
        assert torch.equal(target.held["tall.weight"], sent["tall.weight"][3 * rank : 3 * rank + 3])
    with pytest.raises(WeightSyncError, match=r"different values of 'wide.weight' \(2 tensors\)"):
        collect_checksums(group)


def test_a_slice_outside_the_tensor_is_refused() -> None:
    sent = {"a.weight": torch.ones(4, 4)}
    group = LocalWorkers(DictTarget(sent, {"a.weight": Slice(0, 2, 4)}))
    with pytest.raises(WeightSyncError, match=r"worker 0, weights_begin: this worker wants Slice.* of 'a.weight'"):
        send_weights(full(sent), group, version=1)


LORA = LoraInfo(rank=2, alpha=4.0, targets=("to_q",), expected_modules=1)


def lora_tensors() -> Tensors:
    return {"to_q.lora_A.weight": torch.randn(2, 8), "to_q.lora_B.weight": torch.randn(8, 2)}


def test_a_lora_is_counted_in_the_engines_layers() -> None:
    sent = lora_tensors()
    stream = make_stream("adapter", sent.items(), LORA)
    assert send_weights(stream, LocalWorkers(DictTarget(sent)), version=1).bound_modules == 1
    group = LocalWorkers(DictTarget(sent), DictTarget(sent, fail=["unbound"]))
    with pytest.raises(
        WeightSyncError, match="worker 1, weights_commit: the engine applies the LoRA in 0 modules, exp"
    ):
        send_weights(make_stream("adapter", lora_tensors().items(), LORA), group, version=1)
    assert all(target.checksums(None) == checksums(sent.items()) for target in group.targets)


def damaged(**changes: Any) -> NamedTensorStream:
    """A stream that delivers something else than its manifest says (None: leaves it out)."""
    sent = tensors()
    manifest = full(sent).manifest
    return NamedTensorStream(manifest, {n: t for n, t in (sent | changes).items() if t is not None})


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (damaged(bias=torch.zeros(7)), "worker 0, weights_bucket: the tensor 'bias' arrived with checksum"),
        (damaged(bias=torch.zeros(8)), r"the tensor 'bias' has shape \(8,\), announced was \(7,\)"),
        (damaged(bias=torch.zeros(7).half()), "the tensor 'bias' has dtype float16, announced was float32"),
        (damaged(other=torch.zeros(7)), "delivered 'other', which its manifest does not announce"),
        (damaged(count=None), "ended without 1 of 8 tensors, first 'count'"),
        (full(tensors() | {"bias": torch.full((7,), torch.nan)}), "'bias' holds values that are not finite"),
        (full(tensors() | {"bias": torch.tensor([torch.inf, *[0] * 6])}), "'bias' holds values that are not finite"),
        (full(tensors() | {"foreign": torch.ones(1)}), "weights_begin: the engine has no tensor 'foreign'"),
        (full(tensors() | {"bias": torch.ones(6)}), r"weights_begin: the engine's 'bias' is \(7,\), not \(6,\)"),
    ],
)
def test_a_damaged_update_changes_nothing(stream: NamedTensorStream, problem: str) -> None:
    group = workers()
    with pytest.raises(WeightSyncError, match=problem):
        send_weights(stream, group, version=1, bucket_bytes=4096)
    assert_unchanged(group)


def test_large_finite_values_pass() -> None:
    group, sent = workers(1), tensors() | {"bias": torch.full((7,), 3e38)}
    send_weights(full(sent), group, version=1)
    assert torch.equal(group.targets[0].held["bias"], sent["bias"])


def test_a_stream_that_breaks_off_changes_nothing() -> None:
    class Broken(NamedTensorStream):
        def __iter__(self) -> Any:
            yield from list(tensors().items())[:2]
            raise OSError("the gather failed")

    group = workers()
    with pytest.raises(WeightSyncError, match="broke off: OSError\\('the gather failed'\\)"):
        send_weights(Broken(full(tensors()).manifest, {}), group, version=1, bucket_bytes=4096)
    assert_unchanged(group)


def test_one_worker_that_cannot_apply_takes_the_others_back() -> None:
    group = workers()
    group.targets[1].fail.add("apply")
    with pytest.raises(WeightSyncError, match="worker 1, weights_commit: RuntimeError: no room for 'scale'"):
        send_weights(full(tensors()), group, version=1)
    assert_unchanged(group)


def test_weights_that_cannot_be_put_back_end_the_worker() -> None:
    group = workers(1, fail=["apply", "restore"])
    with pytest.raises(WeightSyncError, match="could not be undone everywhere.*the copy is gone") as caught:
        send_weights(full(tensors()), group, version=1)
    assert "start the run again with --resume" in caught.value.remedy
    with pytest.raises(WeightSyncError, match="a former update left neither old nor new weights"):
        send_weights(full(tensors()), group, version=2)


def test_versions_only_grow_unless_what_is_held_counts_for_nothing() -> None:
    group = workers()
    send_weights(full(tensors()), group, version=4)
    for version in (3, 4):
        with pytest.raises(WeightSyncError, match=f"holds version 4 and was sent version {version}"):
            send_weights(full(tensors()), group, version=version)
    for version in (4, 3):
        assert send_weights(full(tensors()), group, version=version, repeat=True).version == version


def test_a_second_sync_is_refused_and_the_first_goes_on() -> None:
    group, sent = workers(), tensors()
    refused: list[str] = []

    def call(method: str, arguments: dict[str, Any]) -> list[Any]:
        if method == "weights_bucket" and not refused:
            with pytest.raises(WeightSyncError) as caught:
                send_weights(full(tensors(7)), group, version=9)
            refused.append(caught.value.problem)
        return group(method, arguments)

    send_weights(full(sent), call, version=1)
    assert "the update to version 1 by process" in refused[0]
    assert "is still under way" in refused[0]
    assert collect_checksums(group) == checksums(sent.items())


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([], "no rollout worker answered weights_begin"),
        ([{"supported": False, "error": "no such method"}], "worker 0 answered weights_begin with {'supported'"),
        ([{"ok": True}, None], "worker 1 answered weights_begin with None"),
        ([{"ok": False, "error": "out of memory"}], "worker 0, weights_begin: out of memory"),
    ],
)
def test_answers_that_are_errors_are_raised(answers: list[Any], problem: str) -> None:
    with pytest.raises(WeightSyncError, match=problem):
        send_weights(full(tensors()), lambda method, arguments: answers, version=1)


def test_a_call_that_fails_names_the_method() -> None:
    def call(method: str, arguments: dict[str, Any]) -> list[Any]:
        raise ConnectionResetError("engine process died")

    with pytest.raises(WeightSyncError, match="could not be called \\(weights_begin\\).*engine process died"):
        send_weights(full(tensors()), call, version=1)


def test_an_update_that_ended_in_one_worker_only_says_to_restart() -> None:
    group = workers()

    def call(method: str, arguments: dict[str, Any]) -> list[Any]:
        answers = group(method, arguments)
        return [*answers[:1], None] if method == "weights_finish" else answers

    with pytest.raises(WeightSyncError, match="worker 0 has ended its update to version 1") as caught:
        send_weights(full(tensors()), call, version=1)
    assert "start the run again" in caught.value.remedy


def test_what_cannot_be_sent_is_refused_before_any_call() -> None:
    group = workers()
    with pytest.raises(ConfigError, match="buckets of 10 bytes"):
        send_weights(full(tensors()), group, version=1, bucket_bytes=10)
    with pytest.raises(ConfigError, match="'pigeon' cannot be opened by name"):
        send_weights(full(tensors()), group, version=1, channel="pigeon")
    with pytest.raises(ConfigError, match="give|broadcast"):
        send_weights(full(tensors()), group, version=1, channel="broadcast")
    complex_valued = WeightManifest("full", {"c": TensorInfo((2,), "complex64", "")})
    with pytest.raises(WeightSyncError, match="'c' has dtype complex64"):
        send_weights(NamedTensorStream(complex_valued, {}), group, version=1)
    assert group.calls == []
