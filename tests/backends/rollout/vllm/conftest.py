from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.vllm_pair import Pair


def _pair(*arguments: Any, **options: Any) -> Iterator[Pair]:
    pair = Pair(*arguments, **options)
    yield pair
    exported = pair.engine._host._exported
    pair.close()
    assert exported is None or not exported.exists()


@pytest.fixture(scope="session")
def text_pair() -> Iterator[Pair]:
    """Full weights of a dense text model; engines start slowly, so all tests share them."""
    yield from _pair("qwen3")


@pytest.fixture(scope="session")
def lora_pair() -> Iterator[Pair]:
    """A LoRA of rank 4."""
    yield from _pair("qwen3", lora_rank=4)


@pytest.fixture(scope="session")
def omni_pair() -> Iterator[Pair]:
    """Full weights of a mixture of experts that sees and hears."""
    yield from _pair("qwen3_omni")


@pytest.fixture(scope="module")
def split_pair() -> Iterator[Pair]:
    """As `text_pair`, by two tensor-parallel workers; used by one module, and ended with it."""
    yield from _pair("qwen3", tensor_parallel_size=2)


@pytest.fixture(scope="module")
def split_lora_pair() -> Iterator[Pair]:
    """As `lora_pair`, by two tensor-parallel workers."""
    yield from _pair("qwen3", lora_rank=4, tensor_parallel_size=2)


@pytest.fixture(autouse=True)
def awake(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test finds its engines running with their first weights."""
    yield
    for name in ("text_pair", "lora_pair", "omni_pair", "split_pair", "split_lora_pair"):
        if name in request.fixturenames:
            pair: Pair = request.getfixturevalue(name)
            for engine in (pair.engine, pair.native):
                if engine.health().state.value == "paused":
                    engine.resume()
            pair.update(pair.first)
