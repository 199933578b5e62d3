import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from omni_portable.contracts.dataplane import ScoredGroup
from omni_portable.contracts.errors import DataError
from omni_portable.contracts.lifecycle import Ack, EngineState
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.reward import RewardSample
from omni_portable.contracts.rollout import EngineHealth
from omni_portable.rollout.codec import LARGE, pack, pack_parts, unpack, unpack_parts
from tests.support.requests import make_group

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.just("__kind__"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_values_come_back_as_they_were(value):
    back = unpack(pack(value))
    assert back == value
    assert type(back) is type(value)


@given(st.sampled_from(["float32", "bfloat16", "int64", "uint8", "bool"]), st.lists(st.integers(0, 3), max_size=3))
def test_tensors_come_back_bit_for_bit(dtype, shape):
    tensor = torch.randn(shape).to(getattr(torch, dtype))
    back = unpack(pack({"t": tensor}))["t"]
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert back.reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))


def test_infinite_and_undefined_numbers_survive():
    low, nan = unpack(pack([-math.inf, math.nan]))
    assert low == -math.inf
    assert math.isnan(nan)


def test_a_group_comes_back_whole():
    group = make_group("g", 3, [1, 2])
    back = unpack(pack(group))
    assert isinstance(back, ScoredGroup)
    assert (back.group_id, back.submission, back.rewards) == (group.group_id, group.submission, group.rewards)
    for mine, theirs in zip(group.trajectories, back.trajectories, strict=True):
        assert theirs.request == mine.request
        assert theirs.latents.equal(mine.latents)
        assert theirs.policy_version == mine.policy_version


def test_acknowledgements_states_and_media_come_back():
    ack = Ack("pause", 3, aborted=("a", "b"))
    health = EngineHealth(EngineState.ASLEEP, 2, 0, {"legal": ["wake"]})
    sound = MediaArtifact("audio", "audio", torch.zeros(1, 8), "CT", sample_rate=16000)
    back = unpack(pack((ack, health, sound)))
    assert back[0] == ack
    assert back[1] == health
    assert back[1].state is EngineState.ASLEEP
    assert back[2].sample_rate == 16000
    assert back[2].data.shape == (1, 8)


def test_a_shared_tensor_travels_once_and_a_view_without_its_storage():
    whole = torch.zeros(1 << 18)
    assert len(pack([whole[:16], whole[:16]])) < 2000
    first, second = unpack(pack([whole[:16], whole[:16]]))
    assert first is second
    assert len(pack([whole] * 8)) < (1 << 20) + 2000


def test_what_cannot_travel_is_named():
    with pytest.raises(DataError, match=r"value\.metadata\['when'\].*object"):
        pack(RewardSample("s", "g", "p", {}, {"when": object()}))
    with pytest.raises(DataError, match="key 3"):
        pack({"a": {3: 1}})


@given(st.binary(max_size=60))
def test_rubbish_is_refused(blob):
    with pytest.raises(DataError, match="cannot be read"):
        unpack(blob)


def test_a_truncated_blob_is_refused():
    blob = pack(make_group("g", 0, [1]))
    for length in (4, len(blob) // 2, len(blob) - 1):
        with pytest.raises(DataError, match="cannot be read"):
            unpack(blob[:length])


def test_a_blob_is_a_safetensors_file_that_others_can_read(tmp_path):
    tensors = [torch.arange(3, dtype=torch.int8), torch.randn(2, 5), torch.zeros(0, 4), torch.tensor(1.5)]
    tensors += [torch.randn(4, 6, dtype=torch.bfloat16).t(), torch.randn(4).to(torch.float8_e4m3fn)]
    path = tmp_path / "blob.safetensors"
    path.write_bytes(pack(tensors))
    with safe_open(path, "pt") as file:
        for at, tensor in enumerate(tensors):
            read = file.get_tensor(str(at))
            assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
            assert read.reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))


def test_what_comes_back_is_in_memory_of_its_own():
    """It may be written, and one tensor of many keeps none of the others alive."""
    blob = pack([torch.ones(4), torch.ones(1000)])
    small, _ = unpack(memoryview(blob))
    small += 1
    assert small.untyped_storage().nbytes() == 16
    assert unpack(blob)[0].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [0, 17]},
        {"data_offsets": [8, 24]},
        {"data_offsets": [16, 0]},
        {"data_offsets": [0]},
        {"shape": [-4]},
        {"shape": [3], "data_offsets": [0, 12]},
        {"dtype": "F99"},
        {"shape": ["many"]},
    ],
)
def test_tensors_in_impossible_places_are_refused(change):
    blob = pack(torch.ones(4))
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    header["0"] |= change
    said = json.dumps(header).encode()
    with pytest.raises(DataError, match="cannot be read"):
        unpack(len(said).to_bytes(8, "little") + said + blob[8 + size :])


def test_a_dtype_that_cannot_travel_is_named():
    with pytest.raises(DataError, match=r"torch\.complex128 cannot travel"):
        pack(torch.zeros(1, dtype=torch.complex128))


def test_large_tensors_travel_by_themselves_and_uncopied():
    large, shared = torch.randn(LARGE // 4), torch.randn(2, LARGE // 4, dtype=torch.float64)
    value = {"large": large, "small": torch.arange(5), "view": shared[1], "again": [large], "turned": shared.t()}
    first, *others = parts = pack_parts(value)
    assert first.nbytes < 4096
    assert [part.nbytes for part in others] == [LARGE, 2 * LARGE, 4 * LARGE]
    assert others[0].data_ptr() == large.data_ptr()
    assert others[1].data_ptr() == shared[1].data_ptr()
    back = unpack_parts(parts)
    assert all(back[name].equal(value[name]) for name in ("large", "small", "view", "turned"))
    assert back["again"][0] is back["large"]
    assert back["large"].data_ptr() != large.data_ptr()


def test_parts_that_are_missing_or_do_not_fit_are_refused():
    first, part = pack_parts([torch.zeros(LARGE)])
    for parts in ([first], [first, part, part], [first, part[1:]], [first[:-9], part], [part, first]):
        with pytest.raises(DataError, match="cannot be read"):
            unpack_parts(parts)
