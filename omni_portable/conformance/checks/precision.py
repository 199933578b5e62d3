"""Elementary arithmetic in every dtype of the device, against fp64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from omni_portable.conformance.check import Check, Measurement, NotRun, Outcome
from omni_portable.conformance.context import Context
from omni_portable.conformance.measures.rounding import OPERATIONS, lost_bits, measure

LOST = 2.0**-20
"""Largest relative error of a product of fp32 numbers that counts as full fp32."""


def _operation(name: str) -> Callable[[Context], Outcome]:
    def run(context: Context) -> Outcome:
        device, measured = context.device.torch_device(), []
        for dtype in context.device.capabilities().dtypes:
            share = measure(OPERATIONS[name], device, getattr(torch, dtype), context.seed)
            measured += [
                Measurement(f"{dtype}.share_of_bound", share.of_bound, relation="<=", threshold=1),
                Measurement(f"{dtype}.largest_error", share.error),
            ]
        return Outcome(
            measured,
            "the bound is a faithful rounding of the result (correct rounding uses half of it) and an accumulation in "
            "fp32 (fp64 for fp64); results that are not finite have an infinite share",
        )

    return run


def _full_fp32(context: Context) -> Outcome:
    if "float32" not in context.device.capabilities().dtypes:
        raise NotRun("the device offers no float32")
    errors = lost_bits(context.device.torch_device())
    return Outcome(
        [Measurement(f"{name}_relative_error", error, relation="<=", threshold=LOST) for name, error in errors.items()],
        "products that fp32 gives exactly; operands cut to 11 bits (TF32) are off by about 1e-4, to 8 bits by 2e-3",
    )


_REMEDY = "do not train in this dtype here: choose another with device.dtype, or change the version of torch"
CHECKS = (
    Check(
        "precision.matmul",
        "precision",
        "Matrix products accumulate in fp32 and round faithfully, in every dtype.",
        "quick",
        _operation("matmul"),
        f"turn off reduced-precision fp32 and 16-bit accumulation of products; if that is not it, {_REMEDY}",
    ),
    Check(
        "precision.reduction",
        "precision",
        "Sums over rows and columns accumulate in fp32 and round faithfully, in every dtype.",
        "quick",
        _operation("reduction"),
        _REMEDY,
    ),
    Check(
        "precision.softmax",
        "precision",
        "Softmax is right for scores that would overflow, in every dtype.",
        "quick",
        _operation("softmax"),
        _REMEDY,
    ),
    Check(
        "precision.layer-norm",
        "precision",
        "Layer norm keeps its digits for inputs far from zero, in every dtype.",
        "quick",
        _operation("layer_norm"),
        _REMEDY,
    ),
    Check(
        "precision.full-fp32",
        "precision",
        "fp32 products and convolutions use all 24 bits of their operands.",
        "quick",
        _full_fp32,
        "turn off TF32 and other reduced-precision fp32 for products and convolutions, or choose a dtype knowingly",
    ),
)
