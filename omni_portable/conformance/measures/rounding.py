"""Errors of elementary operations on a device against fp64 on the CPU, as shares of the rounding they may cost.

Inputs are rounded to the dtype first, so that only the operation's own arithmetic is judged. A bound has two parts: a
faithful rounding of the result to the dtype (either neighbour of the exact value, so that correct rounding uses half of
it), and the accumulation, which must be in fp32 or better (fp64 for fp64). A sum of n
terms may be off by SAFETY * sqrt(n) * u * sum|terms|: the probabilistic bound of Higham and Mary (SIAM J. Sci. Comput.
41(5), 2019), which any order of summation meets, and which products rounded to TF32 (11 bits) or sums kept in 16 bits
miss by an order of magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SAFETY = 8.0
"""Factor of the probabilistic bound; the chance that one of 65,536 sums of 512 terms exceeds it is below 1e-6."""
ROWS, TERMS = 256, 512


@dataclass(frozen=True)
class Share:
    """Largest error as a share of its bound (at most 1 is right; infinite where a result is not finite) and the
    largest error itself."""

    of_bound: float
    error: float


@dataclass(frozen=True)
class Units:
    """What rounding may cost: relative error of a faithfully rounded result, unit roundoff of the accumulator that the
    dtype must have, and the dtype's smallest normal number."""

    result: float
    accumulator: float
    tiny: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Units:
        kept = torch.finfo(dtype)
        wide = torch.finfo(dtype if kept.bits > 32 else torch.float32)
        return cls(kept.eps, wide.eps / 2, kept.tiny)


Operation = Callable[[torch.device, torch.dtype, torch.Generator], tuple[Tensor, Tensor, Tensor]]
"""(device, dtype, generator of the inputs) -> result on the device, exact result and bound, both fp64 on the CPU."""


def measure(operation: Operation, device: torch.device, dtype: torch.dtype, seed: int) -> Share:
    """Run one operation and compare."""
    result, exact, bound = operation(device, dtype, torch.Generator().manual_seed(seed))
    error = (result.double().cpu() - exact).abs()
    if not bool(torch.isfinite(result).all()):
        return Share(math.inf, math.inf)
    return Share((error / bound).max().item(), error.max().item())


def matmul(device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(ROWS, TERMS) @ (TERMS, ROWS), standard normal."""
    left, right = (_drawn((ROWS, TERMS), dtype, generator) for _ in range(2))
    right = right.T.contiguous()
    result = left.to(device) @ right.to(device)
    a, b = left.double(), right.double()
    return result, a @ b, _sum_bound(a @ b, a.abs() @ b.abs(), TERMS, Units.of(dtype))


def reduction(device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over rows and over columns of a (1024, 1024) matrix of normal numbers with mean 1/2."""
    values = _drawn((1024, 1024), dtype, generator, shift=0.5)
    here, exact = values.to(device), values.double()
    results, sums, bounds = [], [], []
    for axis in (0, 1):
        results.append(here.sum(axis))
        sums.append(exact.sum(axis))
        bounds.append(_sum_bound(sums[-1], exact.abs().sum(axis), 1024, Units.of(dtype)))
    return torch.cat(results), torch.cat(sums), torch.cat(bounds)


def softmax(device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of 1024 scores with a standard deviation of 4 around 60, which overflows without subtracting the maximum."""
    scores = _drawn((ROWS, 1024), dtype, generator, scale=4.0, shift=60.0)
    result = scores.to(device).softmax(-1)
    exact, units = scores.double(), Units.of(dtype)
    depth = exact.max(-1, keepdim=True).values - exact
    inner = SAFETY * units.accumulator * (4 + depth + math.sqrt(1024))
    expected = exact.softmax(-1)
    return result, expected, expected * (inner + units.result) + units.tiny


def layer_norm(device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of 1024 normal numbers around 4, where E[x^2] - E[x]^2 loses digits, with weight and bias."""
    values = _drawn((ROWS, 1024), dtype, generator, shift=4.0)
    weight, bias = _drawn((1024,), dtype, generator), _drawn((1024,), dtype, generator)
    layer = torch.nn.functional.layer_norm
    result = layer(values.to(device), (1024,), weight.to(device), bias.to(device))
    x, w, b = values.double(), weight.double(), bias.double()
    expected, units = layer(x, (1024,), w, b), Units.of(dtype)
    centred = layer(x, (1024,)).abs()
    offset = (x.mean(-1, keepdim=True) / x.std(-1, keepdim=True)).abs()
    inner = SAFETY * math.sqrt(1024) * units.accumulator * (centred + offset + 1) * w.abs()
    return result, expected, inner + units.result * (expected.abs() + b.abs()) + units.tiny


OPERATIONS: dict[str, Operation] = {
    "matmul": matmul,
    "reduction": reduction,
    "softmax": softmax,
    "layer_norm": layer_norm,
}


def lost_bits(device: torch.device) -> dict[str, float]:
    """How far fp32 products and convolutions are off where every operand needs all 24 bits of its significand.

    Operands are 1 + k 2^-23 with odd k; each is multiplied by 1/2 once and by zeros otherwise, so that fp32 gives
    every result exactly in any order. Arithmetic that cuts operands to 11 or 8 bits is off by 2^-12 or 2^-9.
    """
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(0, 2**22, (64, 64), generator=generator) * 2 + 1
    values = (1 + steps.double() * 2.0**-23).float()
    half = torch.full((64,), 0.5).diag()
    product = values.to(device) @ half.to(device)
    image = values.T.reshape(1, 64, 8, 8).contiguous()
    convolved = torch.nn.functional.conv2d(image.to(device), half.reshape(64, 64, 1, 1).to(device))
    return {
        "matmul": _relative(product, values.double() / 2),
        "convolution": _relative(convolved, image.double() / 2),
    }


def _relative(result: Tensor, exact: Tensor) -> float:
    return ((result.double().cpu() - exact) / exact).abs().max().item()


def _sum_bound(exact: Tensor, magnitudes: Tensor, terms: int, units: Units) -> Tensor:
    return SAFETY * math.sqrt(terms) * units.accumulator * magnitudes + units.result * exact.abs() + units.tiny


def _drawn(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, *, scale: float = 1.0, shift: float = 0.0
) -> Tensor:
    """Normal numbers, drawn in fp64 and rounded to the dtype, on the CPU."""
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale + shift).to(dtype)
