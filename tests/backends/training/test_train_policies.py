from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from omni_backends.training.policies import lora_disabled, swapped_in
from omni_backends.training.single.engine import SingleTrainEngine
from omni_portable.contracts.algorithm import Requires
from omni_portable.contracts.errors import CapabilityError, ConfigError, LifecycleError
from omni_portable.models.weights import receive
from tests.backends.training.toy import (
    ToyAlgorithm,
    assert_equal,
    make_batch,
    make_config,
    make_setup,
    make_trajectories,
    snapshot,
)

pytestmark = pytest.mark.usefixtures("toy")


def build(lora: int = 0, requires: Requires | None = None, **actor: object) -> SingleTrainEngine:
    config = make_config(**actor)
    config.model.lora.rank = lora
    return SingleTrainEngine(make_setup(config, requires=requires))


@pytest.mark.parametrize("lora", [0, 2])
def test_the_reference_policy_stays_the_initial_one(lora: int):
    requires = Requires(reference_policy=True)
    engine = build(lora, requires)
    batch = make_batch(make_trajectories(6))
    initial = engine.log_probs(batch)
    assert torch.equal(engine.log_probs(batch, "reference"), initial)
    algorithm = ToyAlgorithm(pull=1.0, requires=requires)
    for _ in range(3):
        engine.train_step(batch, algorithm)
    trained = engine.log_probs(batch)
    assert not torch.equal(trained, initial)
    assert torch.equal(engine.log_probs(batch, "reference"), initial)
    assert torch.equal(engine.log_probs(batch), trained)
    assert torch.equal(engine.train_step(batch, algorithm).log_probs, trained)


@pytest.mark.parametrize("lora", [0, 2])
def test_a_pull_towards_the_reference_keeps_the_policy_closer(lora: int):
    requires = Requires(reference_policy=True)
    batch = make_batch(make_trajectories(6))
    gap = {}
    for pull in (0.0, 1000.0):
        engine = build(lora, requires)
        for _ in range(6):
            engine.train_step(batch, ToyAlgorithm(clip=9.0, pull=pull, requires=requires))
        gap[pull] = float((engine.log_probs(batch) - engine.log_probs(batch, "reference")).abs().mean())
    assert 0 < gap[1000.0] < 0.5 * gap[0.0]


@pytest.mark.parametrize("lora", [0, 2])
def test_the_average_is_a_policy_of_its_own(lora: int):
    engine = build(lora, ema_decay=0.5)
    batch = make_batch(make_trajectories(4))
    start = snapshot(dict(engine.weights()))
    engine.train_step(batch, ToyAlgorithm())
    now, average = snapshot(dict(engine.weights())), snapshot(dict(engine.weights("ema")))
    for name in now:
        torch.testing.assert_close(average[name], 0.5 * start[name] + 0.5 * now[name])
    scored = engine.log_probs(batch, "ema")
    assert not torch.equal(scored, engine.log_probs(batch))
    assert_equal(snapshot(dict(engine.weights())), now)
    other = build(lora)
    other._optimizer.load_masters(average)
    assert torch.equal(other.log_probs(batch), scored)


def test_the_old_policy_moves_only_when_told():
    engine = build(requires=Requires(old_policy=True))
    batch = make_batch(make_trajectories(4))
    start = engine.weights_checksum()
    engine.train_step(batch, ToyAlgorithm())
    assert engine.weights_checksum("old") == start != engine.weights_checksum()
    engine.update_old_policy(0.0)
    assert engine.weights_checksum("old") == engine.weights_checksum()
    assert torch.equal(engine.log_probs(batch, "old"), engine.log_probs(batch))


@pytest.mark.parametrize("policy", ["ema", "old", "reference"])
def test_policies_that_are_not_kept_are_refused(policy: str):
    engine = build()
    for call in (lambda: engine.log_probs(make_batch(make_trajectories(2)), policy), lambda: engine.weights(policy)):
        with pytest.raises(CapabilityError, match=f"no '{policy}' policy"):
            call()


@pytest.mark.parametrize("name", ["reference_policy", "old_policy", "ema"])
def test_an_algorithm_that_needs_more_than_was_built_is_refused(name: str):
    with pytest.raises(CapabilityError, match=name):
        build().train_step(make_batch(make_trajectories(2)), ToyAlgorithm(requires=Requires(**{name: True})))


def test_settings_that_cannot_work_are_refused():
    config = make_config()
    config.model.lora.rank, config.model.lora.dropout = 2, 0.1
    with pytest.raises(CapabilityError, match="dropout"):
        SingleTrainEngine(make_setup(config))
    with pytest.raises(CapabilityError, match="actor.ema_decay is 0"):
        build(requires=Requires(ema=True))
    for wrong in ({"ema_decay": 1.0}, {"grad_clip": -1.0}, {"warmup_steps": -1}, {"micro_batch_size": -2}):
        with pytest.raises(ConfigError, match=f"actor.{next(iter(wrong))}"):
            build(**wrong)


def test_a_model_without_checkpointing_says_so(monkeypatch: pytest.MonkeyPatch):
    from tests.support.toy_adapter import ToyTransformer

    monkeypatch.delattr(ToyTransformer, "enable_gradient_checkpointing")
    with pytest.raises(CapabilityError, match="ToyTransformer does not support it"):
        build(gradient_checkpointing=True)


def test_checkpointing_gives_the_same_step():
    batch = make_batch(make_trajectories(6))
    plain, saving = build(), build(gradient_checkpointing=True)
    assert saving._module.checkpointing
    for engine in (plain, saving):
        engine.train_step(batch, ToyAlgorithm())
    assert plain.weights_checksum() == saving.weights_checksum()


@pytest.mark.parametrize(("lora", "mode"), [(0, "full"), (2, "adapter")])
def test_the_weight_stream_proves_what_it_carries(lora: int, mode: str):
    engine = build(lora)
    stream = engine.weights()
    assert stream.manifest.mode == mode
    received = receive(stream)
    assert {n: i.checksum for n, i in stream.manifest.tensors.items()} == engine.weights_checksum()
    if lora:
        assert stream.manifest.lora.expected_modules == 4
        assert set(received) == {f"{m}.lora_{k}.weight" for m in ("to_q", "to_k", "to_v", "to_out") for k in "AB"}
    else:
        assert set(received) == {n for n, _ in engine._module.named_parameters()}


def test_sleep_and_wake_change_nothing_and_guard_the_work():
    through, slept = build(ema_decay=0.9), build(ema_decay=0.9)
    batch = make_batch(make_trajectories(4))
    for engine in (through, slept):
        engine.train_step(batch, ToyAlgorithm())
    assert slept.sleep().operation == "sleep"
    assert all(p.numel() == 0 for p in slept._module.parameters())
    for call in (
        lambda: slept.train_step(batch, ToyAlgorithm()),
        lambda: slept.log_probs(batch),
        slept.weights,
        slept.weights_checksum,
    ):
        with pytest.raises(LifecycleError, match=r"slept"):
            call()
    with pytest.raises(LifecycleError, match="already did"):
        slept.sleep()
    slept.wake()
    with pytest.raises(LifecycleError, match="already did"):
        slept.wake()
    for engine in (through, slept):
        engine.train_step(batch, ToyAlgorithm())
    assert slept.weights_checksum() == through.weights_checksum()
    assert slept.weights_checksum("ema") == through.weights_checksum("ema")


def test_a_sleeping_optimizer_leaves_the_weights_usable():
    engine = build(ema_decay=0.9)
    batch = make_batch(make_trajectories(4))
    engine.train_step(batch, ToyAlgorithm())
    engine.sleep(tags=("optimizer",))
    engine.log_probs(batch)
    assert engine.weights_checksum()
    for call in (lambda: engine.weights("ema"), lambda: engine.train_step(batch, ToyAlgorithm())):
        with pytest.raises(LifecycleError, match="optimizer"):
            call()


def test_level_2_and_unknown_tags_are_refused():
    engine = build()
    with pytest.raises(LifecycleError, match="exist nowhere else"):
        engine.sleep(level=2)
    with pytest.raises(LifecycleError, match="kv_cache"):
        engine.sleep(tags=("kv_cache",))
    engine.train_step(make_batch(make_trajectories(2)), ToyAlgorithm())


def test_other_weights_are_refused_where_gradients_are_recorded():
    engine = build(2)
    with pytest.raises(RuntimeError, match="no_grad"), swapped_in({}, {}):
        pass
    with pytest.raises(RuntimeError, match="no_grad"), lora_disabled(engine._module):
        pass


def test_weights_come_back_after_an_error_under_another_policy():
    engine = build(ema_decay=0.5)
    engine.train_step(make_batch(make_trajectories(2)), ToyAlgorithm())
    before = engine.weights_checksum()
    with pytest.raises(ZeroDivisionError), torch.no_grad(), engine._policies.running("ema"):
        raise ZeroDivisionError
    assert engine.weights_checksum() == before


def test_the_spec_loads_without_torch():
    code = (
        "import sys; from omni_backends.training.single import SPEC; assert 'torch' not in sys.modules; "
        "assert SPEC.name == 'single' and SPEC.capabilities['ranks'] == 1; print(SPEC.load().name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "single"
