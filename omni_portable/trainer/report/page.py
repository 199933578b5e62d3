"""The page around the sections: head, style, table of contents, notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omni_portable.trainer.report.markup import Raw, esc

STYLE = Path(__file__).with_name("style.css")

CONTENTS = (
    ("result", "Result"),
    ("pictures", "Pictures"),
    ("curves", "Curves"),
    ("consistency", "Consistency"),
    ("time", "Time"),
    ("environment", "Environment"),
    ("configuration", "Configuration"),
)


def page(title: str, subtitle: str, sections: Sequence[Raw], notes: Sequence[str]) -> str:
    """A whole HTML document without a reference to anything outside it."""
    style = STYLE.read_text(encoding="utf-8")
    links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in CONTENTS)
    shown = "".join(f"<li>{esc(note)}</li>" for note in notes)
    aside = f'<aside class="warning" aria-label="notes"><ul>{shown}</ul></aside>' if notes else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{esc(title)}</title><style>{style}</style></head><body>"
        f'<header><h1>{esc(title)}</h1><p class="sub">{esc(subtitle)}</p>'
        f'<nav aria-label="contents">{links}</nav></header>'
        f"<main>{aside}{''.join(sections)}</main></body></html>\n"
    )
