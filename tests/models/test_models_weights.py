"""Weight streams arrive completely and unchanged, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.contracts.errors import WeightSyncError
from omni_portable.contracts.weights import LoraInfo, WeightManifest
from omni_portable.models.weights import (
    apply_tensors,
    canonical_name,
    make_stream,
    named_tensors,
    receive,
    tensor_checksum,
    tensor_info,
)

LORA = LoraInfo(rank=2, alpha=4.0, targets=("a",), expected_modules=1)


class Delivery:
    """A stream whose delivery need not match its manifest."""

    def __init__(self, manifest: WeightManifest, delivered: list[tuple[str, torch.Tensor]]) -> None:
        self.manifest = manifest
        self._delivered = delivered

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._delivered


def two_tensors() -> dict[str, torch.Tensor]:
    return {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def test_checksum_is_xxh3_128_of_the_raw_bytes():
    tensor = torch.tensor([1.0, -2.5])
    assert tensor_checksum(tensor) == xxhash.xxh3_128(tensor.numpy().tobytes()).hexdigest()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(0, 5),
    columns=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]),
)
def test_checksum_ignores_strides_and_sees_every_element(rows, columns, dtype):
    tensor = torch.arange(rows * columns).reshape(rows, columns).remainder(2).to(dtype)
    strided = tensor.t().contiguous().t()
    assert tensor_checksum(strided) == tensor_checksum(tensor)
    for index in range(rows * columns):
        other = tensor.clone()
        other.view(-1)[index] = 1 - other.view(-1)[index].to(torch.int64)
        assert tensor_checksum(other) != tensor_checksum(tensor)


def test_scalars_have_checksums():
    assert tensor_checksum(torch.tensor(1.0)) == tensor_checksum(torch.tensor([1.0]))


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("blocks.0.attn.to_out.0.base_layer.weight", "blocks.0.attn.to_out.0.weight"),
        ("blocks.0.attn.to_q.lora_A.default.weight", "blocks.0.attn.to_q.lora_A.weight"),
        ("blocks.0.default.weight", "blocks.0.default.weight"),
        ("blocks.0.ff.net.2.bias", "blocks.0.ff.net.2.bias"),
    ],
)
def test_canonical_names(name, canonical):
    assert canonical_name(name) == canonical


def test_receive_returns_what_was_sent():
    tensors = two_tensors()
    received = receive(make_stream("full", tensors.items(), None))
    assert list(received) == ["a", "b"]
    assert all(torch.equal(received[name], tensors[name]) for name in tensors)


def test_manifest_counts_bytes():
    assert make_stream("full", two_tensors().items(), None).manifest.bytes == 6 * 4 + 4 * 2


def test_a_stream_is_read_once():
    stream = make_stream("full", two_tensors().items(), None)
    receive(stream)
    with pytest.raises(WeightSyncError, match="read twice"):
        receive(stream)


def test_a_tensor_that_changes_after_the_manifest_is_caught():
    tensors = two_tensors()
    stream = make_stream("full", tensors.items(), None)
    tensors["a"][1, 2] += 1
    with pytest.raises(WeightSyncError, match="'a' arrived with checksum"):
        receive(stream)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda items: items[:1], "without 1 of 2 tensors, first 'b'"),
        (lambda items: [*items, ("c", torch.ones(1))], "'c', which its manifest does not announce"),
        (lambda items: [*items, items[0]], "'a' twice"),
        (lambda items: [("a", items[0][1].reshape(3, 2)), items[1]], "'a' arrived with shape"),
        (lambda items: [items[0], ("b", items[1][1].to(torch.float16))], "'b' arrived with dtype"),
        (lambda items: [items[0], ("b", items[1][1] * 2)], "'b' arrived with checksum"),
    ],
)
def test_receive_refuses_anything_but_what_was_announced(change, message):
    items = list(two_tensors().items())
    manifest = WeightManifest("full", {name: tensor_info(tensor) for name, tensor in items})
    with pytest.raises(WeightSyncError, match=message):
        receive(Delivery(manifest, change(items)))


def test_order_of_delivery_does_not_matter():
    items = list(two_tensors().items())
    manifest = WeightManifest("full", {name: tensor_info(tensor) for name, tensor in items})
    assert list(receive(Delivery(manifest, items[::-1]))) == ["a", "b"]


def test_make_stream_refuses_nonsense():
    with pytest.raises(WeightSyncError, match="only 'adapter' needs it"):
        make_stream("adapter", two_tensors().items(), None)
    with pytest.raises(WeightSyncError, match="only 'adapter' needs it"):
        make_stream("full", two_tensors().items(), LORA)
    with pytest.raises(WeightSyncError, match="holds no tensors"):
        make_stream("full", [], None)
    with pytest.raises(WeightSyncError, match="'a' is in the weight stream twice"):
        make_stream("adapter", [*two_tensors().items(), ("a", torch.ones(1))], LORA)


def test_lora_travels_in_the_manifest():
    stream = make_stream("adapter", two_tensors().items(), LORA)
    assert stream.manifest.lora == LORA
    assert replace(LORA, alpha=8.0) != LORA


def test_apply_writes_in_place():
    module = torch.nn.Linear(3, 2)
    weight = module.weight
    new = {"weight": torch.full((2, 3), 7.0), "bias": torch.zeros(2)}
    assert apply_tensors(module, new) == 8 * 4
    assert module.weight is weight
    assert torch.equal(module.weight, new["weight"])


@pytest.mark.parametrize(
    "bad", [("other", torch.zeros(2)), ("bias", torch.zeros(3)), ("bias", torch.zeros(2, dtype=torch.float64))]
)
def test_apply_changes_nothing_when_one_tensor_does_not_fit(bad):
    module = torch.nn.Linear(3, 2)
    before = module.weight.detach().clone()
    with pytest.raises(WeightSyncError, match=bad[0]):
        apply_tensors(module, {"weight": torch.zeros(2, 3), bad[0]: bad[1]})
    assert torch.equal(module.weight, before)


def test_a_tensor_that_cannot_be_written_is_named():
    module = torch.nn.Linear(3, 2)
    with torch.inference_mode():
        module.bias = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    with pytest.raises(WeightSyncError, match="the tensor 'bias' could not be written: .*inference tensor"):
        apply_tensors(module, {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})


def test_persistent_buffers_are_named_too():
    assert "running_mean" in named_tensors(torch.nn.BatchNorm1d(2))
