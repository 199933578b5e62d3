"""What the report's figures were measured on, and how to measure them again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from omni_portable.conformance.report import Report
from omni_portable.trainer.report.markup import Raw, definitions, esc, section, table


def environment_section(report: Report) -> Raw:
    """Attention pairs as a table, determinism as two lists, all else as it is."""
    environment = dict(report.environment)
    model, determinism = environment.pop("model", {}), environment.pop("determinism", {})
    return section(
        "Environment",
        "environment",
        _attention(model),
        _determinism(determinism),
        "<h3>Device and software</h3>",
        definitions(environment),
    )


def _attention(model: Any) -> str:
    if not isinstance(model, Mapping):
        return ""
    if "error" in model:
        return f'<p class="warning">The recipe\'s model could not be resolved here: {esc(model["error"])}</p>'
    pairs = model.get("attention")
    if not isinstance(pairs, Mapping) or not pairs:
        return ""
    columns = ("family", "actor", "actor_library", "rollout", "package", "reason")
    rows = [(name, *(pair.get(column, "?") for column in columns)) for name, pair in pairs.items()]
    head = ("component", "kernel", "actor", "library", "rollout", "from", "why")
    title = f"Attention pairs of {model.get('path', '?')} in {model.get('dtype', '?')}"
    return table(head, rows, title)


def _determinism(value: Any) -> str:
    if not isinstance(value, Mapping) or not value:
        return "<h3>Determinism</h3><p>Not asked for by the recipe.</p>"
    promised = "".join(f"<li>{esc(line)}</li>" for line in value.get("not_promised", ()))
    return (
        f"<h3>Determinism</h3>{definitions(value.get('applied', {}))}"
        f"<p>Not promised:</p><ul>{promised or '<li>nothing named</li>'}</ul>"
    )


def provenance_section(report: Report) -> Raw:
    """Who made the report, when, and the command that makes it again."""
    facts = dataclasses.asdict(report.provenance)
    command = facts.pop("command")
    return section("Provenance", "provenance", f"<pre>{esc(command)}</pre>", definitions(facts))
