"""What the run ran on: device, attention kernels with their measured errors, determinism, versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_portable.trainer.report.markup import Raw, definitions, esc, number, section, table
from omni_portable.trainer.report.read import RunData

TABLES = ("attention", "attention_verified", "determinism", "versions")


def environment_section(data: RunData) -> Raw:
    """Known parts as tables, whatever else environment.json holds as it is."""
    environment = data.environment
    if not environment:
        return section("Environment", "environment", "<p>environment.json has not been written.</p>")
    rest = {name: value for name, value in environment.items() if name not in TABLES}
    return section(
        "Environment",
        "environment",
        _attention(environment),
        _determinism(environment.get("determinism")),
        _versions(environment.get("versions")),
        "<h3>Device</h3>",
        definitions(rest),
    )


def _attention(environment: Mapping[str, Any]) -> str:
    """One row per component: the kernel on both sides, and its errors against fp32 math attention."""
    chosen = environment.get("attention")
    if not isinstance(chosen, Mapping) or not chosen:
        return ""
    results = _mappings(environment.get("attention_verified"))
    verified = {choice.get("component"): result for result in results for choice in _mappings([result.get("choice")])}
    rows = []
    for component, choice in chosen.items():
        if not isinstance(choice, Mapping):
            continue
        result = verified.get(component, {})
        errors = (result.get(f"max_{way}_error") for way in ("forward", "backward"))
        measured = [number(error) if error is not None else "not run" for error in errors]
        names = [choice.get(name, "?") for name in ("family", "actor", "rollout", "package", "reason")]
        rows.append((component, *names, *measured, number(result.get("tolerance"))))
    head = ("component", "kernel", "actor", "rollout", "from", "why", "forward error", "backward error", "tolerance")
    return table(head, rows, "Attention kernels, compared with fp32 math attention before training")


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _determinism(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"<h3>Determinism</h3><p>{esc(value)}</p>" if value else ""
    promised = "".join(f"<li>{esc(line)}</li>" for line in value.get("not_promised", ()))
    applied = definitions(value.get("applied", {}))
    return f"<h3>Determinism</h3>{applied}<p>Not promised:</p><ul>{promised or '<li>nothing named</li>'}</ul>"


def _versions(value: Any) -> str:
    return f"<h3>Versions</h3>{definitions(value)}" if isinstance(value, Mapping) else ""
