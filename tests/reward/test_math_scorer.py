"""Mathematical answers: equal values are equal however they are written, and form is scored apart from accuracy."""

from __future__ import annotations

import time

import pytest

from omni_portable.contracts.errors import ConfigError, DataError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.reward import RewardSample
from omni_portable.reward.math_boxed import MathBoxedOptions
from omni_portable.reward.math_boxed_scorer import MathBoxedScorer
from omni_portable.reward.math_client import MathClient
from omni_portable.reward.math_plain import settled


@pytest.fixture(scope="module")
def scorer():
    made = MathBoxedScorer(MathBoxedOptions())
    yield made
    made._client.close()


def said(text: str, truth: object = "12", **metadata: object) -> RewardSample:
    artifacts = {"response": MediaArtifact("response", "text", text, "str")}
    return RewardSample("s", "g", "a question", artifacts, {"ground_truth": truth} | metadata)


@pytest.mark.parametrize(
    ("wanted", "given", "known"),
    [
        ("2", "2.0", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac12", "1/2", True),
        (r"-\dfrac{3}{4}", "-0.75", True),
        (r"60^{\circ}", "60°", True),
        ("1,234", "$1234$", True),
        (r"50\%", "0.5", True),
        (r"\text{yes}", "yes.", True),
        (r"\left( 1, 2 \right)", "(1,2)", True),
        ("2", "3", False),
        ("1/3", "0.33", False),
        ("1/0", "1/0", True),
        ("1/0", "2", None),
        ("x+1", "1+x", None),
        ("", "", False),
        ("9" * 80, "8" * 80, None),
    ],
)
def test_what_texts_and_numbers_settle(wanted, given, known):
    assert settled(wanted, given) is known


@pytest.mark.parametrize(
    ("wanted", "answer", "accuracy"),
    [
        ("x+1", "1+x", 1),
        (r"\frac{\sqrt{2}}{2}", r"\sqrt{2}/2", 1),
        (r"y=2x+1", r"y = 1 + 2x", 1),
        (r"\{1,2\}", r"\{2,1\}", 1),
        ("x+1", "x+2", 0),
        ("x+1", "}{", 0),
        ("x+1", "", 0),
        ("x+1", "y" * 2000, 0),
    ],
)
def test_expressions_are_compared_by_value(scorer, wanted, answer, accuracy):
    output = scorer.score([said(f"<answer>\\boxed{{{answer}}}</answer>", wanted)])
    assert output.components["accuracy"] == [accuracy]


@pytest.mark.parametrize(
    ("text", "form", "accuracy"),
    [
        (r"so <answer>$\boxed{12}$</answer>", 0.3, 1),
        ("<answer>12</answer>", 0.15, 1),
        (r"<answer>\boxed{13}</answer>", 0.3, 0),
        (r"<answer>\boxed{12}</answer><answer>\boxed{12}</answer>", 0.15, 1),
        (r"\boxed{12}", 0, 1),
        ("the answer is 12.", 0, 1),
        ("12 or 13", 0, 0),
        (r"\boxed{12} <answer>13</answer>", 0.15, 0),
        ("", 0, 0),
    ],
)
def test_accuracy_and_form_add_up(scorer, text, form, accuracy):
    output = scorer.score([said(text)])
    assert output.components["format"] == pytest.approx([form])
    assert output.components["accuracy"] == [accuracy]
    assert output.scores == pytest.approx([(accuracy + form) / 1.3])


def test_the_box_alone_as_a_template():
    scorer = MathBoxedScorer(MathBoxedOptions(template="boxed", format_score=1.0))
    output = scorer.score([said(t) for t in (r"\boxed{12}", "12", r"<answer>7</answer> \boxed{12}")])
    assert output.scores == [1.0, 0.5, 1.0]


def test_letters_and_what_they_stand_for(scorer):
    options = ["A. 5", r"B. \frac{1}{2}"]
    texts = [r"<answer>\boxed{B}</answer>", r"<answer>\boxed{(b)}</answer>", r"<answer>\boxed{A}</answer>"]
    texts += [r"<answer>\boxed{0.5}</answer>", r"<answer>\boxed{5}</answer>", "I choose B"]
    output = scorer.score([said(text, "B", options=options) for text in texts])
    assert output.components["accuracy"] == [1, 1, 0, 0.5, 0, 1]
    written = '{"A": "5", "B": "0.5"}'  # as verl keeps them
    assert scorer.score([said(texts[3], "B", options=written)]).components["accuracy"] == [0.5]
    assert scorer.score([said(texts[3], "B")]).components["accuracy"] == [0], "without options a value is no letter"
    for bad in ("{", 7):
        with pytest.raises(DataError, match="holds .*, not options"):
            scorer.score([said(texts[3], "B", options=bad)])


def test_a_comparison_that_never_ends_is_given_up_and_said():
    scorer = MathBoxedScorer(MathBoxedOptions(timeout_s=1.0))
    scorer.score([said(r"\boxed{x+1}", "1+x")])  # the process runs now
    started = time.monotonic()
    endless = said(r"<answer>\boxed{9^{9^{9^{8}}}}</answer>", "9^{9^{9^{9}}}")
    output = scorer.score([endless, said(r"<answer>\boxed{x+1}</answer>", "1+x")])
    assert output.components["accuracy"] == [0, 1], "the next question gets a process of its own"
    assert (output.details[0]["undecided"], "undecided" in output.details[1]) == (True, False)
    assert time.monotonic() - started < 60


def test_the_process_ends_with_its_client():
    client = MathClient(10.0)
    assert client.equal("x+1", "1+x") is True
    process = client._process
    del client
    assert process.wait(10) != 0


def test_targets_that_are_missing_and_options_that_make_no_sense():
    with pytest.raises(DataError, match="needs the field 'ground_truth'"):
        MathBoxedScorer(MathBoxedOptions()).score([said("x", "")])
    for bad in ({"format_score": -1.0}, {"timeout_s": 0.0}):
        with pytest.raises(ConfigError):
            MathBoxedOptions(**bad)
