"""Scorers that return, or raise, what no scorer should: named, retried, and left to the failure policy."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from reward_samples import sample

from omni_portable.config.schema import RewardConfig
from omni_portable.contracts import registry
from omni_portable.contracts.errors import ConfigError, NonFiniteError, RewardError
from omni_portable.contracts.registry import NoOptions
from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.background import in_daemon_thread
from omni_portable.reward.compose import MOST_RETRIES, RewardComposer, WeightedScorer
from omni_portable.reward.deadline import GuardedScorer
from omni_portable.reward.policy import LONGEST_PAUSE_S, FailurePolicy


class Odd:
    """Returns what it is given for every call; exceptions are raised."""

    name = "odd"
    requires = ScorerRequirements()

    def __init__(self, *answers: object) -> None:
        self.answers, self.calls = answers, 0

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        answer = self.answers[min(self.calls, len(self.answers) - 1)]
        self.calls += 1
        if isinstance(answer, BaseException):
            raise answer
        return answer(batch) if callable(answer) else answer  # type: ignore[return-value]


def composer(odd: Odd, **policy: object) -> RewardComposer:
    made = FailurePolicy(**{"pause_s": 0.0, "timeout_s": 20.0} | policy)  # type: ignore[arg-type]
    return RewardComposer([WeightedScorer("mine", 1.0, GuardedScorer(lambda: odd))], made)


def four() -> list[RewardSample]:
    return [sample(None, index=i, group=f"g{g}") for g in range(2) for i in range(2)]


def own_details(batch: Sequence[RewardSample]) -> RewardOutput:
    rows: list = [[] for _ in batch]
    for row in rows:
        row.append(row)
    return RewardOutput([1.0] * len(batch), {}, [{"row": row} for row in rows])


WHOLE = {
    "None": (None, r"returned None \(is its `return` missing\?\)"),
    "list": ([1.0] * 4, r"returned \[1.0, 1.0, 1.0, 1.0\] \(list\), which is no RewardOutput"),
    "scalar": (RewardOutput(0.5), r"scores=0.5 \(float\), which is no list"),  # type: ignore[arg-type]
    "generator": (lambda b: RewardOutput(x for x in b), r"scores=<generator .*, which is no list"),  # type: ignore[arg-type]
    "mapping": (lambda b: RewardOutput({s.sample_id: 1.0 for s in b}), r"scores=\{.*\(dict\)"),  # type: ignore[arg-type]
    "text": (RewardOutput("1234"), r"scores='1234' \(str\)"),  # type: ignore[arg-type]
    "table": (RewardOutput(torch.zeros(4, 1)), r"scores=tensor.*\(Tensor\)"),  # type: ignore[arg-type]
    "components": (RewardOutput([1.0] * 4, [1.0]), r"components=\[1.0\] \(list\)"),  # type: ignore[arg-type]
    "component": (RewardOutput([1.0] * 4, {"x": None}), r"components\['x'\]=None"),  # type: ignore[dict-item]
    "name": (RewardOutput([1.0] * 4, {5: [1.0] * 4}), "a component of the name 5"),  # type: ignore[dict-item]
    "line": (RewardOutput([1.0] * 4, {"a\nb": [1.0] * 4}), "a component of the name"),
    "details": (RewardOutput([1.0] * 4, {}, ["text"] * 4), r"details that hold 'text' \(str\)"),  # type: ignore[list-item]
    "own details": (own_details, "details that contain themselves"),
    "SystemExit": (SystemExit(3), "SystemExit: 3"),
    "KeyboardInterrupt": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "BaseException": (BaseException("b"), "BaseException: b"),
    "CancelledError": (asyncio.CancelledError(), "CancelledError"),
}


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_wrong_answer_names_the_scorer_and_what_it_gave(case: str, later: bool) -> None:
    answer, message = WHOLE[case]
    made = composer(Odd(answer), timeout_s=20.0)
    begun = time.monotonic()
    with pytest.raises(RewardError, match=f"'mine'.*{message}"):
        asyncio.run(made.score_async(four())) if later else made.score(four())
    assert time.monotonic() - begun < 15.0, "the deadline was waited for"


@pytest.mark.parametrize("case", WHOLE)
def test_a_wrong_answer_is_left_to_the_policy(case: str) -> None:
    answer, _ = WHOLE[case]
    assert composer(Odd(answer, lambda b: RewardOutput([1.0] * len(b))), retries=1).score(four()).total == [1.0] * 4
    right = lambda b: RewardOutput([2.0] * len(b))  # noqa: E731
    reward = composer(Odd(answer, right, answer), on_error="drop_group").score(four())
    assert reward.failed == ["g1/0", "g1/1"]
    assert reward.total[:2] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("value", "shown", "kind"),
    [
        (None, "score=None, which is no number", RewardError),
        ("0.5", r"score='0.5' \(str\), which is no number", RewardError),
        (b"1", "which is no number", RewardError),
        (1j, r"score=1j \(complex\), which is no number", RewardError),
        ({"a": 1}, r"\(dict\), which is no number", RewardError),
        ([1.0], r"\(list\), which is no number", RewardError),
        (math.nan, "score=nan", NonFiniteError),
        (1e39, r"score=1e\+39, beyond the 1e\+15", NonFiniteError),
        (-(10**400), "score=-inf", NonFiniteError),
    ],
)
def test_a_single_value_that_is_no_score(value: object, shown: str, kind: type[Exception]) -> None:
    def answer(batch: Sequence[RewardSample]) -> RewardOutput:
        return RewardOutput([value if s.sample_id == "g1/0" else 1.0 for s in batch])  # type: ignore[misc]

    with pytest.raises(kind, match=f"the scorer 'mine' returned .*{shown}.* for sample 'g1/0' .*1 of 4"):
        composer(Odd(answer)).score(four())
    reward = composer(Odd(answer), on_error="drop_group").score(four())
    assert reward.failed == ["g1/0"]
    assert "'mine'" in reward.errors["g1/0"]


@pytest.mark.parametrize(
    "scores",
    [
        (0, 1, 2, 3),
        [False, True, 2, Fraction(3)],
        np.arange(4.0, dtype=np.float32),
        torch.arange(4, dtype=torch.bfloat16),
        list(torch.arange(4.0)),
        [np.float16(0), np.int64(1), np.array(2.0), 3.0],
    ],
)
def test_every_kind_of_real_number_is_a_score(scores: object) -> None:
    reward = composer(Odd(RewardOutput(scores))).score(four())  # type: ignore[arg-type]
    assert reward.total == [0.0, 1.0, 2.0, 3.0]
    assert all(type(value) is float for value in reward.total)


def test_details_become_plain_data() -> None:
    rows = [{("t", 1): torch.float32, "list": (1, {2: b"x"}), "n": None}] * 4
    reward = composer(Odd(RewardOutput([1.0] * 4, {}, rows))).score(four())  # type: ignore[list-item]
    assert reward.details[0]["mine"] == {"('t', 1)": "torch.float32", "list": [1, {"2": "b'x'"}], "n": None}


def test_a_weighted_sum_beyond_what_is_trained_on_is_named() -> None:
    entry = WeightedScorer("mine", 1e6, GuardedScorer(lambda: Odd(RewardOutput([1e12] * 4))))
    with pytest.raises(NonFiniteError, match=r"1e\+06 x 1e\+12 \('mine'\)"):
        RewardComposer([entry], FailurePolicy()).score(four())


def test_pauses_grow_and_are_bounded() -> None:
    policy = FailurePolicy(retries=MOST_RETRIES)
    pauses = [policy.pause(failed) for failed in range(1, MOST_RETRIES + 1)]
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert max(pauses) == LONGEST_PAUSE_S


def test_attempts_pause_and_the_first_failure_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("omni_portable.reward.policy.time.sleep", slept.append)
    with caplog.at_level(logging.WARNING), pytest.raises(RewardError, match="after 4 attempts"):
        composer(Odd(ValueError("no link")), retries=3, pause_s=0.5).score(four())
    assert slept == [0.5, 1.0, 2.0]
    assert [r.getMessage() for r in caplog.records] == ["the scorer 'mine' failed on 4 samples: ValueError: no link"]


def test_the_number_of_attempts_is_bounded() -> None:
    scorers = {"size": {"kind": "jpeg_compressibility"}}
    RewardComposer.from_config(RewardConfig(scorers=scorers, retries=MOST_RETRIES))
    with pytest.raises(ConfigError, match="reward.retries=1000000"):
        RewardComposer.from_config(RewardConfig(scorers=scorers, retries=1_000_000))


@pytest.mark.parametrize("error", [ValueError("no file"), SystemExit(3), AttributeError("x")])
def test_a_scorer_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def make(options: NoOptions) -> Odd:
        raise error

    monkeypatch.setattr(registry, "load", lambda group, name: make)
    with pytest.raises(RewardError, match=f"'mine' of kind 'exact_match' cannot be set up: {type(error).__name__}"):
        RewardComposer.from_config(RewardConfig(scorers={"mine": {"kind": "exact_match"}}))


def test_the_event_loop_ends_while_a_scorer_hangs() -> None:
    held = threading.Event()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_daemon_thread(held.wait), 0.05)

    begun = time.monotonic()
    asyncio.run(give_up())
    assert time.monotonic() - begun < 10.0
    held.set()


def test_work_in_a_daemon_thread_gives_its_result_or_its_error() -> None:
    async def both() -> int:
        with pytest.raises(KeyError):
            await in_daemon_thread(lambda: {}["x"])
        return await in_daemon_thread(lambda: 7)

    assert asyncio.run(both()) == 7
