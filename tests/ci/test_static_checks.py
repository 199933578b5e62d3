"""The static checks of ci/, on trees made here and, where it is quick, on the code base itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / "ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


names, sizes, torch_free = script("check_core_names"), script("check_sizes"), script("check_torch_free")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("import torch.cuda\n", ["line 1: cuda"]),
        ("\nif is_cuda or torch_npu: ...\n", ["line 2: cuda", "line 2: npu"]),
        ("# HCCL, NcCl and ROCm; hip\n", ["line 1: HCCL", "line 1: NcCl", "line 1: ROCm", "line 1: hip"]),
        ("relationship = chip + input + cudart\n", []),
        ("cuda2 = barracuda\n", []),
    ],
)
def test_words_that_name_an_accelerator(tmp_path: Path, text: str, hits: list[str]) -> None:
    write(tmp_path, {"omni_portable/a/b.py": text, "omni_portable/a/notes.md": "cuda", "devices/x.py": "cuda"})
    assert names.find_hits(tmp_path) == ({"omni_portable/a/b.py": hits} if hits else {})


@pytest.mark.parametrize(
    ("whitelist", "problems"),
    [
        ("", ["omni_portable/a.py, line 1: cuda"]),
        ("# a comment\n\nomni_portable/a.py: because: it must\n", []),
        ("omni_portable/a.py:\n", ["'omni_portable/a.py' has no reason"]),
        ("omni_portable/a.py: x\nomni_portable/b.py: y\n", ["'omni_portable/b.py' is stale"]),
        ("omni_portable/a.py: x\nomni_portable/gone.py: y\n", ["'omni_portable/gone.py' is stale"]),
    ],
)
def test_whitelist(tmp_path: Path, capsys: pytest.CaptureFixture[str], whitelist: str, problems: list[str]) -> None:
    write(tmp_path, {"omni_portable/a.py": "cuda", "omni_portable/b.py": "", names.WHITELIST: whitelist})
    found = names.problems(tmp_path)
    assert len(found) == len(problems)
    assert all(part in line for part, line in zip(problems, found, strict=True))
    assert names.main([str(tmp_path)]) == (1 if problems else 0)
    assert all(line in capsys.readouterr().out for line in found[:1])


@pytest.mark.parametrize("check", [names, sizes])
def test_an_empty_tree_is_not_a_pass(tmp_path: Path, check: ModuleType) -> None:
    assert check.main([str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("lengths", "problems"),
    [
        ([800, 1, 1, 1, 1, 1, 1, 1, 1, 1], []),
        ([801, 1, 1, 1, 1, 1, 1, 1, 1, 1], ["801 lines, more than 800"]),
        ([401, 401, 1, 1, 1, 1, 1, 1, 1, 1], ["ninetieth percentile of the files' lengths is 401"]),
        ([400, 400, 1, 1, 1, 1, 1, 1, 1, 1], []),
        ([151, 151, 151, 1, 1], ["median of the files' lengths is 151"]),
        ([151, 151, 150, 150], []),
    ],
)
def test_sizes(tmp_path: Path, lengths: list[int], problems: list[str]) -> None:
    packages = ("omni_portable", "devices/deep", "backends")
    write(tmp_path, {f"{packages[i % 3]}/f{i}.py": "x\n" * lines for i, lines in enumerate(lengths)})
    write(
        tmp_path, {"omni_portable/__init__.py": "", "tests/long.py": "x\n" * 5000, "omni_portable/a.txt": "x\n" * 900}
    )
    counts = sizes.line_counts(tmp_path)
    assert sorted(counts.values()) == sorted(lengths)
    found = sizes.problems(counts)
    assert len(found) == len(problems)
    assert all(part in line for part, line in zip(problems, found, strict=True))
    assert sizes.main([str(tmp_path)]) == (1 if problems else 0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import json", ""),
        ("import torch", "loads torch"),
        ("import peft", "loads torch, peft"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise SystemExit(4)", "exit status 4"),
    ],
)
def test_torch_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    for module in ("torch", "peft"):  # light stand-ins: only their names count
        write(tmp_path, {f"{module}.py": "import torch" if module != "torch" else ""})
    write(tmp_path, {"probe_me.py": text})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert torch_free.main(["probe_me", "json"]) == (1 if problem else 0)
    output = capsys.readouterr().out
    assert (f"probe_me: {problem}" in output or problem in output) if problem else "2 modules load without" in output


def test_torch_free_looks_at_everything_it_should(tmp_path: Path) -> None:
    write(tmp_path, {"a/b/__init__.py": "", "a/b/c.py": "", "a/b/__main__.py": "", "a/b/d/__init__.py": ""})
    assert sorted(torch_free.package_modules(tmp_path, "a.b")) == ["a.b", "a.b.c", "a.b.d"]
    assert "omni_devices.cpu" in torch_free.spec_modules()
    for package in torch_free.PACKAGES:
        assert torch_free.package_modules(ROOT, package)


def test_the_core_names_no_accelerator() -> None:
    assert names.problems(ROOT) == []


def test_the_code_base_keeps_its_sizes() -> None:
    assert sizes.problems(sizes.line_counts(ROOT)) == []


@pytest.mark.parametrize(
    "module", ["omni_devices.cpu", "omni_devices.cpu.device", "omni_portable.config.device_choice"]
)
def test_devices_are_described_without_torch(module: str) -> None:
    assert torch_free.problem(module) == ""
