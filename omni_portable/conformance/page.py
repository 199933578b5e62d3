"""The page around the sections of a conformance report or comparison: one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from omni_portable.conformance.check import Status
from omni_portable.conformance.wording import STATUS_WORDS
from omni_portable.trainer.report.markup import Raw, esc
from omni_portable.trainer.report.page import STYLE

OWN_STYLE = Path(__file__).with_name("report.css")
SYMBOLS: Mapping[Status, str] = {"passed": "\u2713", "failed": "\u2717", "recorded": "\u2022", "not_run": "\u2013"}
"""Beside the colour, for readers who do not see it."""
_BADGES: Mapping[Status, str] = {"passed": "good", "failed": "bad", "recorded": "recorded", "not_run": "not_run"}


def document(title: str, subtitle: str, contents: Mapping[str, str], sections: Sequence[str]) -> str:
    """A whole HTML document.

    Args:
        contents: anchor -> its name in the table of contents.
    """
    style = STYLE.read_text(encoding="utf-8") + OWN_STYLE.read_text(encoding="utf-8")
    links = "".join(f'<a href="#{anchor}">{esc(name)}</a>' for anchor, name in contents.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{esc(title)}</title><style>{style}</style></head><body>"
        f'<header><h1>{esc(title)}</h1><p class="sub">{esc(subtitle)}</p>'
        f'<nav aria-label="contents">{links}</nav></header>'
        f"<main>{''.join(sections)}</main></body></html>\n"
    )


def badge(status: Status) -> Raw:
    """A status as a coloured word."""
    return Raw(f'<span class="badge {_BADGES[status]}">{STATUS_WORDS[status]}</span>')


def cell(status: Status, title: str, anchor: str = "") -> Raw:
    """A status as a small coloured square with its symbol; with an anchor it leads there."""
    spoken = esc(f"{title}: {STATUS_WORDS[status]}")
    inner = f'class="cell {status}" title="{spoken}" aria-label="{spoken}">{SYMBOLS[status]}'
    return Raw(f'<a href="#{esc(anchor)}" {inner}</a>' if anchor else f'<span role="img" {inner}</span>')


def lines(text: str) -> Raw:
    """Text that keeps its line breaks."""
    return Raw(f'<p class="lines">{esc(text)}</p>')
