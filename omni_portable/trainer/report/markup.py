"""Small helpers that write HTML; every text that comes from a run is escaped here."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_NUMBER = re.compile(r"^[-+]?\d[\d.]*(e[-+]\d+)?%?$")


class Raw(str):
    """Text that is HTML already."""


def esc(value: Any) -> str:
    return value if isinstance(value, Raw) else html.escape(str(value), quote=True)


def number(value: float | None, digits: int = 3) -> str:
    """A number for people: few digits, scientific where it is tiny or huge, a dash where undefined."""
    if value is None:
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        text = f"{value:.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text and digits > 3 else text
    return f"{value:.2e}"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> Raw:
    """A table whose first column names the rows."""
    top = "".join(f'<th scope="col">{esc(cell)}</th>' for cell in head)
    body = "".join(f'<tr><th scope="row">{esc(row[0])}</th>' + "".join(map(_cell, row[1:])) + "</tr>" for row in rows)
    title = f"<caption>{esc(caption)}</caption>" if caption else ""
    return Raw(f'<div class="scroll"><table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>')


def _cell(value: Any) -> str:
    """Numbers must not break at their minus sign."""
    kind = ' class="n"' if _NUMBER.match(str(value)) else ""
    return f"<td{kind}>{esc(value)}</td>"


def definitions(value: Mapping[str, Any]) -> Raw:
    """Nested plain data as nested definition lists."""
    items = "".join(f"<dt>{esc(name)}</dt><dd>{_plain(inner)}</dd>" for name, inner in value.items())
    return Raw(f"<dl>{items}</dl>")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return definitions(value) if value else "none"
    if isinstance(value, (list, tuple)):
        if not value:
            return "none"
        if all(not isinstance(item, (Mapping, list, tuple)) for item in value):
            return esc(", ".join(str(item) for item in value))
        return "".join(_plain(item) for item in value)
    return esc("none" if value is None or value == "" else value)


def section(title: str, anchor: str, *parts: str) -> Raw:
    return Raw(f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{esc(title)}</h2>{"".join(parts)}</section>')


def details(summary: str, content: str) -> Raw:
    return Raw(f"<details><summary>{esc(summary)}</summary>{content}</details>")
