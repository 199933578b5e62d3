"""HCCL process groups over a simulated torch_npu: what is bound, what is asked of torch, and what a failure says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from omni_devices.ascend.collectives import HcclCollectives
from omni_portable.contracts.errors import DeviceError, LifecycleError
from tests.support.vendor import installed, simulate

CHANNELS = ("broadcast", "shared_memory")


def devices(count: int, chosen: list[Any]) -> dict[str, Any]:
    return {
        "torch_npu.npu.device_count": lambda: count,
        "torch_npu.npu.current_device": lambda: 0,
        "torch_npu.npu.set_device": chosen.append,
    }


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for torch's own call, which needs HCCL; keeps its arguments."""
    seen: dict[str, Any] = {}

    def init_process_group(backend: str, **named: Any) -> None:
        seen.update(backend=backend, **named)

    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return seen


def test_what_it_is() -> None:
    collectives = HcclCollectives(CHANNELS)
    assert collectives.backend == "hccl"
    assert collectives.weight_channels() == CHANNELS


def test_a_group_is_bound_to_the_ranks_device(
    tmp_path: Path, joined: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    with simulate(devices(4, chosen), stack="ascend"):
        HcclCollectives(CHANNELS).init_process_group(0, 1, f"file://{tmp_path}/store", 5)
        assert joined["device_id"] == torch.device("npu", 3)
    assert chosen == [3]
    assert (joined["backend"], joined["rank"], joined["world_size"]) == ("hccl", 0, 1)
    assert joined["timeout"].total_seconds() == 5


def test_more_ranks_than_devices(tmp_path: Path, joined: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "4")
    with simulate(devices(4, []), stack="ascend"), pytest.raises(DeviceError, match="local rank 4.*4 devices"):
        HcclCollectives(CHANNELS).init_process_group(0, 1, f"file://{tmp_path}/store", 5)
    assert not joined


def test_a_failure_says_what_to_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(backend: str, **named: Any) -> None:
        raise RuntimeError("EI0006: Getting socket times out. Reason: remote rank did not send the data in time")

    monkeypatch.setattr(dist, "init_process_group", fail)
    with (
        simulate(devices(1, []), stack="ascend"),
        pytest.raises(DeviceError, match="could not join hccl.*EI0006") as caught,
    ):
        HcclCollectives(CHANNELS).init_process_group(0, 1, f"file://{tmp_path}/store", 5)
    for word in ("HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "60000 to 60031", "HCCL_IF_BASE_PORT", "HCCL_CONNECT_TIMEOUT"):
        assert word in str(caught.value)


def test_a_missing_rank_is_named_before_hccl_waits(tmp_path: Path, joined: dict[str, Any]) -> None:
    with simulate(devices(1, []), stack="ascend"), pytest.raises(DeviceError, match="rank 1 did not come") as caught:
        HcclCollectives(CHANNELS).init_process_group(0, 2, f"file://{tmp_path}/store", 0.2)
    assert "HCCL_SOCKET_IFNAME" in str(caught.value)
    assert not joined


def test_torch_npu_is_loaded_first(tmp_path: Path, joined: dict[str, Any]) -> None:
    with simulate({"torch_npu": None}, stack="ascend"), installed({"torch-npu": None}):
        with pytest.raises(DeviceError, match="'torch_npu' is not installed"):
            HcclCollectives(CHANNELS).init_process_group(0, 1, f"file://{tmp_path}/store", 5)
    assert not joined


def test_nothing_is_tested_without_a_group() -> None:
    with pytest.raises(LifecycleError, match="no process group"):
        HcclCollectives(CHANNELS).self_test()
