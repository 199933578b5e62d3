"""Compares an attention kernel with math attention in fp64, forward and backward, on given shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni_portable.contracts.device import AttentionRequest

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], Tensor]
"""(query (B,H,T,D), key (B,G,T,D), value (B,G,T,D), mask (B,1,T or 1,T) bool, True where attended, or None, causal)
-> (B,H,T,D); G divides H. Where both are given, a key is attended that the mask and the causal order allow."""

TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 6e-3, "bfloat16": 5e-2}
"""Largest absolute error by dtype, for the inputs drawn here. Over shapes of 1 to 1500 tokens and 4 to 128 dimensions,
all masks, causal or not, grouped or not, the CPU kernels of torch 2.13 err by 6e-15, 2.3e-6, 2.3e-3 and 2.4e-2 at
most; a mask that is ignored gives 0.5 to 3."""

_UPSTREAM_SCALE = 0.125
"""Size of the drawn output gradient. The first keys of causal or padded inputs collect gradient from many rows; this
brings their gradients to the size of the outputs, so that one tolerance serves both."""


class KernelFailed(Exception):  # noqa: N818 - it is no fault of the caller's
    """The kernel raised instead of computing; its own error is the cause."""


@dataclass(frozen=True)
class Errors:
    """Largest absolute errors over all shapes, the shape of the worst, and whether a second call gave equal bits."""

    forward: float
    backward: float | None
    where: str
    repeatable: bool


@dataclass(frozen=True)
class _Case:
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    upstream: Tensor
    lengths: Tensor

    def rows(self, row: int) -> slice:
        """The queries of a batch row that are compared: all that are not padding."""
        return slice(0, int(self.lengths[row]))


def largest_errors(
    kernel: Kernel,
    request: AttentionRequest,
    shapes: Sequence[tuple[int, int, int, int]],
    *,
    device: str,
    seed: int = 0,
) -> Errors:
    """Run `kernel` on drawn inputs and compare it with the definition of attention.

    Inputs are standard normal, output gradients an eighth of that; both are drawn on the CPU. Outputs of queries that
    are padding are not compared and get no gradient: kernels differ in what they write there, and nobody reads it.

    Args:
        shapes: (batch, heads, tokens, head_dim) each; under grouped-query attention key and value get half the heads
            (one, where `heads` is odd).

    Raises:
        ValueError: no shapes, a shape without elements, or a head_dim other than the request's.
        KernelFailed: the kernel raised.
    """
    if not shapes:
        raise ValueError("no shapes to compare attention on")
    forward, backward, where, repeatable = 0.0, 0.0, str(shapes[0]), True
    for shape in shapes:
        if min(shape) < 1:
            raise ValueError(f"shape {shape} has nothing to compare attention on")
        if request.head_dim is not None and shape[3] != request.head_dim:
            raise ValueError(f"shape {shape} has another head_dim than the request ({request.head_dim})")
        case = _draw(request, shape, device, seed)
        results = _run(kernel, case, request.backward)
        if request.deterministic:
            again = _run(kernel, case, request.backward)
            repeatable = repeatable and all(torch.equal(a, b) for a, b in zip(results, again, strict=True))
        worst = _compare(results, case)
        previous = larger(forward, backward)
        forward, backward = larger(forward, worst[0]), larger(backward, *worst[1:])
        if larger(previous, *worst) != previous:
            where = f"shape {shape}"
    return Errors(forward, backward if request.backward else None, where, repeatable)


def larger(*errors: float) -> float:
    """max() that keeps NaN."""
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def _draw(request: AttentionRequest, shape: tuple[int, int, int, int], device: str, seed: int) -> _Case:
    batch, heads, tokens, head_dim = shape
    generator = torch.Generator().manual_seed(seed)
    groups = heads if not request.grouped_query else (heads // 2 if heads % 2 == 0 else 1)
    dtype = getattr(torch, request.dtype)

    def normal(count: int) -> Tensor:
        return torch.randn(batch, count, tokens, head_dim, generator=generator).to(device, dtype)

    query, key, value, upstream = normal(heads), normal(groups), normal(groups), normal(heads) * _UPSTREAM_SCALE
    mask, lengths = _mask(request.mask, batch, tokens, generator)
    valid = (torch.arange(tokens)[None] < lengths[:, None])[:, None, :, None].to(device)
    return _Case(
        query, key, value, None if mask is None else mask.to(device), request.causal, upstream * valid, lengths
    )


def _mask(kind: str, batch: int, tokens: int, generator: torch.Generator) -> tuple[Tensor | None, Tensor]:
    """True where attended, and the valid length of each row. Key 0 is always kept, so that no query is left without."""
    lengths = torch.full((batch,), tokens)
    if kind == "none":
        return None, lengths
    if kind == "padding":
        lengths = torch.randint(1, tokens + 1, (batch,), generator=generator)
        return (torch.arange(tokens)[None] < lengths[:, None])[:, None, None], lengths
    dense = torch.rand(batch, 1, tokens, tokens, generator=generator) < 0.7
    dense[..., 0] = True
    return dense, lengths


def _run(kernel: Kernel, case: _Case, backward: bool) -> tuple[Tensor, ...]:
    """Output, and the gradients of query, key and value where asked for."""
    inputs = [x.detach().clone().requires_grad_(backward) for x in (case.query, case.key, case.value)]
    try:
        with torch.set_grad_enabled(backward):
            out = kernel(inputs[0], inputs[1], inputs[2], case.mask, case.causal)
        if not backward:
            return (out,)
        return (out.detach(), *torch.autograd.grad(out, inputs, case.upstream, materialize_grads=True))
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise KernelFailed(f"shape {tuple(case.query.shape)}: {error}") from error


def _compare(results: tuple[Tensor, ...], case: _Case) -> list[float]:
    """Largest absolute error of each result. One (row, group) at a time, so that fp64 scores of long inputs fit."""
    worst = [0.0] * len(results)
    for row, group, heads in _groups(case):
        expected = _reference(case, row, group, heads, backward=len(results) > 1)
        places: tuple[slice | int, ...] = (heads, heads, group, group)
        got = [result[row, place] for result, place in zip(results, places, strict=False)]
        got[0], expected[0] = got[0][:, case.rows(row)], expected[0][:, case.rows(row)]
        for position, (a, b) in enumerate(zip(got, expected, strict=True)):
            worst[position] = larger(worst[position], (a.double().cpu() - b).abs().max().item())
    return worst


def _groups(case: _Case) -> Iterator[tuple[int, int, slice]]:
    share = case.query.shape[1] // case.key.shape[1]
    for row in range(case.query.shape[0]):
        for group in range(case.key.shape[1]):
            yield row, group, slice(group * share, (group + 1) * share)


def _reference(case: _Case, row: int, group: int, heads: slice, backward: bool) -> list[Tensor]:
    """softmax(q k^T / sqrt(D) + mask) v in fp64 on the CPU, for the heads of one key-value group."""
    query, key, value = (
        x.detach().double().cpu().requires_grad_(backward)
        for x in (case.query[row, heads], case.key[row, group], case.value[row, group])
    )
    with torch.set_grad_enabled(backward):
        scores = query @ key.T / query.shape[-1] ** 0.5
        allowed = None if case.mask is None else case.mask[row, 0].cpu()
        if case.causal:
            lower = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            allowed = lower if allowed is None else allowed & lower
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        out = scores.softmax(-1) @ value
    if not backward:
        return [out]
    upstream = case.upstream[row, heads].double().cpu()
    return [out.detach(), *torch.autograd.grad(out, (query, key, value), upstream)]
