"""A device of somebody else's, as docs/add-a-device.md shows it: installed, found, planned for, checked, trained on."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from omni_portable.cli.main import parse
from tests.docs.pages import blocks, commands

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tests" / "fixtures" / "example_device"
PAGE = ROOT / "docs" / "add-a-device.md"
OURS = ("omni_portable", "devices", "backends", "recipes")
GROUPS = "identity,precision,attention,collectives,memory,determinism,noise,weight-sync,consistency"
"""Of the suite; the others need a recording of this model, or only record speed."""


@dataclass
class Workshop:
    """The folder that holds the installed package, and which of our files the installation changed."""

    site: Path
    changed: set[str]

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(self.site), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *arguments]
        cwd = self.site.parent
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)

    def product(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "omni_portable.cli", *arguments)


def sources() -> dict[str, str]:
    """Path -> digest of every file that we ship, and of the file that registers our devices."""
    files = [file for folder in OURS for file in sorted((ROOT / folder).rglob("*")) if file.suffix in (".py", ".yaml")]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in [*files, ROOT / "pyproject.toml"]}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder, before = tmp_path_factory.mktemp("example-device"), sources()
    shutil.copytree(PACKAGE, folder / "source")  # a build leaves files beside the source
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    places = ["--target", str(folder / "site"), str(folder / "source")]
    command = [sys.executable, "-m", "pip", "install", *options, *places]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    changed = {path for path, _ in before.items() ^ sources().items()}
    return Workshop(folder / "site", changed)


def test_the_page_is_the_package() -> None:
    shown = {block.title: block.text for block in blocks(PAGE) if block.title}
    files = [PACKAGE / "pyproject.toml", *sorted((PACKAGE / "example_device").glob("*.py"))]
    assert shown == {str(file.relative_to(PACKAGE)): file.read_text(encoding="utf-8") for file in files}


def test_commands_of_the_page_are_understood() -> None:
    found = [command for block in blocks(PAGE) if not block.title for command in commands(block.text)]
    assert {command[1] for command in found} == {"doctor", "plan", "conformance", "train"}
    for command in found:
        parse(command[1:])


def test_touches_no_file_of_ours(workshop: Workshop) -> None:
    record = next(workshop.site.glob("*.dist-info/RECORD"))
    with record.open(encoding="utf-8", newline="") as lines:
        tops = {Path(row[0]).parts[0] for row in csv.reader(lines)}
    assert tops == {"example_device", record.parent.name}
    assert workshop.changed == set()
    assert not [path for path, text in sources().items() if "example_device" in Path(path).read_text(encoding="utf-8")]


def test_auto_sees_one_accelerator(workshop: Workshop) -> None:
    program = (
        "import sys\n"
        "from omni_portable.config.device_choice import choose_device, device_choices\n"
        "device = choose_device('auto')\n"
        "print(device.name, device.generation, 'torch' in sys.modules, 'example:x1' in device_choices())"
    )
    done = workshop.python("-c", program)
    assert done.stdout.split() == ["example", "x1", "False", "True"], done.stderr


def test_refuses_a_generation_it_does_not_know(workshop: Workshop) -> None:
    done = workshop.product("plan", "sd3/flow_grpo_ocr_tiny", "--device", "example:x2")
    assert done.returncode != 0
    assert "no generation 'x2'" in done.stdout + done.stderr


def test_doctor(workshop: Workshop) -> None:
    done = workshop.product("doctor", "--json")
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["device 'example'"]["status"] == "ok"
    assert "as an example (x1)" in found["device 'example'"]["found"]


def test_plan(workshop: Workshop) -> None:
    done = workshop.product("plan", "sd3/flow_grpo_ocr_tiny", "--device", "example", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "host processor computes" in done.stdout
    assert '"sdpa"' in done.stdout


@pytest.mark.e2e
def test_conformance(workshop: Workshop) -> None:
    out = workshop.site.parent / "conformance"
    done = workshop.product("conformance", "run", "--device", "example", "--only", GROUPS, "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    results = {entry["id"]: entry["status"] for entry in report["checks"]}
    passed = {name.partition(".")[0] for name, status in results.items() if status == "passed"}
    assert passed == set(GROUPS.split(","))
    assert "failed" not in results.values()


@pytest.mark.e2e
def test_trains_a_step(workshop: Workshop) -> None:
    run = workshop.site.parent / "run"
    small = ["data.train_batch_size=2", "rollout.n=4", "data.validation=", "trainer.total_steps=1"]
    arguments = ["train", "sd3/flow_grpo_ocr_tiny", "device.name=example", *small, f"trainer.run_dir={run}"]
    done = workshop.product(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (step,) = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert step["rollout_corr/ratio_exact_one"] == 1.0
    assert '"name": "example"' in (run / "environment.json").read_text(encoding="utf-8")
