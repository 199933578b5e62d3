"""Composition of scorers: weights, requirements, and every kind of failure under both policies."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from reward_samples import draw, sample

from omni_portable.config.schema import RewardConfig
from omni_portable.contracts.errors import ArtifactError, ConfigError, DataError, NonFiniteError, RewardError
from omni_portable.contracts.reward import RewardOutput, RewardSample, ScorerRequirements
from omni_portable.reward.compose import RewardComposer, WeightedScorer
from omni_portable.reward.deadline import GuardedScorer
from omni_portable.reward.policy import FailurePolicy


class Fake:
    """Scores the sample's index; `behave` may raise, hang or return something else."""

    name = "fake"
    requires = ScorerRequirements()

    def __init__(self, behave=None):
        self.behave, self.calls = behave, 0

    def score(self, batch: Sequence[RewardSample]) -> RewardOutput:
        self.calls += 1
        if self.behave is not None:
            answer = self.behave(self.calls, batch)
            if answer is not None:
                return answer
        scores = [float(s.sample_id[-1]) for s in batch]
        return RewardOutput(scores, {"twice": [2 * s for s in scores]}, [{"id": s.sample_id} for s in batch])


def composer(*fakes: Fake, weights=(1.0, 10.0), **policy) -> RewardComposer:
    entries = [
        WeightedScorer(f"s{i}", weight, GuardedScorer(lambda fake=fake: fake))
        for i, (fake, weight) in enumerate(zip(fakes, weights, strict=False))
    ]
    return RewardComposer(entries, FailurePolicy(**{"pause_s": 0.0, **policy}))


def samples(groups=3, per_group=2):
    """Interleaved groups, so that the order of groups and the order of samples differ."""
    return [sample(None, index=i, group=f"g{g}") for i in range(per_group) for g in range(groups)]


def fails_on(group):
    def behave(calls, batch):
        if any(s.group_id == group for s in batch):
            raise ValueError(f"cannot score {group}")

    return behave


def hang(calls, batch):
    threading.Event().wait()


def test_total_is_the_weighted_sum():
    reward = composer(Fake(), Fake(), weights=(0.5, -2.0)).score(samples())
    assert reward.total == [0.0, 0.0, 0.0, -1.5, -1.5, -1.5]
    assert reward.components["s0/score"] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert reward.components["s1/twice"] == [0.0, 0.0, 0.0, 2.0, 2.0, 2.0]
    assert reward.details[4] == {"s0": {"id": "g1/1"}, "s1": {"id": "g1/1"}}
    assert reward.failed == []
    assert set(reward.seconds) == {"s0", "s1"}


def test_async_gives_the_same():
    made = composer(Fake(), Fake())
    plain, later = made.score(samples()), asyncio.run(made.score_async(samples()))
    plain.seconds = later.seconds = {}
    assert plain == later


def test_no_samples_give_no_rewards():
    reward = composer(Fake()).score([])
    assert (reward.total, reward.failed, reward.details) == ([], [], [])


def test_a_failure_stops_the_run_by_default():
    with pytest.raises(RewardError, match=r"'s0' failed on 6 samples .*'g0/0'.*ValueError: cannot score g1") as caught:
        composer(Fake(fails_on("g1"))).score(samples())
    assert isinstance(caught.value.__cause__, ValueError)


def test_drop_group_names_the_samples_of_the_failed_group_only():
    reward = composer(Fake(fails_on("g1")), Fake(), on_error="drop_group").score(samples())
    assert reward.failed == ["g1/0", "g1/1"]
    assert "cannot score g1" in reward.errors["g1/0"]
    assert [math.isnan(v) for v in reward.total] == [False, True, False, False, True, False]
    assert [v for v in reward.total if not math.isnan(v)] == [0.0, 0.0, 11.0, 11.0]
    assert math.isnan(reward.components["s0/twice"][1])
    assert reward.components["s1/twice"][4] == 2.0
    assert [d["s0"].get("id") for d in reward.details] == ["g0/0", None, "g2/0", "g0/1", None, "g2/1"]


def test_a_scorer_that_fails_everywhere_leaves_no_sample_and_says_why():
    def broken(calls, batch):
        raise ValueError("down")

    reward = composer(Fake(broken), on_error="drop_group").score(samples())
    assert len(reward.failed) == 6
    assert all("down" in text for text in reward.errors.values())


def test_retries_come_before_the_policy():
    def flaky(calls, batch):
        if calls < 3:
            raise ConnectionError("try again")

    fake = Fake(flaky)
    assert composer(fake, retries=2).score(samples()).failed == []
    assert fake.calls == 3
    with pytest.raises(RewardError, match="after 2 attempts"):
        composer(Fake(flaky), retries=1).score(samples())


def test_wrong_input_is_neither_retried_nor_dropped():
    def wrong(calls, batch):
        raise DataError("row 3 is wrong")

    fake = Fake(wrong)
    with pytest.raises(DataError, match="row 3"):
        composer(fake, retries=3, on_error="drop_group").score(samples())
    assert fake.calls == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", ["score", "twice"])
def test_a_score_that_is_not_finite_is_refused_by_name(bad, column):
    def behave(calls, batch):
        values = [bad if s.sample_id == "g2/1" else 1.0 for s in batch]
        return RewardOutput(values if column == "score" else [1.0] * len(batch), {"twice": values})

    with pytest.raises(NonFiniteError, match=f"{column}={bad} for sample 'g2/1'"):
        composer(Fake(behave)).score(samples())
    reward = composer(Fake(behave), on_error="drop_group").score(samples())
    assert reward.failed == ["g2/1"]
    assert math.isnan(reward.total[5])
    assert reward.total[:5] == [1.0] * 5


@pytest.mark.parametrize(
    "output",
    [
        RewardOutput([1.0]),
        RewardOutput([1.0] * 6, {"twice": [1.0]}),
        RewardOutput([1.0] * 6, {}, [{}]),
        RewardOutput([]),
    ],
)
def test_a_wrong_count_is_named(output):
    with pytest.raises(RewardError, match="'s0' .* for 6 samples"):
        composer(Fake(lambda calls, batch: output)).score(samples())
    reward = composer(Fake(lambda calls, batch: output), on_error="drop_group").score(samples())
    assert len(reward.failed) >= 2, "a count that is right for a single group would be an answer"


def test_a_hang_ends_at_the_deadline():
    with pytest.raises(RewardError, match=r"no answer within reward.timeout_s=0\.2 seconds \(after 2 attempts\)"):
        composer(Fake(hang), timeout_s=0.2, retries=1).score(samples())


def test_a_hung_scorer_is_replaced():
    made: list[Fake] = []

    def make() -> Fake:
        made.append(Fake(hang if not made else None))
        return made[-1]

    entry = WeightedScorer("s0", 1.0, GuardedScorer(make))
    reward = RewardComposer([entry], FailurePolicy(retries=1, timeout_s=0.5)).score(samples())
    assert reward.total == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert [fake.calls for fake in made] == [1, 1]


def test_a_hung_scorer_does_not_keep_the_interpreter_alive():
    code = """
import threading
from omni_portable.contracts.reward import RewardSample, ScorerRequirements
from omni_portable.reward.deadline import GuardedScorer
class Hangs:
    name, requires = "hangs", ScorerRequirements()
    def score(self, batch):
        threading.Event().wait()
print(GuardedScorer(Hangs).attempt([RewardSample("a", "g", "p", {})], 0.1).timed_out)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "True"


def test_declared_requirements_are_checked_before_the_scorer_runs():
    fake = Fake()
    fake.requires = ScorerRequirements({"image": "image"}, ("ground_truth",))
    made = composer(fake)
    with pytest.raises(DataError, match="'ground_truth'.*prompt 'the text \"None\"'"):
        made.score([sample(draw("R7"))])
    with pytest.raises(ArtifactError, match="'s0' .*'g0/0'.*'image'"):
        made.score([sample(None, "R7")])
    assert fake.calls == 0


def test_requirements_are_merged_and_conflicts_refused():
    one, two, three = Fake(), Fake(), Fake()
    one.requires = ScorerRequirements({"image": "image"}, ("a", "b"))
    two.requires = ScorerRequirements({"sound": "audio"}, ("b", "c"))
    three.requires = ScorerRequirements({"image": "video"})
    merged = composer(one, two).requirements()
    assert dict(merged.artifacts) == {"image": "image", "sound": "audio"}
    assert merged.fields == ("a", "b", "c")
    with pytest.raises(ConfigError, match="both as image and as video"):
        composer(one, three)


def test_from_config_with_real_scorers():
    config = RewardConfig(
        scorers={
            "text": {"kind": "ocr", "weight": 2.0, "batch_size": 2},
            "small": {"kind": "jpeg_compressibility", "kilobytes_per_point": 1.0},
        }
    )
    made = RewardComposer.from_config(config)
    assert made.requirements().fields == ("ground_truth",)
    reward = made.score([sample(draw("R7"), "R7"), sample(draw("R7"), "K4")])
    kilobytes = reward.components["small/kilobytes"]
    assert reward.total == pytest.approx([2.0 - kilobytes[0], -kilobytes[1]])
    assert reward.details[0]["text"]["text"] == "R7"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"scorers": {}}, "reward.scorers is empty"),
        ({"scorers": {"x": {"weight": 1.0}}}, "names no kind"),
        ({"scorers": {"x": {"kind": "ocr", "weight": math.nan}}}, r"reward.scorers.x.weight=nan"),
        ({"scorers": {"x": {"kind": "ocr", "weight": "1"}}}, "no finite number"),
        ({"scorers": {"x": {"kind": "ocr", "batchsize": 2}}}, r"reward.scorers.x.batchsize"),
        ({"scorers": {"x": {"kind": "nothing"}}}, "nothing"),
        ({"on_error": "ignore"}, "reward.on_error=ignore"),
        ({"timeout_s": 0.0}, "timeout_s=0.0"),
        ({"retries": -1}, "retries=-1"),
    ],
)
def test_bad_configuration_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        RewardComposer.from_config(RewardConfig(**config))


def test_specs_and_composition_load_without_heavy_modules():
    code = (
        "import sys, omni_portable.reward.ocr, omni_portable.reward.jpeg, omni_portable.reward.compose;"
        "print([m for m in ('torch', 'numpy', 'rapidocr', 'onnxruntime', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("weights", [(1e308, 1e308), (1e308, -1e308), (1e309, 0.0)])
def test_a_sum_beyond_what_a_number_holds_is_named(weights):
    fakes = [Fake(lambda calls, batch: RewardOutput([10.0] * len(batch))) for _ in weights]
    with pytest.raises(NonFiniteError, match=r"the reward of sample .* is too large .*\('s0'\)"):
        composer(*fakes, weights=weights).score(samples())
