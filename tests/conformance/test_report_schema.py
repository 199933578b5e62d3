"""The schema keywords that we use mean what JSON Schema says, and others are not passed over."""

from __future__ import annotations

from typing import Any

import pytest

from omni_portable.conformance.schema_check import problems

CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "object"}, [{}, {"a": 1}], [[], None, "x"]),
    ({"type": "integer"}, [0, -3], [1.5, True, "1", None]),
    ({"type": "number"}, [0, 1.5], [True, "1", float("inf"), float("nan")]),
    ({"type": ["boolean", "null"]}, [True, None], [0, "true"]),
    ({"enum": ["a", 1]}, ["a", 1], ["b", True, 1.0]),
    ({"const": 1}, [1], [True, 2, "1"]),
    ({"anyOf": [{"type": "string"}, {"minimum": 3, "type": "integer"}]}, ["", 3], [2, None]),
    ({"required": ["a"]}, [{"a": None}, "no object"], [{}, {"b": 1}]),
    ({"properties": {"a": {"type": "string"}}}, [{}, {"a": "x"}, {"b": 3}], [{"a": 3}]),
    ({"properties": {"a": {}}, "additionalProperties": False}, [{}, {"a": 3}], [{"b": 3}]),
    ({"additionalProperties": {"type": "integer"}}, [{"x": 1}], [{"x": "1"}]),
    ({"items": {"type": "integer"}}, [[], [1, 2]], [[1, "2"]]),
    ({"minimum": 2}, [2, 3.5, "text"], [1, -1.0]),
    ({"minLength": 1}, ["a"], [""]),
    ({"type": "array", "minItems": 2}, [[1, 2]], [[1], []]),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}, [None], [0]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda value: str(value)[:30])
def test_keywords(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if list(problems(value, schema))] == []
    assert [value for value in bad if not list(problems(value, schema))] == []


def test_places_are_named() -> None:
    schema = {"properties": {"rows": {"items": {"required": ["name"], "properties": {"name": {"type": "string"}}}}}}
    assert list(problems({"rows": [{"name": "a"}, {"name": 7}, {}]}, schema)) == [
        "rows[1].name is 7, not string",
        "rows[2].name is missing",
    ]


def test_an_unknown_keyword_is_no_pass() -> None:
    with pytest.raises(ValueError, match="'pattern'"):
        list(problems("x", {"pattern": "y"}))
