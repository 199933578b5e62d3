"""Teachers outside the train engine say what those inside it would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from omni_backends.training.single.engine import SingleTrainEngine
from omni_backends.training.teaching import PoolTeacher
from omni_portable.config.schema import TeacherConfig, TeacherPoolConfig
from omni_portable.contracts.algorithm import TrainBatch
from omni_portable.contracts.errors import CapabilityError, ConsistencyError
from omni_portable.contracts.teacher import TeacherOutput
from omni_portable.rollout.codec import pack, unpack
from tests.backends.training.test_train_tokens import algorithm, batch_of, draw, setup_for
from tests.support.token_models import folder


def routed(rule: Any, **teacher: Any) -> Any:
    setup = setup_for("qwen_vl", requires=rule.requires)
    setup.config.model.teachers = {
        "a": TeacherConfig(path=str(folder("qwen_vl"))),
        "b": TeacherConfig(path=str(folder("qwen_vl/answers"))),
    }
    setup.config.model.teacher_field = "who"
    setup.config.teacher = TeacherPoolConfig(**teacher)
    return setup


def taught(setup: Any, rule: Any, trajectories: Sequence[Any]) -> list[Any]:
    teachers = {name: PoolTeacher(setup, name, rule) for name in setup.config.model.teachers}
    found = []
    for trajectory in trajectories:
        (output,) = teachers[trajectory.request.metadata["who"]].teach([trajectory])
        found.append(replace(trajectory, teacher=unpack(pack(output))))
    return found


@pytest.mark.parametrize("objective", ["full", "sampled"])
def test_a_pool_equals_teachers_in_the_engine(objective: Any) -> None:
    rule = algorithm("token_opd", objective=objective)
    inside = routed(rule)
    same, other = (draw(inside, "qwen_vl", metadata={"who": who}) for who in "ab")
    mixed = [*same[:4], *other[4:]]
    batch = batch_of(mixed, weights=torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    expected = SingleTrainEngine(inside).train_step(batch, rule).metrics
    outside = routed(rule, placement="pool")
    engine = SingleTrainEngine(outside)
    assert engine._teachers is not None
    assert engine._teachers.modules() == [], "no weights of a teacher are in the engine"
    found = engine.train_step(replace(batch, trajectories=taught(outside, rule, mixed)), rule).metrics
    assert expected["actor/distill_k1"] > 0.01
    assert found == pytest.approx(expected, abs=1e-5, rel=1e-4)


def test_micro_batches_of_a_teacher_change_nothing_but_rounding() -> None:
    rule = algorithm("token_opd")
    setup = routed(rule)
    trajectories = draw(setup, "qwen_vl", metadata={"who": "a"})
    teacher = PoolTeacher(setup, "a", rule)
    together = teacher.teach(trajectories)
    assert [output.teacher for output in together] == ["a"] * 8
    for trajectory, output in zip(trajectories, together, strict=True):
        (alone,) = teacher.teach([trajectory])
        assert alone.log_prob is not None
        assert output.log_prob is not None
        assert alone.log_prob.shape == (trajectory.length,)
        torch.testing.assert_close(alone.log_prob, output.log_prob, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(alone.logits, output.logits, atol=1e-4, rtol=1e-4)
        for tensor in output.tensors().values():
            assert tensor.untyped_storage().nbytes() == tensor.numel() * 4, "no view of the whole batch"


def test_a_sample_without_its_teacher_is_refused() -> None:
    rule = algorithm("token_opd", objective="sampled")
    setup = routed(rule, placement="pool")
    engine = SingleTrainEngine(setup)
    trajectories = draw(setup, "qwen_vl", 2, metadata={"who": "a"})
    with pytest.raises(ConsistencyError, match="'r0' came to the train engine without its teacher's log_prob"):
        engine.train_step(batch_of(trajectories), rule)
    short = [replace(t, teacher=TeacherOutput("a", log_prob=torch.zeros(1))) for t in trajectories]
    with pytest.raises(ConsistencyError, match=r"for the sample 'r\d' has shape \(1,\), expected \(\d,\)"):
        engine.train_step(TrainBatch(short, torch.ones(2)), rule)


def test_the_size_of_an_answer_is_bounded() -> None:
    rule = algorithm("token_opd")
    setup = routed(rule)
    teacher = PoolTeacher(setup, "a", rule)
    teacher._limit = 1000
    with pytest.raises(CapabilityError, match=r"for the sample 'r0', more than teacher.max_mib"):
        teacher.teach(draw(setup, "qwen_vl", 1, metadata={"who": "a"}))
