"""Profiles: from files and from runs; what is refused, and that schema and reader agree."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_portable.contracts.errors import ConfigError, RunDirectoryError
from omni_portable.planning.placement.advise import Request, advise
from omni_portable.planning.placement.fit import fit
from omni_portable.planning.placement.measured import profile_of_run
from omni_portable.planning.placement.parse import PLACED, SECONDS, TOP, parse_profile
from omni_portable.planning.placement.profile import (
    SCHEMA_FILE,
    Placement,
    Profile,
    Row,
    load_profile,
    profile_document,
)

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "placement_minicpm_o.json"
ROW = {"mode": "separate_async", "devices": 4, "rollout_devices": 1, "prompts": 8, "tokens": 9, "step_s": 5.0}


def document(**changes: Any) -> dict[str, Any]:
    row = ROW | changes
    return {
        "schema": "omni-portable/placement-profile",
        "schema_version": 1,
        "rows": [{name: value for name, value in row.items() if value is not ...}],
    }


def test_a_profile_comes_back_as_it_was_written() -> None:
    profile = load_profile(PUBLISHED)
    assert parse_profile(json.loads(json.dumps(profile_document(profile))), "copy") == profile


def test_the_schema_names_the_keys_that_are_read() -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    assert set(schema["properties"]) == TOP
    assert set(schema["$defs"]["row"]["properties"]) == PLACED | {"tokens", *SECONDS}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "together"}, r"rows\[0\]: 'mode' is 'together'"),
        ({"devices": 0}, "'devices' is 0"),
        ({"devices": True}, "'devices' is True"),
        ({"rollout_devices": 4}, "4 of 4 devices belong to rollout, which leaves none for the trainer"),
        ({"rollout_devices": ...}, "'rollout_devices' is None"),
        ({"rollout_devices": 3, "tensor_parallel": 2}, "replicas of 2 devices do not divide 3"),
        ({"mode": "sync"}, "under 'sync' rollout uses all devices"),
        ({"step_s": ...}, "a row needs 'step_s', or 'rollout_s' and 'train_s'"),
        ({"step_s": ..., "rollout_s": 1.0}, "a row needs 'step_s'"),
        ({"step_s": 0}, "'step_s' is 0"),
        ({"step_s": float("nan")}, "'step_s' is nan"),
        ({"train_s": -1}, "'train_s' is -1"),
        ({"tokens": "many"}, "'tokens' is 'many'"),
        ({"switch_s": 1.0}, "'switch_s' is of mode 'sync' only"),
        ({"step_s": 10**400}, "'step_s' is 10"),
        ({"rollout_s": 0, "train_s": 0.0}, "'rollout_s' and 'train_s' are both 0"),
        ({"seconds": 1.0}, "unknown key 'seconds'"),
    ],
)
def test_rows_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_profile(document(**changes), "the file")
    assert caught.value.remedy or caught.value.choices


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "other"}, "is no placement profile"),
        ({"schema_version": 2}, "is no placement profile"),
        ({"rows": []}, "at least one measurement"),
        ({"rows": "none"}, "at least one measurement"),
        ({"rows": [3]}, r"rows\[0\] must be an object"),
        ({"tensor_parallel_efficiency": {"two": 1.0}}, "the key is no number of devices"),
        ({"tensor_parallel_efficiency": {"9" * 5000: 1.0}}, "the key is no number of devices"),
        ({"tensor_parallel_efficiency": {"\u0663": 1.0}}, "the key is no number of devices"),
        ({"tensor_parallel_efficiency": {"2": 0}}, "tensor_parallel_efficiency.2 is 0"),
        ({"context_tokens": -1}, "'context_tokens' is -1"),
        ({"context_tokens": 0.5}, "'context_tokens' is 0.5"),
        ({"interrupted": "maybe"}, "'interrupted' is 'maybe'"),
        ({"samples_per_prompt": 1.5}, "'samples_per_prompt' is 1.5"),
        ({"devices": 4}, "unknown key 'devices'"),
    ],
)
def test_documents_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_profile(document() | changes, "the file")
    assert caught.value.remedy or caught.value.choices


@pytest.mark.parametrize("content", [None, b"{", b"[1]", b"\xff\xfe"])
def test_files_that_are_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        load_profile(path)


def test_a_file_without_end_is_not_read_to_it() -> None:
    with pytest.raises(ConfigError, match="is longer than"):
        load_profile(Path("/dev/zero"))


CONFIG = """recipe: my/recipe.yaml
trainer: {mode: MODE, sync_interval: 4}
data: {train_batch_size: 12}
rollout: {n: 16}
dataplane: {max_staleness: 2}
"""


def write_metrics(run_dir: Path, mode: str, lengths: list[float]) -> Path:
    """Steps of 3 s rollout (and 0.01 s per token), 2 s training; the first one takes ten times as long."""
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(CONFIG.replace("MODE", mode))
    lines = [json.dumps({"step": 0, "validation/reward_mean": 0.1})]
    for step, tokens in enumerate([lengths[0], *lengths], start=1):
        slow = 10 if step == 1 else 1
        row = {
            "step": step,
            "timing_s/step": 6.0 * slow,
            "timing_s/rollout": 99.0,
            "role_s/rollout/busy": (3.0 + 0.01 * tokens) * slow,
            "timing_s/update": 2.0 * slow,
            "timing_s/sync": 0.5,
            "role_s/reward/busy": 0.25,
            "actor/optimizer_steps": 2.0,
            "perf/rollout_samples": 12.0 * 16,
        }
        lines.append(json.dumps(row | ({"response/length_mean": tokens} if tokens else {})))
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return run_dir


def test_a_run_gives_medians_without_its_warm_up(tmp_path: Path) -> None:
    profile = profile_of_run(write_metrics(tmp_path / "run", "sync", [0.0] * 5))
    (row,) = profile.rows
    assert (row.placement.mode, row.placement.devices, row.placement.prompts) == ("sync", 1, 12)
    assert (row.step_s, row.rollout_s, row.train_s, row.reward_s, row.sync_s) == (6.0, 3.0, 2.0, 0.25, 0.5)
    assert (profile.samples_per_prompt, profile.interrupted, profile.name) == (16, "restart", "my/recipe.yaml")
    costs = fit(profile)[0].costs
    assert costs.rollout_fixed == pytest.approx(3.0 / 12)
    assert costs.train_fixed == pytest.approx(2.0 / 12)
    assert (costs.reward, costs.sync) == (pytest.approx(0.25 / 12), 0.5)


def placed_run(run_dir: Path, mode: str, ranks: int, replicas: int) -> Path:
    write_metrics(run_dir, mode, [0.0] * 2)
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    config["actor"] = {"world_size": ranks}
    config.setdefault("rollout", {})["replicas"] = replicas
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
    return run_dir


def test_a_run_in_turn_on_the_devices_of_ranks_says_how_many(tmp_path: Path) -> None:
    assert profile_of_run(placed_run(tmp_path / "even", "sync", 4, 4)).rows[0].placement.devices == 4
    uneven = placed_run(tmp_path / "uneven", "sync", 4, 1)
    with pytest.raises(ConfigError, match="trained in 4 processes and drew in 1 in turn") as caught:
        profile_of_run(uneven)
    assert all(part in str(caught.value) for part in ("rollout.replicas=4", "--measured-devices"))
    assert profile_of_run(uneven, devices=4).rows[0].placement.devices == 4


def test_a_separate_run_says_how_many_devices_each_side_had(tmp_path: Path) -> None:
    run_dir = placed_run(tmp_path / "run", "separate_async", 2, 3)
    placed = profile_of_run(run_dir).rows[0].placement
    assert (placed.train_devices, placed.rollout_devices, placed.replicas) == (2, 3, 3)
    placed = profile_of_run(run_dir, tensor_parallel=2).rows[0].placement
    assert (placed.train_devices, placed.rollout_devices, placed.replicas) == (2, 6, 3)


def test_a_separate_run_has_devices_on_both_sides_and_counts_rounds_between_syncs(tmp_path: Path) -> None:
    run_dir = write_metrics(tmp_path / "run", "separate_async", [50.0] * 4)
    placed = profile_of_run(run_dir).rows[0].placement
    assert (placed.devices, placed.rollout_devices, placed.max_staleness, placed.sync_rounds) == (2, 1, 2, 2)
    placed = profile_of_run(run_dir, devices=8, rollout_devices=6).rows[0].placement
    assert (placed.train_devices, placed.replicas) == (2, 6)
    with pytest.raises(ConfigError, match="leaves none for the trainer"):
        profile_of_run(run_dir, devices=2, rollout_devices=2)


def test_where_rollout_runs_ahead_its_seconds_are_of_the_samples_that_it_drew(tmp_path: Path) -> None:
    """Not of the steps in which it had nothing left to draw."""
    run_dir = write_metrics(tmp_path / "run", "fully_async", [0.0] * 6)
    path = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, rounds in zip(rows[1:], (3, 2, 1, 1, 0, 0, 0), strict=True):
        drawn = {"role_s/rollout/busy": 5.0 * rounds, "role_s/reward/busy": 0.5 * rounds}
        row |= drawn | {"perf/rollout_samples": 12.0 * 16 * rounds}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = profile_of_run(run_dir).rows
    assert (found.rollout_s, found.reward_s) == (pytest.approx(5.0), pytest.approx(0.5))
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows[:2], *rows[5:])))
    with pytest.raises(RunDirectoryError, match="no samples were drawn after the first step"):
        profile_of_run(run_dir)


def test_steps_of_different_lengths_tell_tokens_from_the_rest(tmp_path: Path) -> None:
    profile = profile_of_run(write_metrics(tmp_path / "run", "sync", [100.0, 100.0, 200.0, 200.0, 400.0, 400.0]))
    assert [row.tokens for row in profile.rows] == [100.0, 200.0, 400.0]
    assert profile.interrupted == "continue"
    costs = fit(profile)[0].costs
    assert costs.rollout_fixed == pytest.approx(3.0 / 12)
    assert costs.rollout_token == pytest.approx(0.01 / 12)


def test_the_last_line_of_a_run_may_be_cut_off_but_no_other(tmp_path: Path) -> None:
    run_dir = write_metrics(tmp_path / "run", "sync", [0.0] * 3)
    whole = (run_dir / "metrics.jsonl").read_text()
    (run_dir / "metrics.jsonl").write_text(whole + '{"step": 9, "timing')
    assert len(profile_of_run(run_dir).rows) == 1
    (run_dir / "metrics.jsonl").write_text('{"step": \n' + whole)
    with pytest.raises(RunDirectoryError, match="line 1 of"):
        profile_of_run(run_dir)


def test_runs_that_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no config.yaml"):
        profile_of_run(tmp_path)
    run_dir = write_metrics(tmp_path / "run", "sync", [0.0])
    (run_dir / "metrics.jsonl").unlink()
    with pytest.raises(RunDirectoryError, match="has no training step with timings"):
        profile_of_run(run_dir)
    (run_dir / "config.yaml").write_text("{")
    with pytest.raises(RunDirectoryError, match="is damaged"):
        profile_of_run(run_dir)


def test_the_published_document_is_not_changed_by_reading() -> None:
    value = json.loads(PUBLISHED.read_text())
    before = copy.deepcopy(value)
    parse_profile(value, "published")
    assert value == before


@pytest.mark.parametrize(
    ("key", "value"), [("train_batch_size", "many"), ("max_staleness", "[1]"), ("sync_interval", "-4"), ("n", "1.5")]
)
def test_a_run_whose_configuration_is_damaged(tmp_path: Path, key: str, value: str) -> None:
    run_dir = write_metrics(tmp_path / "run", "separate_async", [100.0, 100.0])
    text = re.sub(rf"\b{key}: \d+", f"{key}: {value}", CONFIG.replace("MODE", "separate_async"))
    (run_dir / "config.yaml").write_text(text)
    with pytest.raises(RunDirectoryError, match=rf"config.yaml is damaged: its .*{key}"):
        profile_of_run(run_dir)


def test_figures_beyond_all_measure_are_left_out(tmp_path: Path) -> None:
    run_dir = write_metrics(tmp_path / "run", "sync", [100.0, 100.0])
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "timing_s/rollout": 10**400, "timing_s/update": 1.0}) + "\n")
    assert len(profile_of_run(run_dir).rows) == 1


@pytest.mark.parametrize("metric", ["role_s/rollout/busy", "timing_s/update", "timing_s/step", "response/length_mean"])
def test_figures_below_nothing_name_their_line(tmp_path: Path, metric: str) -> None:
    run = write_metrics(tmp_path / "run", "sync", [4.0] * 3)
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | {metric: -3.0})
    path.write_text("\n".join(lines))
    with pytest.raises(RunDirectoryError, match=rf"line 3 of .*metrics.jsonl is damaged: its {metric} is -3") as caught:
        profile_of_run(run)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no trainer.mode"),
        ("[1, 2]", "has no trainer.mode"),
        ("trainer: {mode: sync}\ndata: {train_batch_size: 4}", "has no rollout.n"),
        ("trainer: {mode: sideways}\ndata: {train_batch_size: 4}\nrollout: {n: 4}", "trainer.mode is 'sideways'"),
        ("trainer: {mode: sync}\ndata: {train_batch_size: 0}\nrollout: {n: 4}", "data.train_batch_size is 0"),
        ("trainer: {mode: sync}\ndata: {train_batch_size: 4}\nrollout: {n: 1e99}", "rollout.n is "),
    ],
)
def test_a_run_is_not_taken_for_one_of_a_single_sample(tmp_path: Path, content: str, said: str) -> None:
    run = write_metrics(tmp_path / "run", "sync", [0.0] * 3)
    (run / "config.yaml").write_text(content)
    with pytest.raises(RunDirectoryError, match=f"config.yaml is damaged: it.*{said}") as caught:
        profile_of_run(run)
    assert "--profile" in str(caught.value.remedy)


def test_few_steps_are_said_to_be_few(tmp_path: Path) -> None:
    assert (
        "medians over 1 step, which are few, of" in profile_of_run(write_metrics(tmp_path / "a", "sync", [0.0])).source
    )
    assert "medians over 5 steps of" in profile_of_run(write_metrics(tmp_path / "b", "sync", [0.0] * 5)).source


def test_a_step_shorter_than_its_stages_is_said_to_be() -> None:
    short = Row(Placement("sync", 4, 4, 1, 8), 0.0, step_s=1.0, rollout_s=5.0, train_s=5.0)
    notes = advise(Profile("p", (short,)), Request(8)).notes
    assert any(
        "rows[0] contradicts itself: rollout and training in turn take 10 s of a step of 1 s" in n for n in notes
    )
    sound = dataclasses.replace(short, step_s=10.0)
    assert not any("contradicts" in note for note in advise(Profile("p", (sound,)), Request(8)).notes)


def test_a_profile_by_which_nothing_takes_time_is_refused() -> None:
    nothing = Row(Placement("sync", 4, 4, 1, 8), 0.0, rollout_s=0.0, train_s=0.0)
    with pytest.raises(ConfigError, match="takes no time at all"):
        advise(Profile("p", (nothing,)), Request(8))
