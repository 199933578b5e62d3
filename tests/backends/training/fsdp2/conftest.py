from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from omni_backends.training.fsdp2.engine import Fsdp2TrainEngine
from omni_portable.contracts.algorithm import Requires
from omni_portable.models.setup import EngineSetup
from tests.backends.training.fsdp2.blocks import blocks_plugin, blocks_setup

EVERYTHING = Requires(reference_policy=True, old_policy=True, ema=True)


@pytest.fixture(scope="session", autouse=True)
def _blocks_plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with blocks_plugin(tmp_path_factory.mktemp("plugin")):
        yield


@pytest.fixture
def start() -> Iterator[Callable[[EngineSetup], Fsdp2TrainEngine]]:
    """Starts engines that end with the test."""
    started: list[Fsdp2TrainEngine] = []

    def build(setup: EngineSetup) -> Fsdp2TrainEngine:
        started.append(Fsdp2TrainEngine(setup))
        return started[-1]

    yield build
    for engine in started:
        engine.close()


def full_setup(world: int) -> EngineSetup:
    """All weights, every policy; the weights never move, and AdamW's mean of gradients is the last gradient."""
    actor = {"lr": 0.0, "beta1": 0.0, "grad_clip": 0.0, "ema_decay": 0.5}
    return blocks_setup(world=world, requires=EVERYTHING, **actor)


def lora_setup(world: int) -> EngineSetup:
    return blocks_setup(world=world, lora=2, requires=EVERYTHING, ema_decay=0.5)


@pytest.fixture(scope="session")
def full_pair(_blocks_plugin: None) -> Iterator[Fsdp2TrainEngine]:
    engine = Fsdp2TrainEngine(full_setup(2))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def lora_pair(_blocks_plugin: None) -> Iterator[Fsdp2TrainEngine]:
    engine = Fsdp2TrainEngine(lora_setup(2))
    yield engine
    engine.close()
