"""Figures of weight syncs between two processes; the bandwidth of a memory copy is measured beside them.

    pytest tests/benchmarks/test_weight_sync.py --benchmark-only

`extra_info` of each benchmark holds the bytes per second of copying the same bytes once in one thread, of the sync (its
first call to its last answer), of making the manifest (every tensor hashed once), and of the read-back.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch

from omni_backends.sync import SharedMemorySender, SyncReport, collect_checksums, send_weights
from omni_backends.sync.send import DEFAULT_BUCKET_BYTES
from omni_portable.contracts.weights import LoraInfo
from omni_portable.models.lora import inject_lora, lora_named_tensors
from omni_portable.models.weights import NamedTensorStream, checksums, make_stream
from tests.support.engines import make_setup
from tests.support.sync_worker import ProcessWorkers

MIB = 1 << 20
FULL = {f"layer.{index}.weight": 10 * MIB // 4 for index in range(20)}
"""200 MiB in fp32: names and sizes."""


def lora() -> tuple[dict[str, torch.Tensor], LoraInfo]:
    """The LoRA of the tiny SD3."""
    from omni_portable.config.tiny import tiny_folder
    from omni_portable.contracts import registry

    adapter = registry.load("model", "sd3")(make_setup("sd3", tiny_folder("sd3")).load)
    info = inject_lora(adapter.transformer, rank=4, alpha=8, targets=adapter.lora_targets(), seed=0)
    return {name: tensor.detach().clone() for name, tensor in lora_named_tensors(adapter.transformer)}, info


def copy_bandwidth(size: int) -> float:
    """Bytes per second of the best of five copies within memory, after one that maps the pages."""
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - started)
    return size / min(seconds[1:])


def measured(benchmark: Any, tensors: dict[str, torch.Tensor], info: LoraInfo | None) -> None:
    worker = ProcessWorkers(1, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    channel = SharedMemorySender(DEFAULT_BUCKET_BYTES)
    versions = itertools.count(1)
    reports: list[SyncReport] = []
    manifests: list[float] = []
    reads: list[float] = []

    def stream() -> tuple[tuple[NamedTensorStream], dict[str, Any]]:
        started = time.perf_counter()
        made = make_stream("full" if info is None else "adapter", tensors.items(), info)
        manifests.append(time.perf_counter() - started)
        return (made,), {}

    def sync(made: NamedTensorStream) -> None:
        reports.append(send_weights(made, worker, version=next(versions), channel=channel))

    try:
        benchmark.pedantic(sync, setup=stream, rounds=10, warmup_rounds=2)
        for _ in range(5):
            started = time.perf_counter()
            assert collect_checksums(worker) == checksums(tensors.items())
            reads.append(time.perf_counter() - started)
    finally:
        worker.close()
        channel.close()
    best = min(reports, key=lambda report: report.seconds)
    copied, size = copy_bandwidth(200 * MIB), best.bytes
    benchmark.extra_info |= {
        "bytes": size,
        "milliseconds": best.seconds * 1e3,
        "manifest_milliseconds": min(manifests) * 1e3,
        "read_back_milliseconds": min(reads) * 1e3,
        "sync_bytes_per_second": size / best.seconds,
        "sync_and_manifest_bytes_per_second": size / (best.seconds + min(manifests)),
        "transfer_bytes_per_second": size / best.transfer_seconds,
        "copy_bytes_per_second": copied,
        "share_of_copy": size / best.seconds / copied,
    }
    print({name: f"{value:.4g}" for name, value in benchmark.extra_info.items()})


def test_lora_sync_of_the_tiny_model(benchmark: Any) -> None:
    measured(benchmark, *lora())


def test_full_sync_of_200_mib(benchmark: Any) -> None:
    measured(benchmark, {name: torch.randn(size) for name, size in FULL.items()}, None)
