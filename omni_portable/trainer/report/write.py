"""From a run directory to one self-contained HTML file."""

from __future__ import annotations

import datetime
from pathlib import Path

from omni_portable.contracts.disk import Cures, disk_errors
from omni_portable.trainer.report.consistency import consistency_section
from omni_portable.trainer.report.curves import curves_section, timing_section
from omni_portable.trainer.report.environment import environment_section
from omni_portable.trainer.report.markup import Raw, details, esc, section
from omni_portable.trainer.report.page import page
from omni_portable.trainer.report.pictures import pictures
from omni_portable.trainer.report.read import RunData, read_run
from omni_portable.trainer.report.summary import summary_section
from omni_portable.trainer.rundir import write_text

REPORT = "report.html"
AGAIN = "`omni-portable report RUN_DIR` again"
CURES = Cures(
    full=f"free some space, or name a file on another disk with --out, then run {AGAIN}; the run itself is not touched",
    refused="name another file with --out, or change the permissions of this one",
    broken=f"look after the disk, or name a file on another one with --out, then run {AGAIN}",
)
"""A report can be written at any time: nothing of the run has to go on for it."""


def write_report(run_dir: Path, out: Path | None = None) -> Path:
    """Write the report of a run, finished or not, and return its path.

    Args:
        run_dir: what training wrote (trainer.run_dir).
        out: file or folder to write to; `run_dir/report.html` by default.

    Raises:
        RunDirectoryError: the folder is no run directory, a file of it is damaged, or `out` cannot be written.
    """
    data = read_run(run_dir)
    path = out or run_dir
    if path.is_dir():
        path = path / REPORT
    text = render(data, path.parent)
    with disk_errors(path, CURES):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text, CURES)
    return path


def render(data: RunData, folder: Path | None = None) -> str:
    """The document's text, for a page in `folder` (the run directory if None)."""
    sections = [
        summary_section(data),
        section("Before and after", "pictures", pictures(data, folder)),
        curves_section(data),
        consistency_section(data),
        timing_section(data),
        environment_section(data),
        _configuration(data),
    ]
    name = data.run_dir.resolve().name
    written = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return page(f"Run report: {name}", f"{data.run_dir.resolve()} · written {written}", sections, data.notes)


def _configuration(data: RunData) -> Raw:
    text = f"<pre>{esc(data.config_text)}</pre>" if data.config_text else "<p>config.yaml has not been written.</p>"
    return section("Configuration", "configuration", details("Every key as resolved", text))
