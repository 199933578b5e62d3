"""The bounds accept right arithmetic and reject the wrong kinds that accelerators really offer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from omni_portable.conformance.checks.precision import CHECKS, LOST
from omni_portable.conformance.measures import rounding
from omni_portable.conformance.measures.rounding import OPERATIONS, lost_bits, measure
from omni_portable.conformance.runner import run_check
from tests.conformance.conformance_doubles import context, cpu

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def cut(tensor: Tensor, bits: int) -> Tensor:
    """fp32 numbers rounded to a significand of `bits` bits, as operands of tensor cores are."""
    mantissa, exponent = torch.frexp(tensor.double())
    return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent).float()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_cpu_keeps_its_bounds(name: str, dtype: torch.dtype, seed: int) -> None:
    assert measure(OPERATIONS[name], CPU, dtype, seed).of_bound <= 1


@pytest.mark.parametrize("seed", range(3))
def test_products_of_cut_operands_break_the_bound(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    _, exact, bound = rounding.matmul(CPU, torch.float32, torch.Generator().manual_seed(seed))
    left, right = (rounding._drawn((256, 512), torch.float32, generator) for _ in range(2))
    right = right.T.contiguous()

    def share(result: Tensor) -> float:
        return ((result.double() - exact).abs() / bound).max().item()

    assert share(left @ right) < 0.1
    assert share(cut(left, 24) @ cut(right, 24)) < 0.1
    assert share(cut(left, 11) @ cut(right, 11)) > 5


def summed_narrow(values: Tensor, dim: int) -> Tensor:
    """A sum that keeps its running total in the dtype of its terms."""
    total = torch.zeros_like(values.select(dim, 0))
    for part in values.unbind(dim):
        total = total + part
    return total


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_in_sixteen_bits_break_the_bound(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(Tensor, "sum", lambda self, dim: summed_narrow(self, dim))
    _, exact, _ = (values.double() for values in rounding.reduction(CPU, torch.float64, torch.Generator()))
    assert exact.numel() == 2048
    assert measure(OPERATIONS["reduction"], CPU, dtype, 0).of_bound > 5


def naive_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Variance as E[x^2] - E[x]^2 in the input's dtype."""
    mean = x.mean(-1, keepdim=True)
    out = (x - mean) * ((x * x).mean(-1, keepdim=True) - mean * mean + 1e-5).rsqrt()
    return out if weight is None or bias is None else out * weight + bias


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_naive_variance_breaks_the_bound(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    right = torch.nn.functional.layer_norm

    def layer(x: Tensor, *arguments: Tensor) -> Tensor:
        return (naive_norm if x.dtype == dtype else right)(x, *arguments)

    monkeypatch.setattr(torch.nn.functional, "layer_norm", layer)
    assert measure(OPERATIONS["layer_norm"], CPU, dtype, 0).of_bound > 1.5


def without_maximum(self: Tensor, dim: int) -> Tensor:
    powers = self.exp()
    return powers / powers.sum(dim, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_naive_softmax_fails(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    right = Tensor.softmax
    monkeypatch.setattr(Tensor, "softmax", lambda x, dim: (without_maximum if x.dtype == dtype else right)(x, dim))
    assert measure(OPERATIONS["softmax"], CPU, dtype, 0).of_bound > 1


def test_results_that_are_not_finite_fail() -> None:
    def broken(*_: object) -> tuple[Tensor, Tensor, Tensor]:
        return torch.tensor([1.0, math.nan]), torch.ones(2).double(), torch.ones(2).double()

    assert measure(broken, CPU, torch.float32, 0).of_bound == math.inf


def test_full_fp32_is_told_from_cut_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(lost_bits(CPU).values()) == {0.0}
    product: Callable[[Tensor, Tensor], Tensor] = Tensor.__matmul__
    convolve = torch.nn.functional.conv2d
    for bits in (11, 8):
        monkeypatch.setattr(Tensor, "__matmul__", lambda a, b, n=bits: product(cut(a, n), cut(b, n)))
        monkeypatch.setattr(torch.nn.functional, "conv2d", lambda a, b, n=bits: convolve(cut(a, n), cut(b, n)))
        assert all(100 * LOST < error < 2.0**-bits for error in lost_bits(CPU).values())


def test_every_dtype_of_the_device_is_measured(tmp_path: Path) -> None:
    for check in CHECKS:
        found = run_check(context(tmp_path), check)
        assert found.status == "passed", found.reason
        if check.id != "precision.full-fp32":
            names = {measurement.name.partition(".")[0] for measurement in found.measurements}
            assert names == {"float32", "float64", "bfloat16"}


def test_without_float32_there_is_nothing_to_lose(tmp_path: Path) -> None:
    from dataclasses import replace

    device = cpu()
    here = context(tmp_path, cpu(capabilities=lambda: replace(device.capabilities(), dtypes=("bfloat16",))))
    check = next(check for check in CHECKS if check.id == "precision.full-fp32")
    assert run_check(here, check).status == "not_run"
