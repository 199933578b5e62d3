"""Noise belongs to the sample: the same bits on every host and device, whatever it is batched with."""

from __future__ import annotations

import hashlib

import torch

from omni_portable.conformance.check import Check, Measurement, Outcome
from omni_portable.conformance.context import Context
from omni_portable.contracts.rollout import RolloutRequest, SamplingPlan, Schedule
from omni_portable.samplers.noise import noise_seed, normal, unit_noise

RECORDED = {
    (0, "a cat", 0, -1, "latents", (4, 6)): "1c2eb9a14efd5e8851473f91095bd335917fffdbe4183c992b4b251e504dba5c",
    (0, "a cat", 0, 3, "latents", (4, 6)): "074c4ead7921b296ff54f86f85c9add90dbf33a113b90ac5f1ae38e621987d88",
    (1, "\u732b", 7, 0, "latents", (16, 8, 8)): "183e807ee54497b6e81bd739ef5da7b335d9e85b1989f6e9ed0e78e469ee8bcb",
    (2**40 + 5, "", 123, 27, "audio", (1, 1001)): "7028d104443be26b1a01caee929cd8fa0c288d2cd29ec3bf2eaa242d7929a383",
    (99, "x" * 500, 0, -1, "latents", (3, 1, 257)): "376870bd23d19f64b70d7e36a8342a5c789ae72f3c3eb11336ed16123836f975",
}
"""(seed, prompt id, sample, step, stream, shape) -> SHA-256 of the fp32 bytes, little-endian, in row-major order.

Recorded on x86-64 with numpy 2.x; they must never change, since runs are repeated and compared by these bits."""
ROWS = 7


def _recorded(context: Context) -> Outcome:
    differing = []
    for (seed, prompt, sample, step, stream, shape), recorded in RECORDED.items():
        drawn = normal(noise_seed(seed, prompt, sample, step, stream), shape)
        found = hashlib.sha256(drawn.numpy().astype("<f4").tobytes()).hexdigest()
        if found != recorded:
            differing.append(f"seed {seed}, sample {sample}, step {step}, '{stream}'")
    return Outcome(
        [
            Measurement("draws", len(RECORDED)),
            Measurement("differing_draws", len(differing), "", "==", 0),
        ],
        f"differing: {'; '.join(differing) or 'none'}",
    )


def _transfer(context: Context) -> Outcome:
    """To the device and back, as latents go."""
    drawn = normal(context.seed, (ROWS, 16, 33, 17))
    special = torch.tensor([0.0, -0.0, 1e-45, -1.1e-38, 3.4e38, -3.4e38])
    drawn.flatten()[: len(special)] = special
    returned = drawn.to(context.device.torch_device()).to("cpu")
    changed = int((drawn.view(torch.int32) != returned.view(torch.int32)).sum())
    return Outcome(
        [
            Measurement("numbers", drawn.numel()),
            Measurement("changed_numbers", changed, "", "==", 0),
        ],
        "bits are compared, of subnormal and signed zeros too",
    )


def _batches(context: Context) -> Outcome:
    """Rows alone, in order, reversed and in packs: every row keeps its bits."""
    requests, shape = _requests(context), (4, 5, 6)
    together = unit_noise(requests, 2, shape)
    others = {
        "alone": torch.cat([unit_noise([request], 2, shape) for request in requests]),
        "reversed": unit_noise(requests[::-1], 2, shape).flip(0),
        "in packs": torch.cat([unit_noise(requests[:3], 2, shape), unit_noise(requests[3:], 2, shape)]),
    }
    differing = {name: int((together != rows).flatten(1).any(1).sum()) for name, rows in others.items()}
    distinct = len({row.numpy().tobytes() for row in together})
    return Outcome(
        [
            Measurement("differing_rows", sum(differing.values()), "", "==", 0),
            Measurement("rows_that_repeat_another", ROWS - distinct, "", "==", 0),
        ],
        ", ".join(f"{name}: {count} of {ROWS} rows differ" for name, count in differing.items()),
    )


def _requests(context: Context) -> list[RolloutRequest]:
    return [
        RolloutRequest(
            request_id=str(row),
            group_id=str(row // 2),
            prompt_id=f"prompt {row // 2}",
            sample_index=row % 2,
            seed=context.seed,
            prompt="",
            height=32,
            width=32,
            schedule=Schedule((1.0, 0.5, 0.0)),
            plan=SamplingPlan(),
        )
        for row in range(ROWS)
    ]


CHECKS = (
    Check(
        "noise.recorded",
        "noise",
        "Known seeds give the recorded bits.",
        "quick",
        _recorded,
        "install the pinned numpy: with other noise, runs here cannot be compared with runs elsewhere",
    ),
    Check(
        "noise.transfer",
        "noise",
        "Noise moved to the device and back is unchanged.",
        "quick",
        _transfer,
        "do not train on this device: copies to it or from it corrupt numbers",
    ),
    Check(
        "noise.batches",
        "noise",
        "A sample's noise does not depend on the batch it is drawn in.",
        "quick",
        _batches,
        "report this as a fault of omni-portable: samples would change with the number of ranks",
    ),
)
