"""Seeds and deterministic kernels as every device sets them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from omni_devices.common.seeding import enable_deterministic


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    was, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    torch.use_deterministic_algorithms(was, warn_only=warned)


def test_equal_seeds_draw_equal_numbers() -> None:
    def draws(seed: int) -> tuple[float, float, float]:
        enable_deterministic(seed, {}, ())
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    assert draws(7) == draws(7)
    assert all(a != b for a, b in zip(draws(7), draws(8), strict=True))
    assert draws(2**40 + 7)[1] == draws(7)[1]  # numpy's seeds wrap


@pytest.mark.parametrize("warn_only", [False, True])
def test_the_report_says_what_was_set(warn_only: bool) -> None:
    report = enable_deterministic(3, {"WORKSPACE": ":8"}, ["Nothing else."], warn_only=warn_only)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled() is warn_only
    assert report.applied["torch.use_deterministic_algorithms"] == ("True, warn only" if warn_only else "True")
    assert report.applied["torch.manual_seed"] == "3"
    assert report.applied["WORKSPACE"] == ":8"
    assert report.not_promised == ("Nothing else.",)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="the seed -1 is negative"):
        enable_deterministic(-1, {}, ())
