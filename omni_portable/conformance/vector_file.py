"""Reading reference-vector files: ``{about, cases: [{name, inputs, expected}]}`` in JSON. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_portable.conformance.json_file import read_json
from omni_portable.contracts.errors import ConfigError

LARGEST_BYTES = 256 << 20


class VectorFileError(ConfigError):
    """A reference-vector file that cannot be read, or whose contents are not what the format says (exit code 2)."""


@dataclass(frozen=True)
class VectorCase:
    """One case: `index` is its position in the file; inputs and expected are plain JSON data."""

    index: int
    name: str
    inputs: Mapping[str, Any]
    expected: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"case {self.index} ({self.name})"


def read_vectors(path: Path) -> list[VectorCase]:
    """All cases of a file, checked for structure.

    Raises:
        VectorFileError: unreadable, not JSON, no cases, or a case without name, inputs or numeric expected outputs.
    """
    try:
        content = read_json(path, LARGEST_BYTES)
    except OSError as error:
        raise VectorFileError(f"cannot read the reference vectors {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise VectorFileError(f"{path} is not valid JSON: {error}", remedy="copy the file again") from error
    cases = content.get("cases") if isinstance(content, dict) else None
    if not isinstance(cases, list) or not cases:
        raise VectorFileError(f"{path} holds no list of cases", remedy='the format is {"about", "cases": [...]}')
    return [_case(path, index, case) for index, case in enumerate(cases)]


def _case(path: Path, index: int, case: object) -> VectorCase:
    if not isinstance(case, dict) or not isinstance(case.get("name"), str):
        raise VectorFileError(f"case {index} of {path} has no name")
    parsed = VectorCase(index, case["name"], case.get("inputs", {}), case.get("expected", {}))
    for key, part in (("inputs", parsed.inputs), ("expected", parsed.expected)):
        if not isinstance(part, dict) or not part:
            raise VectorFileError(f"{parsed.label} of {path} has no {key}")
    _check_numeric(parsed.label, "expected", parsed.expected)
    return parsed


def _check_numeric(label: str, where: str, value: object) -> None:
    """Expected outputs are numbers in lists and sections; anything else could only be compared by accident."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_numeric(label, f"{where}.{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_numeric(label, f"{where}[{index}]", item)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise VectorFileError(f"{label}: {where} is {value!r}, not a number")
