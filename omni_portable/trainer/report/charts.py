"""Charts as inline SVG: colours come from the page's style sheet, so that they follow light and dark themes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omni_portable.trainer.report.markup import Raw, esc, number
from omni_portable.trainer.report.read import Point

WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 10, 34
MAX_POINTS = 400


@dataclass(frozen=True)
class Line:
    """One curve. `errors` maps a step to the standard error drawn around its point."""

    label: str
    points: Sequence[Point]
    errors: Mapping[int, float | None] | None = None
    markers: bool = False


@dataclass(frozen=True)
class _Frame:
    """Maps data to pixels."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)


def line_chart(
    title: str, lines: Sequence[Line], note: str = "", level: float | None = None, x_label: str = "step"
) -> Raw:
    """Curves over steps; nothing when no line has a defined point.

    Args:
        note: what the reader should know about it.
        level: a horizontal reference line.
        x_label: what the points are numbered by.
    """
    drawn = [line for line in lines if any(value is not None for _, value in line.points)]
    if not drawn:
        return Raw("")
    frame = _frame(drawn, level)
    parts = [_axes(frame, x_label=x_label)]
    if level is not None:
        y = frame.y(level)
        parts.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    parts += [_curve(frame, line, index) for index, line in enumerate(drawn)]
    spoken = f"{title}: " + "; ".join(f"{line.label} {_in_words(line.points)}" for line in drawn)
    names = legend([line.label for line in drawn]) if len(drawn) > 1 else ""
    return figure(title, spoken, "".join(parts), names, note)


def stacked_bars(title: str, steps: Sequence[int], stacks: Mapping[str, Sequence[float]], note: str = "") -> Raw:
    """Bars per step (or per run of steps when there are many), one layer per name."""
    steps, stacks = _binned(steps, stacks)
    totals = [sum(values[i] for values in stacks.values()) for i in range(len(steps))]
    if not steps or max(totals) <= 0:
        return Raw("")
    frame = _Frame(-0.5, len(steps) - 0.5, 0.0, max(totals) * 1.05)
    width = max(1.0, (WIDTH - LEFT - RIGHT) / len(steps) * 0.8)
    parts, base = [_axes(frame, x_labels=steps)], [0.0] * len(steps)
    for layer, values in enumerate(stacks.values()):
        for i, value in enumerate(values):
            top, bottom = frame.y(base[i] + value), frame.y(base[i])
            if value > 0:
                parts.append(
                    f'<rect class="f{layer % 8}" x="{frame.x(i) - width / 2:.1f}" y="{top:.1f}" '
                    f'width="{width:.1f}" height="{max(bottom - top, 0.3):.1f}"/>'
                )
            base[i] += value
    spoken = f"{title}: " + "; ".join(f"{name} {sum(v) / len(v):.2f} on average" for name, v in stacks.items())
    return figure(title, spoken, "".join(parts), legend(list(stacks), filled=True), note)


def figure(
    title: str,
    spoken: str,
    drawing: str,
    names: str,
    note: str,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    wide: bool = False,
) -> Raw:
    """A drawing of `size` pixels with its title, note and legend; a wide one takes a whole line of the page."""
    tail = f'<span class="note">{esc(note)}</span>' if note else ""
    start = '<figure class="wide">' if wide else "<figure>"
    return Raw(
        f"{start}<figcaption><b>{esc(title)}</b> {tail}</figcaption>"
        f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{esc(spoken)}">{drawing}</svg>{names}</figure>'
    )


def legend(labels: Sequence[str], filled: bool = False) -> str:
    kind = "f" if filled else "s"
    shape = '<rect width="12" height="10" y="1" class="{c}"/>' if filled else '<path d="M0 6H22" class="{c}"/>'
    items = "".join(
        f'<li><svg width="24" height="12" aria-hidden="true">{shape.format(c=f"{kind}{i % 8}")}</svg>{esc(label)}</li>'
        for i, label in enumerate(labels)
    )
    return f'<ul class="legend">{items}</ul>'


def _frame(lines: Sequence[Line], level: float | None) -> _Frame:
    steps = [step for line in lines for step, _ in line.points]
    values = [] if level is None else [level]
    for line in lines:
        for step, value in line.points:
            if value is not None:
                error = (line.errors or {}).get(step) or 0.0
                values += [value - error, value + error]
    low, high = min(values), max(values)
    scale = max(abs(low), abs(high))
    if scale < 1e-300:
        low, high, scale = 0.0, 1.0, 1.0  # a flat zero lies on the floor, not in the middle of a made-up range
    # Differences in the last digits of equal values are rounding, not a curve.
    margin = (high - low) * 0.06 if high - low > scale * 1e-9 else scale * 0.05
    return _Frame(min(steps), max(max(steps), min(steps) + 1), low - margin, high + margin)


def _axes(frame: _Frame, x_labels: Sequence[int] | None = None, x_label: str = "step") -> str:
    parts = []
    ticks = nice_ticks(frame.y0, frame.y1)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.0
    for tick in ticks:
        y = frame.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick_label(tick, step)}</text>')
    if x_labels is None:
        marks = [(tick, tick_label(tick)) for tick in nice_ticks(frame.x0, frame.x1, 6) if tick == int(tick)]
    else:
        stride = max(1, math.ceil(len(x_labels) / 8))
        marks = [(i, str(step)) for i, step in enumerate(x_labels) if i % stride == 0]
    for position, label in marks:
        parts.append(f'<text x="{frame.x(position):.1f}" y="{HEIGHT - 17}" text-anchor="middle">{label}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">{esc(x_label)}</text>')
    return "".join(parts)


def _curve(frame: _Frame, line: Line, index: int) -> str:
    parts = []
    for step, error in (line.errors or {}).items():
        value = dict(line.points).get(step)
        if value is not None and error:
            x, low, high = frame.x(step), frame.y(value - error), frame.y(value + error)
            parts.append(f'<path class="s{index % 8} bar" d="M{x:.1f} {low:.1f}V{high:.1f}"/>')
    run: list[str] = []
    for step, value in [*thinned(line.points), (0, None)]:
        if value is not None:
            run.append(f"{frame.x(step):.1f} {frame.y(value):.1f}")
        elif run:
            # A path of one point draws a dot, because the style sheet gives curves round ends.
            parts.append(f'<path class="s{index % 8}" d="M{"L".join(run if len(run) > 1 else run * 2)}"/>')
            run = []
    if line.markers:
        dots = [(frame.x(step), frame.y(value)) for step, value in line.points if value is not None]
        parts += [f'<circle class="d{index % 8}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in dots]
    return "".join(parts)


def thinned(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most about `limit` points that keep every bucket's lowest and highest value, so that no peak is hidden."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(len(points) * 2 / limit)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        bucket = [(step, value) for step, value in points[start : start + size] if value is not None]
        if bucket:
            ends = {min(bucket, key=lambda point: point[1]), max(bucket, key=lambda point: point[1])}
            kept += sorted(ends)
    return kept


def _binned(
    steps: Sequence[int], stacks: Mapping[str, Sequence[float]], limit: int = 60
) -> tuple[list[int], dict[str, list[float]]]:
    size = max(1, math.ceil(len(steps) / limit))
    starts = range(0, len(steps), size)
    means = {
        name: [sum(part) / len(part) for part in (values[i : i + size] for i in starts)]
        for name, values in stacks.items()
    }
    return [steps[i] for i in starts], means


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values inside [low, high], about `count` of them."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) if abs(step) > 1e-9 else index * step for index in range(first, last + 1)]


def tick_label(value: float, step: float = 0.0) -> str:
    """A tick's text with as many digits as tell it from its neighbours, `step` away."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.10g}"
    digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(step) + 1e-9) if step > 0 else 1
    return f"{value:.{max(0, digits)}e}"


def _in_words(points: Sequence[Point]) -> str:
    values = [(step, value) for step, value in points if value is not None]
    (first_step, first), (last_step, last) = values[0], values[-1]
    if len(values) == 1:
        return f"{number(first)} at step {first_step}"
    return f"{number(first)} at step {first_step}, {number(last)} at step {last_step}"
