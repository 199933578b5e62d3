"""Our arithmetic equals the published reference vectors, and the tool that says so can say the opposite."""

import copy
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from omni_portable.conformance.compare import Tolerance, compare
from omni_portable.conformance.vector_cases import CASES
from omni_portable.conformance.vector_file import VectorFileError
from omni_portable.conformance.vectors import main, run_vectors

VECTORS = Path(__file__).parent.parent / "data" / "numerics.json"
CONTENT = json.loads(VECTORS.read_text())
NAMES = sorted({case["name"] for case in CONTENT["cases"]})


def write(folder, cases):
    path = folder / "vectors.json"
    path.write_text(json.dumps({"about": "test", "cases": cases}))
    return path


def numbers(value, path=()):
    """Every (path, number) in nested data."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from numbers(item, (*path, index))
    else:
        yield path, value


def changed(expected, path, value):
    result = copy.deepcopy(expected)
    target = result
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return result


def first(name):
    return next(case for case in CONTENT["cases"] if case["name"] == name)


@pytest.mark.parametrize("name", NAMES)
def test_every_published_case_passes(name):
    report = run_vectors(VECTORS, [name])
    assert [failure.problem for failure in report.failures] == []
    assert len(report.results) == sum(case["name"].startswith(name) for case in CONTENT["cases"])
    assert report.exit_code == 0


def test_every_name_has_an_implementation_and_every_implementation_a_case():
    assert sorted(CASES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_change_of_any_expected_output_is_noticed(name, tmp_path):
    """Twice the tolerance on any output of the first case (three places of each array) must fail."""
    case = first(name)
    outputs = {}
    for path, value in numbers(case["expected"]):
        key = tuple(part for part in path if isinstance(part, str))
        outputs.setdefault(key, []).append((path, value))
    cases = []
    for places in outputs.values():
        for path, value in (places[0], places[len(places) // 2], places[-1]):
            off = value + 2 * (1e-6 + 1e-5 * abs(value))
            cases.append({**case, "expected": changed(case["expected"], path, off)})
    report = run_vectors(write(tmp_path, cases))
    assert len(report.failures) == len(cases) > 0
    assert report.exit_code == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_array_of_inputs_matters(name, tmp_path):
    """Adding 0.37 to any numeric input that is an array must break the case (the tool cannot pass by constants)."""
    case = first(name)
    arrays = [key for key, value in case["inputs"].items() if isinstance(value, list) and key not in ("mask", "groups")]
    for key in arrays:
        path = next(path for path, _ in numbers(case["inputs"][key]))
        value = dict(numbers(case["inputs"][key]))[path]
        inputs = {**case["inputs"], key: changed(case["inputs"][key], path, value + 0.37)}
        if name == "pairs.online_dpo":  # ranks, not values
            inputs[key] = [-score for score in case["inputs"][key]]
        assert run_vectors(write(tmp_path, [{**case, "inputs": inputs}])).exit_code == 1, key


def test_exit_codes_of_the_command(tmp_path, capsys):
    known = first("loss.flow_grpo")
    unknown = {**known, "name": "loss.tomorrow"}
    wrong = {**known, "expected": {"loss": 1.0}}
    assert main([str(write(tmp_path, [known]))]) == 0
    assert main([str(write(tmp_path, [known, wrong]))]) == 1
    assert "loss: got" in capsys.readouterr().out
    assert main([str(write(tmp_path, [known, unknown]))]) == 2
    assert "UNKNOWN loss.tomorrow" in capsys.readouterr().out
    assert main([str(write(tmp_path, [wrong, unknown]))]) == 2
    assert main([str(write(tmp_path, [known, unknown])), "--only", "loss.flow"]) == 0
    assert main([str(write(tmp_path, [known, unknown])), "--only", "sampler., loss.tom"]) == 2
    assert main([str(write(tmp_path, [known, wrong])), "--only", "kl."]) == 2


def test_only_selects_prefixes():
    report = run_vectors(VECTORS, ["sampler.", "kl"])
    assert {result.name.split(".")[0] for result in report.results} == {"sampler", "kl"}
    assert len(report.results) == 34


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"cases": []}',
        '{"cases": {"name": "x"}}',
        '{"cases": [{"inputs": {}, "expected": {}}]}',
        '{"cases": [{"name": "kl.penalty", "inputs": {"a": 1}}]}',
        '{"cases": [{"name": "kl.penalty", "inputs": {"a": 1}, "expected": {}}]}',
        '{"cases": [{"name": "kl.penalty", "inputs": {"a": 1}, "expected": {"kl": "large"}}]}',
        '{"cases": [{"name": "kl.penalty", "inputs": {"log_prob": [1.0]}, "expected": {"kl": [1.0]}}]}',
        '{"cases": [{"name": "kl.penalty", "inputs": {"log_prob": [[1.0], 2.0], "reference_log_prob": [1.0],'
        ' "estimator": "kl"}, "expected": {"kl": [1.0]}}]}',
    ],
)
def test_corrupt_files_end_with_code_2(text, tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    assert "error:" in capsys.readouterr().err


def test_unreadable_files_end_with_code_2(tmp_path, capsys):
    assert main([str(tmp_path / "absent.json")]) == 2
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    assert main([str(tmp_path / "binary.json")]) == 2
    assert main([str(tmp_path)]) == 2
    with pytest.raises(VectorFileError):
        run_vectors(tmp_path / "absent.json")
    capsys.readouterr()


@pytest.mark.parametrize("content", ["1" * 400, "1" * 5000, "[" * 100_000], ids=["large", "digits", "nesting"])
def test_json_that_python_does_not_read(tmp_path, content):
    (tmp_path / "vectors.json").write_text('{"cases": ' + content)
    with pytest.raises(VectorFileError, match="vectors.json is not valid JSON"):
        run_vectors(tmp_path / "vectors.json")


def test_inputs_that_our_functions_refuse_fail_their_case_only(tmp_path):
    case = first("sampler.sde")
    silent = {**case, "inputs": {**case["inputs"], "noise_level": 0.0}}
    crooked = {**case, "inputs": {**case["inputs"], "velocity": [[0.0]]}}
    report = run_vectors(write(tmp_path, [silent, case, crooked]))
    assert [result.passed for result in report.results] == [False, True, False]
    assert "no log-prob" in report.results[0].problem


@pytest.mark.parametrize("nothing", [{}, {"inner": {}}])
def test_a_case_that_expects_nothing_fails(tmp_path, nothing):
    case = first("loss.flow_grpo")
    (result,) = run_vectors(write(tmp_path, [{**case, "expected": {"loss": nothing}}])).results
    assert not result.passed


def test_sigmas_may_be_given_per_row(tmp_path):
    case = first("sampler.dance_sde")
    count = len(case["inputs"]["sample"])
    inputs = {**case["inputs"], **{key: [case["inputs"][key]] * count for key in ("sigma", "sigma_next")}}
    expected = {**case["expected"], "std_dev": [case["expected"]["std_dev"]] * count}
    assert run_vectors(write(tmp_path, [{**case, "inputs": inputs, "expected": expected}])).exit_code == 0


def test_the_table_names_what_failed(tmp_path):
    case = first("kl.penalty")
    report = run_vectors(write(tmp_path, [case, {**case, "expected": {"kl": [[1.0]], "extra": 1.0}}]))
    table = report.table()
    assert "1 passed, 1 failed, 0 unknown" in table
    assert "expected a list of 1, got a list of 6" in table
    assert (report.by_name()[0].passed, report.by_name()[0].failed, report.by_name()[0].worst) == (1, 1, math.inf)


def test_comparison_of_numbers():
    tolerance = Tolerance(relative=1e-5, absolute=1e-6)
    assert compare({"a": [1.0, 2.0]}, {"a": [1.0 + 1.05e-5, 2.0]}, tolerance).passed
    assert not compare({"a": [1.0 + 1.2e-5, 2.0]}, {"a": [1.0, 2.0]}, tolerance).passed
    assert compare({"a": 9e-7}, {"a": 0.0}, tolerance).passed
    assert not compare({"a": math.nan}, {"a": 0.0}, tolerance).passed
    assert compare({"a": math.nan}, {"a": math.nan}, tolerance).passed
    assert not compare({"a": math.inf}, {"a": 1e30}, tolerance).passed
    assert compare({}, {"a": 1.0}, tolerance).problem == "a: this output is missing"
    assert "got a list" in compare({"a": [1.0]}, {"a": 1.0}, tolerance).problem
    assert compare({"a": 1.0, "b": 2.0}, {"a": 1.0}, tolerance).values == 1


def test_help_loads_without_torch():
    code = (
        "import sys; from omni_portable.conformance.vectors import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    sys.exit(end.code or int('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "--only" in done.stdout


@pytest.mark.parametrize(
    ("name", "label"),
    [("sampler.sde", {"step_kind": "cps"}), ("loss.diffusion_dpo", {"order": "all chosen rows first"})],
)
def test_another_convention_than_ours_is_refused(name, label, tmp_path, capsys):
    case = first(name)
    assert main([str(write(tmp_path, [{**case, "inputs": {**case["inputs"], **label}}]))]) == 2
    assert next(iter(label)) in capsys.readouterr().err
