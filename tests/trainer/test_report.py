"""The report: right figures, self-contained, and honest about runs that are unfinished or damaged."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from omni_portable.contracts.errors import RunDirectoryError
from omni_portable.trainer.report import write_report
from omni_portable.trainer.report.outcome import Outcome, read_outcome
from omni_portable.trainer.report.read import read_run
from omni_portable.trainer.report.summary import _figures
from tests.trainer.synthetic_run import write_run, write_validation

VOID = {"meta", "link", "img", "br", "line", "path", "rect", "circle"}


class Checker(HTMLParser):
    """Collects text and references, and checks that elements nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.alts: list[str] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.references += [value for name, value in attrs if name in ("src", "href")]
        self.ids += [values["id"]] if "id" in values else []
        if tag == "img":
            self.alts.append(values.get("alt", ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        return

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data + " "


def parsed(path: Path) -> Checker:
    checker = Checker()
    checker.feed(path.read_text(encoding="utf-8"))
    assert checker.open == []
    return checker


def test_a_finished_run(tmp_path):
    path = write_report(write_run(tmp_path / "run"))
    assert path == tmp_path / "run" / "report.html"
    page = parsed(path)
    for part in (
        "mean score rose from 0.410 to 0.710: +0.300 ± 0.027, 11.2 standard errors",
        "0.410 ± 0.020",
        "+11.2 σ",
        "finished",
        "12 prompts x 16 samples",
        "reads: “3A”",
        "Test CPU <16 cores>",
        "at most 0.001 (consistency.max_logprob_gap)",
        "algorithm.clip_ratio=1.00e-05",
        "other thread counts",
        "5.00e-07",
        "not run",
        "may stand",
        "Scorer ocr",
    ):
        assert part in page.text, part
    assert "unfinished" not in page.text
    assert len(page.alts) == 16
    assert all("score" in alt for alt in page.alts)


def test_it_refers_to_nothing_outside(tmp_path):
    path = write_report(write_run(tmp_path / "run"))
    page = parsed(path)
    assert all(reference.startswith(("data:", "#")) for reference in page.references)
    assert {reference[1:] for reference in page.references if reference.startswith("#")} <= set(page.ids)
    assert not re.search(r"https?://|@import|url\(", path.read_text())
    assert path.stat().st_size < 300_000


def test_texts_of_a_run_are_escaped(tmp_path):
    text = write_report(write_run(tmp_path / "run")).read_text()
    assert '"0A" <b>&' not in text
    assert "&quot;0A&quot; &lt;b&gt;&amp;" in text


def test_an_unfinished_run(tmp_path):
    page = parsed(write_report(write_run(tmp_path / "run", steps=5, finished=False)))
    assert "unfinished" in page.text
    assert "5 of 20 steps" in page.text
    assert "The held-out score is 0.410" in page.text
    assert "summary.json does not exist (yet)" in page.text
    assert len(page.alts) == 8


def test_a_run_that_has_only_started(tmp_path):
    (tmp_path / "config.yaml").write_text("trainer: {total_steps: 20}\n")
    page = parsed(write_report(tmp_path))
    assert "No validation has run" in page.text
    assert "No step has run yet" in page.text


def test_metrics_alone_are_enough(tmp_path):
    run_dir = write_run(tmp_path / "run")
    for path in run_dir.iterdir():
        if path.name != "metrics.jsonl" and path.is_file():
            path.unlink()
    outcome = read_outcome(read_run(run_dir))
    assert (outcome.before, outcome.after) == (0.41, 0.71)
    assert outcome.error == pytest.approx((0.02**2 + 0.018**2) ** 0.5)
    parsed(write_report(run_dir))


def test_a_torn_last_line_is_left_out_and_said(tmp_path):
    run_dir = write_run(tmp_path / "run", steps=6, finished=False)
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "reward/me')
    assert read_run(run_dir).last_step == 6
    assert "last line of metrics.jsonl is incomplete" in parsed(write_report(run_dir)).text


def test_damage_elsewhere_is_an_error(tmp_path):
    run_dir = write_run(tmp_path / "run")
    path = run_dir / "metrics.jsonl"
    good = path.read_text()
    path.write_text(good.replace('{"step": 2,', '{"step": 2,,'))
    with pytest.raises(RunDirectoryError, match="line 3"):
        write_report(run_dir)
    path.write_text(good.replace('{"step": 2,', '{"stepp": 2,'))
    with pytest.raises(RunDirectoryError, match="no step"):
        write_report(run_dir)
    path.write_text(good)
    (run_dir / "summary.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"summary\.json is damaged"):
        write_report(run_dir)


def test_a_folder_that_is_no_run(tmp_path):
    write_run(tmp_path / "runs" / "good")
    with pytest.raises(RunDirectoryError, match="neither config.yaml nor metrics.jsonl") as caught:
        write_report(tmp_path / "runs")
    assert str(tmp_path / "runs" / "good") in str(caught.value)
    with pytest.raises(RunDirectoryError, match="there is no run directory"):
        write_report(tmp_path / "runs" / "missing")
    assert not (tmp_path / "runs" / "missing").exists()


def test_the_destination(tmp_path):
    run_dir = write_run(tmp_path / "run")
    assert write_report(run_dir, tmp_path / "new" / "page.html").is_file()
    assert write_report(run_dir, tmp_path / "new") == tmp_path / "new" / "report.html"
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl"):
        write_report(run_dir, run_dir / "metrics.jsonl" / "report.html")


def test_two_rows_of_one_step_are_merged_and_undefined_values_leave_a_gap(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "reward/mean": 0.5, "x": null}\n{"step": 1, "validation/reward_mean": 0.6}\n{"step": 2, "x": NaN}'
    )
    data = read_run(tmp_path)
    assert data.rows[1] == {"reward/mean": 0.5, "x": None, "validation/reward_mean": 0.6}
    assert data.series("x") == [(1, None), (2, None)]


def test_a_fall_is_called_a_fall(tmp_path):
    run_dir = write_run(tmp_path / "run")
    summary = json.loads((run_dir / "summary.json").read_text()) | {"after": 0.40}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    outcome = read_outcome(read_run(run_dir))
    assert not outcome.clear
    assert "fell from 0.410 to 0.400" in outcome.sentence()
    assert "chance can do as much" in outcome.sentence()
    assert 'class="card bad"' in write_report(run_dir).read_text()


def test_an_exceeded_limit_is_shown(tmp_path):
    run_dir = write_run(tmp_path / "run")
    path = run_dir / "metrics.jsonl"
    path.write_text(path.read_text().replace('"rollout_corr/logprob_abs_diff/max": 4e-05', '"rollout_corr/logprob_abs_diff/max": 0.5', 1))  # fmt: skip # noqa: E501
    assert ">exceeded<" in write_report(run_dir).read_text()


def test_large_pictures_are_scaled_down_to_keep_the_report_small(tmp_path):
    run_dir = write_run(tmp_path / "run", finished=False)
    write_validation(run_dir, 20, 0.7, count=40, size=(1024, 1024))
    write_validation(run_dir, 10, 0.7, count=1)
    path = write_report(run_dir)
    assert path.stat().st_size < 3_000_000
    assert "data:image/jpeg;base64" in path.read_text()


def test_many_pairs_are_cut_off_with_a_note(tmp_path):
    run_dir = tmp_path / "run"
    write_run(run_dir, finished=False)
    (run_dir / "metrics.jsonl").unlink()
    write_validation(run_dir, 5, 0.7, count=30)
    write_validation(run_dir, 7, 0.7, count=30)
    for step in ("000000",):
        for path in sorted((run_dir / "validation" / f"step_{step}").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    page = parsed(write_report(run_dir))
    assert len(page.alts) == 48
    assert "6 more are in the run directory" in page.text


def test_odd_environments_do_not_break_the_report(tmp_path):
    run_dir = write_run(tmp_path / "run")
    for odd in ({"determinism": "not asked for"}, {"attention": {}, "versions": None, "device": None}, {"x": {}}):
        (run_dir / "environment.json").write_text(json.dumps(odd))
        parsed(write_report(run_dir))


def test_reports_load_without_torch():
    code = "import sys, omni_portable.trainer.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\njunk", b"text"])
def test_a_damaged_picture_is_shown_as_missing(tmp_path, content):
    run_dir = write_run(tmp_path / "run")
    (run_dir / "validation" / "step_000000" / "images" / "0000.png").write_bytes(content)
    assert parsed(write_report(run_dir)).text.count("no image") == 1


def test_lost_rows_are_noted(tmp_path):
    run_dir = write_run(tmp_path / "run")
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    (run_dir / "metrics.jsonl").write_text("\n".join(line for line in lines if '"step": 7,' not in line))
    assert "lacks the rows of 1 steps, the first of step 7" in parsed(write_report(run_dir)).text


@pytest.mark.parametrize("value", [None, "x", [], math.inf, 10**400])
def test_a_summary_that_holds_no_numbers_is_damaged(tmp_path, value):
    run_dir = write_run(tmp_path / "run")
    summary = json.loads((run_dir / "summary.json").read_text())
    (run_dir / "summary.json").write_text(json.dumps(summary | {"before": value}))
    with pytest.raises(RunDirectoryError, match="summary.json is damaged: 'before' is no number"):
        write_report(run_dir)


@pytest.mark.parametrize("name", ["summary.json", "environment.json", "config.yaml", "metrics.jsonl"])
def test_nesting_that_python_does_not_read(tmp_path, name):
    run_dir = write_run(tmp_path / "run")
    (run_dir / name).write_text("[" * 100_000 + "\n" + "{}\n")
    with pytest.raises(RunDirectoryError, match=f"{name} is damaged"):
        write_report(run_dir)


@pytest.mark.parametrize("value", ["x", 3, [1], {"a": 1}])
@pytest.mark.parametrize("name", ["attention", "attention_verified", "determinism", "device", "versions"])
def test_an_environment_of_any_shape_is_shown(tmp_path, name, value):
    run_dir = write_run(tmp_path / "run")
    environment = json.loads((run_dir / "environment.json").read_text())
    (run_dir / "environment.json").write_text(json.dumps(environment | {name: value}))
    parsed(write_report(run_dir))


@pytest.mark.parametrize("change", [{"score": 10**400}, {"score": "x"}, {"prompt_id": []}, {"sample_index": {}}])
def test_samples_of_any_shape_are_shown(tmp_path, change):
    run_dir = write_run(tmp_path / "run")
    path = run_dir / "validation" / "step_000000" / "samples.jsonl"
    rows = [json.loads(line) | change for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parsed(write_report(run_dir))


def test_a_folder_whose_name_is_no_text(tmp_path):
    run_dir = write_run(tmp_path / os.fsdecode(b"run-\xfc"))
    assert r"run-\udcfc" in parsed(write_report(run_dir)).text


@pytest.mark.parametrize(
    ("before", "after", "samples", "error", "expected"),
    [
        (0.77111, 0.77108, 4, 0.01, "mean score stayed at 0.771: 0.000 ± 0.010, 0.0 standard errors (chance can"),
        (0.77049, 0.77051, 4, 0.01, "rose from 0.770 to 0.771: +0.001 ± 0.010"),
        (-0.0001, -0.0002, 4, 0.0, "mean score stayed at 0.000."),
        (0.5, 0.6, 1, 0.0, "On 1 held-out sample the score rose from 0.500 to 0.600; how much of it is chance, one"),
    ],
)
def test_the_sentence_speaks_of_what_it_shows(before, after, samples, error, expected):
    outcome = Outcome(before, error, after, error, error, samples=samples)
    assert expected in outcome.sentence()
    page = str(_figures(outcome))
    assert "-0.0" not in outcome.sentence() + page
    assert "+0.000" not in outcome.sentence() + page
    assert ("±" in page) == (samples > 1)


@pytest.mark.parametrize(
    ("number", "problem", "remedy"),
    [
        (errno.ENOSPC, "no space left", "free some space, or name a file on another disk with --out"),
        (errno.EROFS, "cannot write", "name another file with --out"),
        (errno.EIO, "cannot write", "look after the disk, or name a file on another one with --out"),
    ],
)
def test_a_disk_in_the_way_of_a_report_has_the_cure_of_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, problem: str, remedy: str
) -> None:
    run_dir = write_run(tmp_path / "run")
    before = sorted(path.name for path in run_dir.iterdir())

    def fails(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(RunDirectoryError, match=problem) as refused:
        write_report(run_dir)
    assert remedy in refused.value.remedy
    assert "resume" not in refused.value.remedy
    assert "trainer.run_dir" not in refused.value.remedy
    assert sorted(path.name for path in run_dir.iterdir()) == before


def test_waiting_for_samples_takes_no_share_from_drawing_them(tmp_path):
    run = write_run(tmp_path / "run")
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    shares = {}
    for waited in (False, True):
        for row in rows:
            if waited and "timing_s/rollout" in row:
                row["timing_s/wait"] = row["timing_s/rollout"] + row["timing_s/reward"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        page = write_report(run).read_text()
        found = re.findall(r'<th scope="row">(\w+)</th><td[^>]*>[\d.]+</td><td[^>]*>[\d.]+</td><td[^>]*>(\d+)%', page)
        shares[waited] = {stage: int(share) for stage, share in found}
    assert shares[True] == shares[False]
    assert {"rollout", "reward", "update", "sync"} <= set(shares[True])
    assert 98 <= sum(shares[True].values()) <= 102


@pytest.mark.parametrize("ahead", [False, True])
def test_staleness_is_drawn_where_there_is_some(tmp_path: Path, ahead: bool):
    run_dir = write_run(tmp_path / "run")
    path = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        late = float(ahead and row["step"] > 1)
        row |= {"replay/staleness/mean": late / 2, "replay/staleness/max": late}
        row |= {"rollout/interrupted/continued": 8 * late, "rollout/interrupted/restarted": 0.0}
        row |= {"policy_lag/logprob_abs_diff/mean": 0.01} if late else {}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = write_report(run_dir).read_text()
    charts = ("policy versions from drawing a group to training on it", "Interrupted requests", "Policy lag")
    assert [chart in text for chart in charts] == [ahead] * 3
