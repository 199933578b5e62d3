"""`omni-portable plan`: exit codes, words, JSON, and no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from omni_portable.cli import main
from omni_portable.config.loader import list_recipes
from omni_portable.planning import plan as shapes

RECIPE = "sd3/flow_grpo_ocr_tiny"
DEVICES = ["cpu", "cuda:sm90", "rocm:gfx942", "ascend:a2", "ascend:a3", "ascend:a5"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "planning.md"


def run(capsys, *arguments):
    code = main(["plan", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_it_runs_there(capsys):
    code, out, _ = run(capsys, RECIPE, "--device", "ascend:a3", "--devices", "1")
    assert code == 0
    assert out.startswith(f"{RECIPE} on ascend:a3: can run there\n")
    for word in ("dtype", "attention", "collectives", "memory", "packages", "constraints", "image", "assumptions"):
        assert re.search(rf"^{word}", out, re.MULTILINE), word
    assert "not run on hardware" in out


def test_it_cannot_run_there(capsys):
    code, out, _ = run(capsys, RECIPE, "--device", "cpu", "device.dtype=float16")
    assert code == 1
    assert "cannot run there" in out
    assert "because: device.dtype=float16 has no usable arithmetic on 'cpu'" in out
    assert "valid choices: float32" in out


def test_out_of_memory_with_numbers_and_what_to_change(capsys):
    arguments = [RECIPE, "--device", "cuda:sm90", "--memory-gib", "2.05"]
    code, out, _ = run(capsys, *arguments)
    assert code == 1
    assert "the training phase needs 91.6 MiB on one device" in out
    change = re.search(r"to fix it: add (.+) \(peak", out)
    assert change
    assert run(capsys, *arguments, *change[1].split())[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sd3/nothing", "--device", "cpu"], "no recipe 'sd3/nothing'"),
        ([RECIPE, "--device", "cpy"], "did you mean 'cpu'?"),
        ([RECIPE, "--device", "ascend:a9"], "valid choices: ascend:a2, ascend:a3, ascend:a5"),
        ([RECIPE, "--device", "cpu", "rollout.nn=3"], "unknown configuration key 'rollout.nn'"),
        ([RECIPE, "--device", "cpu", "device.name=cuda:sm90"], "takes its device from --device"),
        ([RECIPE, "--device", "cpu", "device=1"], "override other keys of the section one by one"),
    ],
)
def test_bad_names(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", RECIPE],
        ["plan", RECIPE, "--device", "cpu", "--devices", "0"],
        ["plan", RECIPE, "--device", "cpu", "--devices", "two"],
        ["plan", RECIPE, "--device", "cpu", "--memory-gib", "-1"],
        ["plan", RECIPE, "--device", "cpu", "--memory-gib", "nan"],
        ["plan", RECIPE, "--device", "cpu", "--memory-gib", "much"],
        ["plan", RECIPE, "--device", "cpu", "--memory-gib", "1e-30"],
    ],
)
def test_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_json(capsys):
    code, out, _ = run(capsys, RECIPE, "rollout.n=8", "--device", "rocm:gfx950", "--devices", "4", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema_version"] == shapes.SCHEMA_VERSION
    assert (found["device"], found["generation"], found["overrides"]) == ("rocm", "gfx950", ["rollout.n=8"])
    assert found["devices"]["asked"] == 4
    assert found["memory"]["peak_bytes"] == max(found["memory"]["phases"].values())
    assert set(found["memory"]["phases"]) == set(shapes.PHASES)
    assert found["attention"][0].keys() >= {"component", "family", "actor", "rollout", "package"}


def test_the_page_describes_every_key_of_the_document():
    described = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    expected = keys(shapes.Plan)
    assert described == expected
    assert f"`schema_version` | {shapes.SCHEMA_VERSION}" in PAGE.read_text(encoding="utf-8")


def keys(cls, prefix=""):
    """Dotted keys of a dataclass of dataclasses; lists are marked with []."""
    import dataclasses
    import typing

    found = set()
    for name, hint in typing.get_type_hints(cls).items():
        if name not in {field.name for field in dataclasses.fields(cls)}:
            continue
        inner = next((one for one in typing.get_args(hint) if dataclasses.is_dataclass(one)), None)
        if inner is not None:
            found |= keys(inner, f"{prefix}{name}[].")
        elif dataclasses.is_dataclass(hint):
            found |= keys(hint, f"{prefix}{name}.")
        else:
            found.add(f"{prefix}{name}")
    return found


TOO_LARGE = {("sd3/diffusion_opd_routed", "ascend:a2")}
"""Two teachers beside the student are more than 32 GiB hold."""


def test_every_recipe_on_every_device_without_torch():
    code = (
        "import sys; from omni_portable.cli import main\n"
        f"too_large = {TOO_LARGE!r}\n"
        f"for recipe in {list_recipes()!r}:\n"
        f"    for device in {DEVICES!r}:\n"
        "        code = main(['plan', recipe, '--device', device, '--json'])\n"
        "        assert code == ((recipe, device) in too_large), (recipe, device, code)\n"
        "loaded = {'torch', 'numpy', 'diffusers', 'transformers', 'torch_npu', 'vllm'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
