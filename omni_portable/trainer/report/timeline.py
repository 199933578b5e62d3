"""Who did what when: the stretches of the last steps, and the seconds of each role over the whole run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from omni_portable.trainer.report.charts import LEFT, RIGHT, figure, nice_ticks, tick_label
from omni_portable.trainer.report.markup import Raw, esc, table
from omni_portable.trainer.report.read import RunData
from omni_portable.trainer.timing import CONSUMER, PRODUCER, WAIT, Span

STEPS = 6
"""Last steps drawn."""
WIDTH = 1060
LANE, ROW, GAP = 9, 22, 8
"""Pixels: one lane of a stage whose stretches overlap, a stage with one lane, and between stages."""
MAX_LANES = 8
TOP, BOTTOM = 20, 34
WHOLE = "step"
"""The stretch of a whole step: its start is a line, not a row."""

Timeline = Sequence[tuple[int, Span]]


def timeline_chart(rows: Timeline) -> Raw:
    """Stages as rows over seconds; nothing where no stretch can be drawn.

    Stretches of a stage that overlap (rounds of rollout that run ahead, scorers side by side) are drawn in lanes.
    """
    shown = last_steps(rows)
    spans = [span for _, span in shown if span.stage != WHOLE and span.end > span.start]
    if not spans:
        return Raw("")
    start, end = min(span.start for span in spans), max(span.end for span in spans)
    scale = (WIDTH - LEFT - RIGHT) / (end - start)
    order = (*PRODUCER, WAIT, *CONSUMER)
    names = [name for name in order if any(span.stage == name for span in spans)]
    names += sorted({span.stage for span in spans} - set(names))
    parts: list[str] = []
    y = float(TOP)
    for index, name in enumerate(names):
        lanes = _lanes([span for span in spans if span.stage == name], 0.5 / scale)
        height = max(ROW, LANE * len(lanes))
        parts.append(f'<text x="{LEFT - 6}" y="{y + height / 2 + 4:.1f}" text-anchor="end">{esc(name)}</text>')
        thick = height / len(lanes)
        for lane, stretches in enumerate(lanes):
            for begin, finish in stretches:
                x, width = LEFT + (begin - start) * scale, max((finish - begin) * scale, 0.5)
                parts.append(
                    f'<rect class="f{index % 8}" x="{x:.1f}" y="{y + lane * thick:.1f}" '
                    f'width="{width:.1f}" height="{thick - 1:.1f}"/>'
                )
        y += height + GAP
    drawing = "".join([*_marks(shown, start, end, scale, y), *parts])
    first, last = shown[0][0], shown[-1][0]
    title = f"Timeline of steps {first} to {last}" if last > first else f"Timeline of step {first}"
    spoken = f"{title}: " + "; ".join(f"{name} {_covered(spans, name):.2f} seconds" for name in names)
    note = "seconds; dashed lines are the starts of steps, and stretches side by side overlapped"
    return figure(title, spoken, drawing, "", note, (WIDTH, int(y) + BOTTOM), wide=True)


def last_steps(rows: Timeline) -> list[tuple[int, Span]]:
    """Rows of the last STEPS steps of the process that wrote last: seconds start anew where a run was continued."""
    kept: list[tuple[int, Span]] = []
    begins: dict[int, float] = {}
    for step, span in rows:
        if math.isfinite(span.start) and math.isfinite(span.end):
            begins[step] = min(begins.get(step, math.inf), span.start)
    steps: list[int] = []
    for step in sorted(begins, reverse=True)[:STEPS]:
        if steps and begins[step] > begins[steps[-1]]:
            break
        steps.append(step)
    wanted = set(steps)
    kept = [(step, span) for step, span in rows if step in wanted and math.isfinite(span.start + span.end)]
    return sorted(kept, key=lambda row: row[0])


def _lanes(spans: Sequence[Span], close: float) -> list[list[tuple[float, float]]]:
    """Stretches in as few lanes as they need without overlap, MAX_LANES at most; within a lane those nearer than
    `close` seconds are one. What finds no lane lies over the last."""
    lanes: list[list[tuple[float, float]]] = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        free = next((lane for lane in lanes if lane[-1][1] <= span.start + close), None)
        if free is None and len(lanes) < MAX_LANES:
            lanes.append([(span.start, span.end)])
            continue
        lane = free if free is not None else lanes[-1]
        begin, end = lane[-1]
        if span.start <= end + close:
            lane[-1] = (begin, max(end, span.end))
        else:
            lane.append((span.start, span.end))
    return lanes


def _marks(shown: Timeline, start: float, end: float, scale: float, bottom: float) -> list[str]:
    """Starts of steps, and the seconds' axis."""
    parts = []
    for step in sorted({step for step, _ in shown}):
        begin = min(span.start for number, span in shown if number == step)
        x = LEFT + max(0.0, begin - start) * scale
        parts.append(f'<line class="level" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{bottom:.1f}"/>')
        parts.append(f'<text x="{x + 3:.1f}" y="{TOP - 8}">step {step}</text>')
    ticks = nice_ticks(0.0, end - start, 10)
    gap = ticks[1] - ticks[0] if len(ticks) > 1 else 0.0
    for tick in ticks:
        x = LEFT + tick * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom:.1f}"/>')
        label = tick_label(tick, gap)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">{label}</text>')
    return parts


def _covered(spans: Sequence[Span], name: str) -> float:
    return sum(span.end - span.start for span in spans if span.stage == name)


def roles_table(data: RunData) -> Raw:
    """Busy, idle and waiting seconds by role, and the critical path, summed over the run; nothing where none were
    logged."""
    names = list(dict.fromkeys(name.split("/")[1] for name in data.names("role_s/") if name.count("/") == 2))
    parts = []
    if names:
        rows = []
        for role in names:
            busy, idle, waiting = (_total(data, f"role_s/{role}/{what}") for what in ("busy", "idle", "waiting"))
            whole = (busy or 0.0) + (idle or 0.0)
            rows.append((role, *(_seconds(value, whole) for value in (busy, idle, waiting))))
        parts.append(table(("role", "busy", "idle", "of that, waiting for samples"), rows, "Seconds by role"))
    held = {name.split("/", 1)[1]: _total(data, name) or 0.0 for name in data.names("critical_path_s/")}
    whole = sum(held.values())
    if whole > 0:
        rows = [(stage, _seconds(value, whole)) for stage, value in sorted(held.items(), key=lambda item: -item[1])]
        parts.append(table(("stage", "held the run up for"), rows, "Critical path"))
    return Raw("".join(parts))


def _total(data: RunData, name: str) -> float | None:
    values = [value for _, value in data.series(name) if value is not None]
    return sum(values) if values else None


def _seconds(value: float | None, whole: float) -> str:
    if value is None:
        return "–"
    return f"{value:.1f} s ({value / whole:.0%})" if whole > 0 else f"{value:.1f} s"
