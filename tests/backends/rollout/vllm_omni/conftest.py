"""Running engines, one per configuration and test session: a start takes tens of seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.backends.rollout.vllm_omni.drawing import Pair


@pytest.fixture(scope="session")
def engine_pair() -> Iterator[Callable[..., Pair]]:
    """A vLLM-Omni engine and what it is compared with; equal arguments share one."""
    pairs: dict[str, Pair] = {}

    def get(family: str = "sd3", **changes) -> Pair:
        key = repr((family, sorted(changes.items())))
        if key not in pairs:
            pairs[key] = Pair.start(family, **changes)
        return pairs[key].fresh()

    yield get
    for pair in pairs.values():
        pair.engine.close()
