"""Datasets of questions with answers that a rule can check."""

from __future__ import annotations

import re
from collections.abc import Sequence

from omni_portable.config.shown import shown
from omni_portable.contracts.errors import DataError
from omni_portable.data.kinds.base import Artifacts, Column, Kind, LeftOut, SourceRow, Values

BOXED = (
    "Reason step by step first. Then give the final answer alone, in \\boxed{} inside <answer> tags, for example "
    "<answer>$\\boxed{12}$</answer>."
)
"""Instruction of the MMK12 template, which the reward `math_boxed` checks."""
CHOICE = (
    "Look at the picture, listen to the sound, and reason step by step. Then give the letter of the right option "
    "alone, inside <answer> tags, for example <answer>B</answer>."
)
"""Instruction for audio-visual questions, which the reward `multiple_choice` reads."""
NUMBER = "Reason step by step, and end with the final number in \\boxed{}."

_LINE = re.compile(r"^\s*([A-H])\s*[.)、:]\s*(\S.*?)\s*$", re.MULTILINE)
_TAGGED = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)


def options_of(text: str) -> list[str]:
    """Options that stand on lines of their own, as 'A. TEXT'; empty where a letter repeats."""
    found = [(letter, content) for letter, content in _LINE.findall(text)]
    return [] if len({letter for letter, _ in found}) < len(found) else [f"{a}. {content}" for a, content in found]


def _mmk12(source: SourceRow) -> Values:
    question = source.question("question", "raw_question", media=("image",))
    return {
        "prompt": f"{BOXED}\n\n{question}",
        "ground_truth": source.text("answer", "ground_truth"),
        "options": options_of(question),
        "subject": source.optional_text("subject"),
        "image": source.media("image", "images"),
    }


def _avqa(source: SourceRow) -> Values | LeftOut:
    kind = source.optional_text("data_type")
    if kind not in (None, "image_audio"):
        return LeftOut(f"{kind} question")
    options = _listed_options(source)
    answer = source.text("solution", "answer", "ground_truth")
    letter = (m.group(1) if (m := _TAGGED.fullmatch(answer)) else answer).strip().upper()
    if letter not in [option[0] for option in options]:
        raise source.error("solution", f"is {shown(answer)}, which names none of the options {[o[0] for o in options]}")
    problem = source.question("problem", "question", media=("image", "audio"))
    lines = "\n".join(options)
    return {
        "prompt": f"{CHOICE}\n\n{problem}\nOptions:\n{lines}",
        "ground_truth": letter,
        "options": options,
        "image": source.media("path.image", "image", "images"),
        "audio": source.media("path.audio", "audio", "audios"),
    }


def _listed_options(source: SourceRow) -> list[str]:
    raw = source.row.get("options")
    texts: Sequence[str] = raw if isinstance(raw, list) and all(isinstance(one, str) for one in raw) else []
    options = [option for text in texts for option in options_of(text)]
    if not options or len(options) != len(texts) or len({option[0] for option in options}) < len(options):
        raise source.error(
            "options", f"holds {shown(raw)}, which is no list of options", 'write them as "A. TEXT", each once'
        )
    return options


def _gsm8k(source: SourceRow) -> Values:
    answer = source.text("answer", "ground_truth")
    number = answer.rpartition("####")[2].strip().replace(",", "")
    if not re.fullmatch(r"-?\d+(\.\d+)?", number):
        raise source.error("answer", f"ends with {shown(number)}, which is no number", "write the number after '####'")
    return {"prompt": f"{source.text('question', 'prompt')}\n{NUMBER}", "ground_truth": number}


def _check_choice(values: Values, media: Artifacts, where: str) -> None:
    letters = [str(option)[:1] for option in values.get("options") or ()]
    if values["ground_truth"] not in letters:
        raise DataError(f"{where}: field 'ground_truth' is {shown(values['ground_truth'])}, options are {letters}")


_IMAGE = {"modality": "image"}
MMK12 = Kind(
    name="mmk12",
    summary="school mathematics on a picture, answered in \\boxed{} inside <answer> tags",
    takes="rows with 'question', 'answer', 'image' ({bytes, path}), 'subject'; parquet shards as published",
    columns=(
        Column("prompt", "text"),
        Column("ground_truth", "text"),
        Column("options", "texts", required=False),
        Column("subject", "text", required=False),
        Column("image", "image"),
    ),
    convert=_mmk12,
    recipe={"data": {"media": {"image": _IMAGE}}, "reward": {"scorers": {"answer": {"kind": "math_boxed"}}}},
)
AVQA = Kind(
    name="avqa",
    summary="multiple-choice questions on a picture and a sound",
    takes="a .json list or rows with 'problem', 'options' (A. TEXT), 'solution', 'path' ({image, audio})",
    columns=(
        Column("prompt", "text"),
        Column("ground_truth", "text"),
        Column("options", "texts"),
        Column("image", "image"),
        Column("audio", "audio"),
    ),
    convert=_avqa,
    check=_check_choice,
    recipe={
        "data": {"media": {"image": _IMAGE, "audio": {"modality": "audio", "sample_rate": 16000}}},
        "reward": {"scorers": {"answer": {"kind": "multiple_choice"}}},
    },
)
GSM8K = Kind(
    name="gsm8k",
    summary="word problems whose answer is a number",
    takes="rows with 'question' and 'answer' (the number after '####')",
    columns=(Column("prompt", "text"), Column("ground_truth", "text")),
    convert=_gsm8k,
    recipe={"reward": {"scorers": {"answer": {"kind": "math_boxed", "template": "boxed"}}}},
)
