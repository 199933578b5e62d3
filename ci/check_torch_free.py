"""Configuration, contracts, the command and every plugin's description load without torch.

    python ci/check_torch_free.py [MODULE ...]

Each module is imported in an interpreter of its own, so that the culprit is named. Without arguments: all modules of
the torch-free packages, and every module that an entry point of ours names.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from omni_portable.contracts.registry import GROUPS

PACKAGES = ("omni_portable.contracts", "omni_portable.config", "omni_portable.planning", "omni_portable.cli")
HEAVY = ("torch", "diffusers", "transformers", "accelerate", "peft", "vllm", "vllm_omni", "ray")
"""Modules that must not be loaded."""
_PROBE = (
    "import importlib, sys; importlib.import_module(sys.argv[1]); "
    "loaded = [name for name in sys.argv[2].split(',') if name in sys.modules]; "
    "sys.exit('loads ' + ', '.join(loaded) if loaded else 0)"
)


def package_modules(root: Path, package: str) -> list[str]:
    """Names of a package and of all modules below it, found as files, so that nothing is imported here."""
    folder = root.joinpath(*package.split("."))
    names = []
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def spec_modules() -> list[str]:
    """Modules named by entry points of the product, in-tree or of any installed package."""
    return sorted({point.module for group in GROUPS.values() for point in entry_points(group=group)})


def problem(module: str) -> str:
    """Why `module` is not torch-free, as one line; empty where it is."""
    run = subprocess.run(
        [sys.executable, "-c", _PROBE, module, ",".join(HEAVY)], capture_output=True, text=True, check=False
    )
    lines = run.stderr.strip().splitlines()
    return f"{module}: {lines[-1] if lines else f'exit status {run.returncode}'}" if run.returncode else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the modules that load a heavy one or cannot be imported; 1 if there are any."""
    modules = list(sys.argv[1:] if argv is None else argv)
    if not modules:
        root = Path(__file__).resolve().parents[1]
        modules = [name for package in PACKAGES for name in package_modules(root, package)] + spec_modules()
    found = [line for line in map(problem, dict.fromkeys(modules)) if line]
    print("\n".join(found) if found else f"{len(set(modules))} modules load without {', '.join(HEAVY)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
