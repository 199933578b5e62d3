"""Prompt files of every kind: right rows, stable ids, and errors that name file, row and field."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omni_portable.config.schema import RewardConfig
from omni_portable.contracts.errors import ConfigError, DataError
from omni_portable.data.prompts import load_prompts, refuse_overlap
from omni_portable.reward.compose import RewardComposer

ROWS = [
    {"prompt": 'the text "R7"', "ground_truth": "R7", "level": 1},
    {"prompt": "a dog", "ground_truth": "woof", "level": 2},
]


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1)
    else:
        path.write_text("\n".join(rows) + "\n")
    return str(path)


def load(source, fields=()):
    return load_prompts(source, split="train", prompt_key="prompt", required_fields=fields)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_rows_and_their_other_fields(tmp_path, suffix):
    rows = load(write(tmp_path / f"p{suffix}", ROWS), ["ground_truth"])
    assert [row.prompt for row in rows] == ['the text "R7"', "a dog"]
    assert rows[1].metadata == {"ground_truth": "woof", "level": 2}


def test_ids_depend_on_the_prompt_alone(tmp_path):
    jsonl, parquet = (load(write(tmp_path / name, ROWS)) for name in ("p.jsonl", "p.parquet"))
    text = load(write(tmp_path / "p.txt", ["a dog", 'the text "R7"']))
    assert [row.prompt_id for row in jsonl] == [row.prompt_id for row in parquet]
    assert [row.prompt_id for row in text] == [row.prompt_id for row in jsonl][::-1]
    assert text[0].prompt_id == "fe02e6665a225ac7"  # b2sum -l 64


def test_equal_prompts_get_different_ids(tmp_path):
    rows = load(write(tmp_path / "p.txt", ["a", "b", "a", "a"]))
    first = rows[0].prompt_id
    assert [row.prompt_id for row in rows[2:]] == [f"{first}-2", f"{first}-3"]


def test_an_id_column_wins_and_must_be_unique(tmp_path):
    rows = load(write(tmp_path / "p.jsonl", [{"prompt": "a", "id": 7}, {"prompt": "b", "id": "x"}]))
    assert [row.prompt_id for row in rows] == ["7", "x"]
    assert "id" not in rows[0].metadata
    with pytest.raises(DataError, match="row 2: field 'id' is '7'"):
        load(write(tmp_path / "p.jsonl", [{"prompt": "a", "id": 7}, {"prompt": "b", "id": "7"}]))
    with pytest.raises(DataError, match="row 1: field 'id' holds 1.5"):
        load(write(tmp_path / "p.jsonl", [{"prompt": "a", "id": 1.5}]))


def test_text_between_quotes_is_the_ground_truth_of_a_line(tmp_path):
    path = write(tmp_path / "p.txt", ['a sign "OPEN" and a sign "NOW"', 'the text "R7"'])
    assert [row.metadata["ground_truth"] for row in load(path, ["ground_truth"])] == ["OPEN NOW", "R7"]
    assert [row.metadata for row in load(path)] == [{}, {}]
    with pytest.raises(DataError, match="row 2: field 'ground_truth' is missing: .*a dog"):
        load(write(tmp_path / "p.txt", ['the text "R7"', "a dog"]), ["ground_truth"])


def test_line_endings_and_trailing_blank_lines_are_no_rows(tmp_path):
    (tmp_path / "p.txt").write_bytes("\ufeffein Hündchen\r\nb\r\n\r\n\n".encode())
    assert [row.prompt for row in load(str(tmp_path / "p.txt"))] == ["ein Hündchen", "b"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"ground_truth": "x"}, "row 3: field 'prompt' is"),
        ({"prompt": None, "ground_truth": "x"}, "row 3: field 'prompt' is empty"),
        ({"prompt": " \t", "ground_truth": "x"}, "row 3: field 'prompt' is empty"),
        ({"prompt": "a"}, "row 3: field 'ground_truth' is"),
        ({"prompt": "a", "ground_truth": ""}, "row 3: field 'ground_truth' is empty"),
    ],
)
def test_a_bad_row_is_named(tmp_path, suffix, bad, message):
    path = write(tmp_path / f"p{suffix}", [*ROWS, bad])
    with pytest.raises(DataError, match=message) as caught:
        load(path, ["ground_truth"])
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"prompt": 7}, "row 1: field 'prompt' holds 7, which is int, not str"),
        ({"prompt": ["a"]}, "row 1: field 'prompt' holds .*list, not str"),
        ({"prompt": "a", "ground_truth": 7}, "row 1: field 'ground_truth' holds 7, which is int"),
        ({"prompt": "a", "ground_truth": "x", "answers": []}, "row 1: field 'answers' is empty"),
    ],
)
def test_a_wrong_type_is_named(tmp_path, bad, message):
    with pytest.raises(DataError, match=message):
        load(write(tmp_path / "p.jsonl", [bad]), ["ground_truth", "answers"])


def test_other_fields_may_be_of_any_type(tmp_path):
    row = {"prompt": "a", "answers": ["x"], "level": 0, "on": False}
    rows = load(write(tmp_path / "p.jsonl", [row]), ["answers", "level", "on"])
    assert rows[0].metadata == {"answers": ["x"], "level": 0, "on": False}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n{"prompt": \n', "p.jsonl row 2 is no JSON"),
        (b'{"prompt": "a"}\n\n{"prompt": "b"}\n', "p.jsonl row 2 is no JSON"),
        (b'["a"]\n', "row 1 is a JSON list"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"\n \n", "holds no rows"),
        (b"", "holds no rows"),
    ],
)
def test_a_damaged_jsonl_file_is_refused(tmp_path, content, message):
    (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(str(tmp_path / "p.jsonl"))


def test_a_damaged_or_empty_parquet_file_is_refused(tmp_path):
    path = tmp_path / "p.parquet"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        load(str(path))
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)
    with pytest.raises(DataError, match="holds no rows"):
        load(str(path))


def test_unknown_sources_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.txt does not exist"):
        load(str(tmp_path / "nowhere.txt"))
    with pytest.raises(DataError, match="unknown ending '.csv'"):
        load(write(tmp_path / "p.csv", ["a"]))
    with pytest.raises(ConfigError, match="ocr-glyphs"):
        load("builtin:ocr-glyph")


def test_verl_rows_are_converted(tmp_path):
    row = {
        "data_source": "ocr",
        "prompt": [{"role": "system", "content": "Draw."}, {"role": "user", "content": 'a sign "OPEN"'}],
        "negative_prompt": [{"role": "user", "content": "blurry"}],
        "ability": "t2i",
        "reward_model": {"style": "rule", "ground_truth": "OPEN"},
        "extra_info": {"split": "train", "index": 0},
    }
    rows = load(write(tmp_path / "p.parquet", [row]), ["ground_truth"])
    assert rows[0].prompt == 'a sign "OPEN"'
    assert rows[0].metadata == {
        "data_source": "ocr",
        "negative_prompt": "blurry",
        "ability": "t2i",
        "extra_info": {"split": "train", "index": 0},
        "system_prompt": "Draw.",
        "ground_truth": "OPEN",
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "a second message"),
        ({"prompt": [{"role": "assistant", "content": "a"}]}, "a message of role 'assistant'"),
        ({"prompt": [{"role": "system", "content": "a"}]}, "no user message"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "content is no text"),
        ({"prompt": [{"role": "user", "content": ""}]}, "field 'prompt' is empty"),
        ({"prompt": [{"role": "user", "content": "a"}], "images": ["x.png"]}, "'images' holds input media"),
        (
            {"prompt": [{"role": "user", "content": "a"}], "reward_model": {"style": "rule"}},
            "'ground_truth' is missing",
        ),
    ],
)
def test_verl_rows_that_cannot_be_used_are_named(tmp_path, row, message):
    with pytest.raises(DataError, match=f"row 1: .*{message}"):
        load(write(tmp_path / "p.jsonl", [row]), ["ground_truth"])


def test_overlap_of_the_splits_is_refused(tmp_path):
    train = load(write(tmp_path / "t.txt", ["a dog", "a cat"]))
    refuse_overlap(train, load(write(tmp_path / "v.txt", ["a bird"])))
    with pytest.raises(DataError, match=r"1 validation prompts .*'A  Cat'"):
        refuse_overlap(train, load(write(tmp_path / "v.txt", ["a bird", "A  Cat"])))


@pytest.mark.parametrize("line", ['{"prompt": ' + "1" * 5000 + "}", "[" * 100_000], ids=["digits", "nesting"])
def test_json_that_python_does_not_read(tmp_path, line):
    (tmp_path / "p.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match="row 1 is no JSON"):
        load(str(tmp_path / "p.jsonl"))


@pytest.mark.parametrize(
    "row", ['{"prompt": "\\ud83d"}', '{"prompt": "a", "id": "\\ud83d"}', '{"prompt": "a", "x": ["\\ud83d"]}']
)
def test_half_a_character_is_refused_by_field(tmp_path, row):
    (tmp_path / "p.jsonl").write_text(row + "\n")
    with pytest.raises(DataError, match=r"row 1: field '(prompt|id|x)' holds half of a character"):
        load(str(tmp_path / "p.jsonl"))


def test_a_missing_prompt_field_names_the_key(tmp_path):
    source = write(tmp_path / "p.jsonl", [{"text": "a"}])
    with pytest.raises(DataError, match=r"data\.prompt_key"):
        load(source)


def test_a_given_id_that_looks_like_a_made_one_stays_apart(tmp_path):
    made = load(write(tmp_path / "a.jsonl", [{"prompt": "a"}]))[0].prompt_id
    rows = load(write(tmp_path / "b.jsonl", [{"prompt": "b", "id": f"{made}-2"}, {"prompt": "a"}, {"prompt": "a"}]))
    assert [row.prompt_id for row in rows] == [f"{made}-2", made, f"{made}-3"]


@pytest.mark.parametrize("judged", ["x", [1]])
def test_a_reward_model_column_of_another_shape(tmp_path, judged):
    row = {"prompt": [{"role": "user", "content": "a"}], "reward_model": judged}
    with pytest.raises(DataError, match="row 1: field 'reward_model'"):
        load(write(tmp_path / "p.jsonl", [row]))


def test_a_role_that_is_no_text(tmp_path):
    with pytest.raises(DataError, match="message of role"):
        load(write(tmp_path / "p.jsonl", [{"prompt": [{"role": ["x"], "content": "a"}]}]))


def damaged_page(path):
    pq.write_table(pa.table({"prompt": [f"prompt {i}" for i in range(3000)]}), path)
    content = bytearray(path.read_bytes())
    content[100:1000] = bytes(900)
    path.write_bytes(content)


def broken_text(path):
    ends, content = pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")
    pq.write_table(pa.table({"prompt": pa.Array.from_buffers(pa.string(), 1, [None, ends, content])}), path)


def odd_time(path):
    pq.write_table(pa.table({"prompt": ["a"], "time": pa.array([2**60], pa.time64("us"))}), path)


@pytest.mark.parametrize("make", [damaged_page, broken_text, odd_time])
def test_parquet_that_cannot_be_read_row_by_row(tmp_path, make):
    make(tmp_path / "p.parquet")
    with pytest.raises(DataError, match="p.parquet cannot be read as parquet"):
        load(str(tmp_path / "p.parquet"))


@pytest.mark.parametrize("row", [{"prompt": "a sign"}, {"prompt": "a sign", "ground_truth": ""}])
def test_a_missing_field_says_who_needs_it(tmp_path, row):
    scorers = {"read": {"kind": "ocr"}, "size": {"kind": "jpeg_compressibility"}}
    needed_by = RewardComposer.from_config(RewardConfig(scorers=scorers)).needed_by()
    assert list(needed_by) == ["ground_truth"]
    source = write(tmp_path / "p.jsonl", [row])
    with pytest.raises(DataError, match="row 1: field 'ground_truth' is (missing|empty)") as caught:
        load_prompts(source, split="train", required_fields=["ground_truth"], needed_by=needed_by)
    assert "the scorer 'read' needs it" in caught.value.remedy
    assert "reward.scorers.read.field=COLUMN" in caught.value.remedy
    assert "'~reward.scorers.read'" in caught.value.remedy
