"""Charts: every point inside the frame, gaps kept, peaks never hidden."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omni_portable.trainer.report.charts import (
    HEIGHT,
    WIDTH,
    Line,
    line_chart,
    nice_ticks,
    stacked_bars,
    thinned,
    tick_label,
)

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)


def svg_of(chart: str) -> ET.Element:
    found = re.search(r"<svg viewBox.*?</svg>", chart, re.DOTALL)
    assert found
    return ET.fromstring(found.group())


@given(st.lists(st.one_of(st.none(), finite), min_size=1, max_size=30))
@example([5e-324])
@example([1.0, 1.0 + 2**-52, None, 1.0])
@example([-1e12, 1e12])
def test_curves_stay_inside_the_frame(values):
    chart = line_chart("t", [Line("a", list(enumerate(values)))])
    if all(value is None for value in values):
        assert chart == ""
        return
    for path in svg_of(chart).iter("path"):
        numbers = [float(text) for text in re.findall(r"-?\d+\.?\d*", path.attrib["d"])]
        assert all(0 <= x <= WIDTH for x in numbers[0::2])
        assert all(0 <= y <= HEIGHT for y in numbers[1::2])


@given(st.floats(min_value=-1e9, max_value=1e9), st.floats(min_value=1e-9, max_value=1e9))
def test_ticks_lie_inside_and_are_few(low, span):
    high = low + span
    if high - low < abs(low) * 1e-9:
        return
    ticks = nice_ticks(low, high)
    tolerance = (high - low) * 1e-6 + abs(low) * 1e-9
    assert 1 <= len(ticks) <= 11
    assert all(low - tolerance <= tick <= high + tolerance for tick in ticks)
    assert ticks == sorted(ticks)


def test_an_undefined_value_splits_the_curve():
    svg = svg_of(line_chart("t", [Line("a", [(1, 1.0), (2, 2.0), (3, None), (4, 1.0), (5, 3.0)])]))
    assert len(list(svg.iter("path"))) == 2


def test_a_single_point_is_drawn():
    svg = svg_of(line_chart("t", [Line("a", [(0, 0.5)])]))
    (path,) = svg.iter("path")
    assert path.attrib["d"].count(" ") == 2


def test_thinning_keeps_peaks():
    points = [(step, 0.0) for step in range(10_000)]
    points[7777] = (7777, 9.0)
    points[3] = (3, None)
    kept = thinned(points)
    assert (7777, 9.0) in kept
    assert len(kept) <= 401
    assert kept == sorted(kept)


def test_bars_add_up():
    svg = svg_of(stacked_bars("t", [1, 2], {"a": [1.0, 2.0], "b": [3.0, 0.0]}))
    heights = {rect.attrib["class"]: float(rect.attrib["height"]) for rect in svg.iter("rect")}
    assert heights["f1"] == pytest.approx(3 / 2 * heights["f0"], rel=0.02)
    assert len(list(svg.iter("rect"))) == 3


def test_many_steps_become_few_bars():
    svg = svg_of(stacked_bars("t", list(range(1000)), {"a": [1.0] * 1000}))
    assert len(list(svg.iter("rect"))) <= 60


def test_nothing_to_draw():
    assert line_chart("t", []) == ""
    assert stacked_bars("t", [1], {"a": [0.0]}) == ""


def test_charts_speak():
    chart = line_chart("Reward", [Line("mean", [(0, 0.25), (9, 0.5)])])
    assert 'aria-label="Reward: mean 0.250 at step 0, 0.500 at step 9"' in chart


@pytest.mark.parametrize(
    ("low", "high"), [(0.999e-4, 1.001e-4), (1e-6, 5e-6), (0.1, 0.9), (1e6, 1.00001e6), (-3.0, 40.0)]
)
def test_tick_labels_differ(low, high):
    ticks = nice_ticks(low, high)
    labels = [tick_label(tick, ticks[1] - ticks[0]) for tick in ticks]
    assert len(set(labels)) == len(labels)
