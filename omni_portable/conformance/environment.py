"""What a conformance run ran on, as plain data: the figures of a report mean nothing without it."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import omni_portable
from omni_portable.conformance.context import Context
from omni_portable.contracts.errors import OmniPortableError
from omni_portable.trainer.environment import package_versions

if TYPE_CHECKING:
    from omni_portable.contracts.device import DeterminismReport

ROLES = ("local", "actor", "rollout", "reward")
ROOT = Path(omni_portable.__file__).resolve().parents[1]
GIT_LIMIT_S = 10.0


def describe(context: Context, determinism: DeterminismReport | None) -> dict[str, Any]:
    """The report's 'environment'; what cannot be had holds the error instead."""
    device = context.device
    return {
        "device": dataclasses.asdict(device.identity()),
        "capabilities": dataclasses.asdict(device.capabilities()),
        "memory": dataclasses.asdict(device.memory.stats()),
        "evidence": device.static_profile(device.generation).evidence,
        "collectives": device.collectives.backend,
        "variables": {role: device.environment(role) for role in ROLES},
        "model": _model(context),
        "determinism": dataclasses.asdict(determinism) if determinism else {},
        "platform": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "threads": torch.get_num_threads(),
        "versions": package_versions(),
    }


def _model(context: Context) -> dict[str, Any]:
    """Dtype and attention pairs of the recipe's model."""
    try:
        model = context.model
    except OmniPortableError as error:
        return {"error": str(error)}
    pairs = {name: dataclasses.asdict(choice) for name, choice in model.load.attention.items()}
    path = context.config.model.path
    return {"family": context.config.model.family, "path": path, "dtype": model.dtype, "attention": pairs}


def source_commit(root: Path = ROOT) -> tuple[str, bool]:
    """(commit of the source tree, whether it was modified); ('', False) where it is no git checkout."""
    if not (root / ".git").exists():
        return "", False
    commit, status = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit.strip(), bool(status.strip())


def _git(root: Path, *arguments: str) -> str:
    """Output of git; empty where it is not installed or fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=GIT_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
