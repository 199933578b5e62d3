"""The timeline of a report: which steps, which rows, lanes for what overlapped, and no picture of what is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from omni_portable.trainer.report import write_report
from omni_portable.trainer.report.read import read_run
from omni_portable.trainer.report.timeline import MAX_LANES, STEPS, last_steps, roles_table, timeline_chart
from omni_portable.trainer.timeline import FILE, append_timeline
from omni_portable.trainer.timing import Span
from tests.trainer.synthetic_run import write_run


def step_spans(step: int, origin: float | None = None) -> list[Span]:
    """A step of 4 seconds: rollout of the next one runs beside the update."""
    start = 4.0 * (step - 1) if origin is None else origin
    return [
        Span("rollout", start, start + 3.5),
        Span("wait", start, start + 1),
        Span("update", start + 1, start + 3.5),
        Span("sync", start + 3.5, start + 4),
        Span("step", start, start + 4),
    ]


def rects(chart: str) -> list[tuple[str, float, float, float]]:
    """(class, x, y, width) of every stretch."""
    found = re.findall(r'<rect class="(f\d)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', chart)
    return [(kind, float(x), float(y), float(width)) for kind, x, y, width in found]


def test_rows_by_stage_over_the_last_steps(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    for step in range(1, 21):
        append_timeline(run_dir, step, step_spans(step))
    text = write_report(run_dir).read_text()
    chart = text[text.index("Timeline of steps 15 to 20") :]
    chart = chart[: chart.index("</figure>")]
    labels = re.findall(r'text-anchor="end">(\w+)</text>', chart)
    assert labels == ["rollout", "wait", "update", "sync"]
    assert re.findall(r">step (\d+)</text>", chart) == [str(step) for step in range(15, 21)]
    drawn = rects(chart)
    assert len(drawn) == 4 * STEPS
    sync, update = ([width for kind, _, _, width in drawn if kind == name] for name in ("f3", "f2"))
    assert all(abs(u / s - 5) < 0.1 for s, u in zip(sync, update, strict=True))
    assert "rollout 21.00 seconds" in chart


def test_stretches_that_overlap_lie_in_lanes() -> None:
    rows = [(1, Span("reward", start, start + 2.0)) for start in (0.0, 0.5, 1.0, 2.1)]
    drawn = rects(timeline_chart(rows))
    assert len({y for _, _, y, _ in drawn}) == 3
    assert len(drawn) == 4
    many = [(1, Span("rollout", index * 0.01, 5.0 + index)) for index in range(40)]
    assert len({y for _, _, y, _ in rects(timeline_chart(many))}) == MAX_LANES


def test_thousands_of_short_stretches_become_few_rectangles() -> None:
    rows = [(1, Span("rollout", index * 0.001, index * 0.001 + 0.0009)) for index in range(20_000)]
    assert len(rects(timeline_chart(rows))) < 1500


def test_a_continued_run_shows_what_one_process_wrote() -> None:
    rows = [(step, span) for step in (1, 2, 3) for span in step_spans(step)]
    rows += [(step, span) for step in (4, 5) for span in step_spans(step, 4.0 * (step - 4))]
    assert {step for step, _ in last_steps(rows)} == {4, 5}


def test_nothing_to_draw(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    assert "Timeline" not in write_report(run_dir).read_text()
    assert timeline_chart([(1, Span("step", 0.0, 1.0)), (1, Span("update", 0.5, 0.5))]) == ""
    assert timeline_chart([(1, Span("update", float("nan"), 1.0))]) == ""


def test_a_file_that_was_cut_off_loses_only_its_last_row(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    append_timeline(run_dir, 1, step_spans(1))
    with (run_dir / FILE).open("ab") as file:
        file.write(b'{"step": 2, "stage": "upd\xff')
    assert len(read_run(run_dir).timeline) == 5
    assert "Timeline of step 1" in write_report(run_dir).read_text()


def test_seconds_by_role_and_the_critical_path(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", steps=2, total=2, finished=False)
    figures = {
        "role_s/actor/busy": 3.0,
        "role_s/actor/idle": 1.0,
        "role_s/actor/waiting": 0.5,
        "role_s/rollout/busy": 4.0,
        "role_s/rollout/idle": 0.0,
        "critical_path_s/update": 3.0,
        "critical_path_s/rollout": 1.0,
    }
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rows = [row | figures if row["step"] else row for row in rows]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = re.sub(r"<[^>]+>", "|", roles_table(read_run(run_dir)))
    for shown in ("|actor|", "6.0 s (75%)", "1.0 s (12%)", "|rollout|", "8.0 s (100%)", "–", "2.0 s (25%)"):
        assert shown in text
    assert text.index("|update|") < text.rindex("|rollout|")
