"""Scorers of texts: answers are found where they must stand, and nothing is no answer."""

from __future__ import annotations

import pytest

from omni_portable.contracts.errors import ConfigError, DataError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.reward import GIVEN_SAMPLE, RewardSample
from omni_portable.reward.answers import choice_letter, first_tag, last_boxed, last_number, option_texts, single_tag
from omni_portable.reward.multiple_choice import MultipleChoiceOptions, MultipleChoiceScorer
from omni_portable.reward.preference import PreferenceOptions, PreferenceScorer
from omni_portable.reward.regex_match import RegexMatchOptions, RegexMatchScorer


def said(text: str, **metadata: object) -> RewardSample:
    return RewardSample("s", "g", "a question", {"response": MediaArtifact("response", "text", text, "str")}, metadata)


@pytest.mark.parametrize(
    ("text", "inside", "single"),
    [
        ("<answer> B </answer>", "B", True),
        ("x <answer>A</answer> <answer>B</answer>", "A", False),
        ("<answer>\nB\n</answer> </answer>", "B", False),
        ("<answer></answer>", "", True),
        ("<answer>B", None, False),
        ("</answer>B<answer>", None, False),
        ("B", None, False),
    ],
)
def test_the_first_tag_counts(text, inside, single):
    assert (first_tag(text), single_tag(text)) == (inside, single)


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{a", None),
        ("12", None),
        (r"\boxed{}", ""),
        (r"\boxed{ {x} }!", "{x}"),
    ],
)
def test_the_last_box_counts(text, boxed):
    assert last_boxed(text) == boxed


def test_letters_numbers_and_options():
    assert [choice_letter(t) for t in ("B", "(b)", " B. ", "B. a dog", "B) x", "A cat", "BC", "", "7")] == (
        ["B", "B", "B", "B", "B", None, None, None, None]
    )
    assert [last_number(t) for t in ("3 and -4.5.", "1,200,", "no")] == ["-4.5", "1,200", None]
    assert option_texts(["A. 5", "B、six", "x"]) == option_texts({"a": "5", "B": "six"}) == {"A": "5", "B": "six"}


def test_multiple_choice():
    scorer = MultipleChoiceScorer(MultipleChoiceOptions())
    texts = ["<answer>B</answer>", "<answer>b.</answer>", "<answer>A</answer>", "B", "<answer></answer>", ""]
    output = scorer.score([said(text, ground_truth="B") for text in texts])
    assert output.scores == [1, 1, 0, 0, 0, 0]
    assert output.components["answered"] == [1, 1, 1, 0, 0, 0]
    assert output.details[3] == {"answer": None, "target": "B"}
    assert scorer.score([said("<answer>C</answer>", ground_truth="<answer>c</answer>")]).scores == [1]


@pytest.mark.parametrize("truth", ["", None, "<answer></answer>", "a dog", "42"])
def test_two_empty_answers_are_no_match_and_a_target_without_a_letter_is_an_error(truth):
    with pytest.raises(DataError):
        MultipleChoiceScorer(MultipleChoiceOptions()).score([said("<answer></answer>", ground_truth=truth)])


def test_regular_expressions_of_the_recipe_and_of_the_row():
    samples = [said(text, want=r"\bdog\b") for text in ("a Dog", "a dog\nruns", "dogma")]
    assert RegexMatchScorer(RegexMatchOptions(pattern="dog")).score(samples).scores == [0, 1, 1]
    assert RegexMatchScorer(RegexMatchOptions(pattern="a dog", ignore_case=True, full=True)).score(samples).scores == [
        1,
        0,
        0,
    ]
    assert RegexMatchScorer(RegexMatchOptions(pattern="a.*runs", full=True)).score(samples).scores == [0, 1, 0]
    by_row = RegexMatchScorer(RegexMatchOptions(field="want"))
    assert by_row.score(samples).scores == [0, 1, 0]
    assert by_row.requires.fields == ("want",)
    with pytest.raises(DataError, match="holds no pattern"):
        by_row.score([said("x", want="(")])
    for bad in ({}, {"pattern": "x", "field": "want"}, {"pattern": "("}):
        with pytest.raises(ConfigError):
            RegexMatchOptions(**bad)


def test_preferences_of_given_samples():
    pair = [said("x", win_score=0.9, lose_score=0.2, **{GIVEN_SAMPLE: place}) for place in (0, 1)]
    drawn = said("x")
    output = PreferenceScorer(PreferenceOptions()).score([*pair, drawn])
    assert (output.scores, output.components["given"]) == ([1, 0, 0], [1, 1, 0])
    scored = PreferenceScorer(PreferenceOptions(fields=["win_score", "lose_score"]))
    assert scored.score([*pair, drawn]).scores == [0.9, 0.2, 0]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"win_score": 0.2, "lose_score": 0.2}, "do not fall from chosen to rejected: win_score=0.2, lose_score=0.2"),
        ({"win_score": "x", "lose_score": 0.2}, "cannot use win_score='x'"),
        ({"lose_score": 0.2}, "needs the field 'win_score'"),
        ({GIVEN_SAMPLE: 2, "win_score": 1, "lose_score": 0}, "no field for sample 2"),
    ],
)
def test_scores_that_prefer_nothing(metadata, message):
    scorer = PreferenceScorer(PreferenceOptions(fields=["win_score", "lose_score"]))
    with pytest.raises(DataError, match=message):
        scorer.score([said("x", **({GIVEN_SAMPLE: 0} | metadata))])
    with pytest.raises(ConfigError, match="one side of a pair"):
        PreferenceOptions(fields=["win_score"])
