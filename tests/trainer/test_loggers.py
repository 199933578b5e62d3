"""Loggers: durable rows, exact resume, and no number that is not one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from PIL import Image

from omni_portable.contracts.errors import NonFiniteError, RunDirectoryError
from omni_portable.contracts.logger import MetricLogger
from omni_portable.trainer.loggers import jsonl, tensorboard
from omni_portable.trainer.loggers.jsonl import JsonlLogger
from omni_portable.trainer.loggers.tensorboard_writer import TensorBoardLogger
from omni_portable.trainer.loggers.values import LoggerOptions

PEARSON = "training/rollout_actor_probs_pearson_corr"


def rows(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def make(run_dir: Path, resumed_from: int | None = None) -> JsonlLogger:
    return JsonlLogger(LoggerOptions(), run_dir, resumed_from)


@pytest.mark.parametrize("spec", [jsonl.SPEC, tensorboard.SPEC])
def test_specs_name_a_logger(spec, tmp_path):
    logger = spec.load()(spec.options(), tmp_path, None)
    assert isinstance(logger, MetricLogger)
    logger.close()
    logger.close()


def test_rows_are_readable_while_the_run_goes_on(tmp_path):
    logger = make(tmp_path)
    logger.log(0, {"validation/reward_mean": 0.25})
    logger.log(1, {"reward/mean": 1})
    assert rows(tmp_path) == [{"step": 0, "validation/reward_mean": 0.25}, {"step": 1, "reward/mean": 1.0}]
    logger.close()


def write_history(run_dir: Path, torn: str = "") -> None:
    logger = make(run_dir)
    for step in range(6):
        logger.log(step, {"reward/mean": step / 10})
    logger.close()
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.write(torn)


def test_resuming_drops_later_rows_and_a_torn_line(tmp_path):
    write_history(tmp_path, torn='{"step": 6, "rew')
    logger = make(tmp_path, resumed_from=3)
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3]
    logger.log(4, {"reward/mean": 9.0})
    logger.close()
    assert rows(tmp_path)[-1] == {"step": 4, "reward/mean": 9.0}
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == [tmp_path / "metrics.jsonl"]


def test_a_torn_line_that_parses_is_dropped_by_its_step(tmp_path):
    write_history(tmp_path, torn='{"step": 6}')
    make(tmp_path, resumed_from=5).close()
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("start", [0, None])
def test_without_a_completed_step_the_history_starts_anew(tmp_path, start):
    write_history(tmp_path)
    make(tmp_path, start).close()
    assert rows(tmp_path) == []


def test_damage_in_the_middle_is_an_error_and_keeps_the_file(tmp_path):
    write_history(tmp_path)
    path = tmp_path / "metrics.jsonl"
    damaged = path.read_text().replace('{"step": 2,', '{"step": ,')
    path.write_text(damaged)
    with pytest.raises(RunDirectoryError, match="line 3"):
        make(tmp_path, resumed_from=4)
    assert path.read_text() == damaged


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("logger_class", [JsonlLogger, TensorBoardLogger])
def test_metrics_that_are_not_finite_stop_the_run(tmp_path, logger_class, value):
    logger = logger_class(LoggerOptions(), tmp_path, None)
    with pytest.raises(NonFiniteError, match="step 7.*actor/grad_norm"):
        logger.log(7, {"reward/mean": 1.0, "actor/grad_norm": value})
    logger.log(8, {PEARSON: value, "reward/mean": 1.0})
    logger.close()
    if logger_class is JsonlLogger:
        assert rows(tmp_path) == [{"step": 8, PEARSON: None, "reward/mean": 1.0}]
    else:
        assert list(scalars(tmp_path)) == ["reward/mean"]


def test_undefined_metrics_may_be_named_by_pattern(tmp_path):
    logger = JsonlLogger(LoggerOptions(undefined=["debug/*"]), tmp_path, None)
    logger.log(1, {"debug/x": math.nan})
    with pytest.raises(NonFiniteError, match="pearson"):
        logger.log(2, {PEARSON: math.nan})
    logger.close()


def test_an_unwritable_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="file"):
        make(tmp_path / "file")


def scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_resume_discards_later_points(tmp_path):
    first = TensorBoardLogger(LoggerOptions(), tmp_path, None)
    for step in range(5):
        first.log(step, {"reward/mean": float(step)})
    first.close()
    second = TensorBoardLogger(LoggerOptions(), tmp_path, 2)
    second.log(3, {"reward/mean": 30.0})
    second.close()
    assert scalars(tmp_path)["reward/mean"] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0)]


def test_tensorboard_keeps_images(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Image.new("RGB", (4, 2), (255, 0, 0)).save(tmp_path / "grid.png")
    logger = TensorBoardLogger(LoggerOptions(), tmp_path, None)
    logger.log_image(3, "validation/grid", tmp_path / "grid.png")
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (image,) = events.Images("validation/grid")
    assert (image.step, image.width, image.height) == (3, 4, 2)


def test_resuming_without_rows_that_should_be_there_is_said(tmp_path, caplog):
    write_history(tmp_path)
    content = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(content[: content.index('{"step": 3') + 5])
    make(tmp_path, resumed_from=4).close()
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2]
    assert "lacks 2 rows up to step 4, the first of step 3" in caplog.text


def test_a_folder_in_the_way_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(RunDirectoryError, match="metrics.jsonl"):
        make(tmp_path, resumed_from=1)
