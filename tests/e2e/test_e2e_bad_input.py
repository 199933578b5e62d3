"""Bad input: one message that names the thing, an exit code, no traceback, and what was there is still there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni_portable.trainer.checkpoint import list_checkpoints, read_checkpoint
from tests.e2e.conftest import Outcome, write_prompts
from tests.e2e.rundirs import checkpoints, metrics, snapshot

TRANSFORMER = Path("transformer") / "diffusion_pytorch_model.safetensors"


def refused(outcome: Outcome, code: int, *named: str) -> None:
    """One message on standard error, with every text in it."""
    assert outcome.code == code, outcome.err
    assert outcome.err.count("omni-portable: error:") == 1
    for text in named:
        assert text in outcome.err, outcome.err


@pytest.fixture(scope="module")
def finished(workshop: Path, tmp_path_factory: pytest.TempPathFactory):
    """A finished run of two steps, made once; tests work on copies."""
    folder = tmp_path_factory.mktemp("finished") / "run"

    def get(train) -> Path:
        if not folder.exists():
            assert train(folder, "trainer.total_steps=2").code == 0
        return folder

    return get


@pytest.fixture
def copied_run(finished, train, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished(train), tmp_path / "run"))


@pytest.fixture
def copied_model(workshop: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(workshop / "sd3", tmp_path / "model"))


CONFIG_ERRORS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown key": (("rolout.n=4",), ("rolout", "rollout")),
    "key of another section": (("actor.n=4",), ("actor.n", "rollout.n")),
    "wrong type": (("rollout.num_steps=many",), ("rollout.num_steps=many", "an integer")),
    "one sample per prompt": (("rollout.n=1",), ("rollout.n=1", "at least 2")),
    "batches that do not divide": (("actor.mini_batch_size=3",), ("actor.mini_batch_size=3", "4", "2")),
    "micro-batch above mini-batch": (("actor.micro_batch_size=9",), ("actor.micro_batch_size=9",)),
    "unknown option of the algorithm": (("algorithm.clip=1",), ("algorithm.clip", "clip_ratio")),
    "unknown scorer": (("reward.scorers={s: {kind: beauty}}",), ("beauty", "jpeg_compressibility")),
    "unknown device": (("device.name=gpu",), ("gpu", "cpu")),
    "no such checkpoint": (("trainer.resume=/nowhere/step_000001",), ("/nowhere/step_000001",)),
}


@pytest.mark.parametrize("name", CONFIG_ERRORS)
def test_configuration_errors(name: str, train, tmp_path: Path) -> None:
    overrides, named = CONFIG_ERRORS[name]
    refused(train(tmp_path / "run", *overrides), 2, *named)
    assert not (tmp_path / "run").exists()


def test_an_unknown_recipe_is_named_with_those_that_exist(cli) -> None:
    refused(cli("train", "sd3/flow_grpo_ocr_tinny"), 2, "sd3/flow_grpo_ocr_tinny", "sd3/flow_grpo_ocr_tiny")


def test_a_kernel_that_is_not_installed(train, tmp_path: Path) -> None:
    outcome = train(tmp_path / "run", "device.attention.transformer=flash_attention_2")
    refused(outcome, 1, "flash_attention_2", "transformer", "sdpa")
    assert not (tmp_path / "run").exists(), "refused before anything was written"


def test_a_missing_model_folder(train, tmp_path: Path) -> None:
    refused(train(tmp_path / "run", f"model.path={tmp_path}/lost"), 1, f"{tmp_path}/lost", "model.path")


def test_a_truncated_model_file_is_named_and_the_directory_is_free_afterwards(
    train, copied_model: Path, tmp_path: Path
) -> None:
    weights = copied_model / TRANSFORMER
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    overrides = (f"model.path={copied_model}", "trainer.total_steps=1")
    refused(train(tmp_path / "run", *overrides), 1, str(weights), "truncated or corrupt")
    weights.write_bytes(content)
    again = train(tmp_path / "run", *overrides)
    assert again.code == 0, "the same command works once the file is mended: " + again.err


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        (lambda path: path.write_text(""), ("no rows",)),
        (lambda path: path.write_text('{"prompt": "a sign"}\n'), ("row 1", "ground_truth")),
        (lambda path: write_prompts(path, ("one",)), ("data.train_batch_size=2", "there are 1")),
        (lambda path: path.write_text("{\n"), ("row 1", "JSON")),
        (lambda path: None, ("does not exist",)),
    ],
    ids=["empty", "no ground truth", "too few", "no JSON", "missing"],
)
def test_bad_prompts(prepare: Callable[[Path], None], named: tuple[str, ...], train, tmp_path: Path) -> None:
    prepare(tmp_path / "bad.jsonl")
    fields = "data.fields=[ground_truth]"
    outcome = train(tmp_path / "run", f"data.train={tmp_path}/bad.jsonl", "data.validation=''", fields)
    refused(outcome, 1, *named)
    assert not (tmp_path / "run").exists()


def test_a_scorer_asks_for_its_field(train, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a sign", "ground_truth": "A"}\n{"prompt": "b"}\n')
    scorer = "reward.scorers={read: {kind: ocr}}"
    outcome = train(tmp_path / "run", f"data.train={tmp_path}/bad.jsonl", "data.validation=''", scorer)
    refused(outcome, 1, "row 2", "ground_truth")


def test_a_directory_that_holds_a_run_is_left_alone(train, copied_run: Path) -> None:
    before = snapshot(copied_run)
    refused(train(copied_run), 1, str(copied_run), "already holds a run", "--resume")
    assert snapshot(copied_run) == before


def test_a_file_in_the_way_of_the_run_directory(train, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for run_dir in (tmp_path / "file", tmp_path / "file" / "run"):
        refused(train(run_dir), 1, f"cannot write {run_dir}", "trainer.run_dir")
    assert (tmp_path / "file").read_text() == "mine"


def test_other_settings_do_not_continue_a_run(train, copied_run: Path) -> None:
    before = snapshot(copied_run)
    outcome = train(copied_run, "trainer.total_steps=3", "trainer.resume=auto", "actor.lr=0.5")
    refused(outcome, 1, "step_000002", "actor.lr: 0.001 then, 0.5 now")
    assert snapshot(copied_run) == before, "config.yaml included"


def test_a_checkpoint_of_another_run_is_not_mixed_into_this_one(train, copied_run: Path, finished) -> None:
    before = snapshot(copied_run)
    other = finished(train) / "checkpoints" / "step_000001"
    outcome = train(copied_run, "trainer.total_steps=2", f"trainer.resume={other}")
    refused(outcome, 1, f"{copied_run} already holds a run", str(other))
    assert snapshot(copied_run) == before


def test_a_corrupt_checkpoint_is_named_and_an_older_one_continues(train, copied_run: Path, finished) -> None:
    broken = copied_run / "checkpoints" / "step_000002" / "actor" / "weights.safetensors"
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 1
    broken.write_bytes(content)
    before = snapshot(copied_run)
    outcome = train(copied_run, "trainer.total_steps=2", "trainer.resume=auto")
    refused(outcome, 1, "step_000002", "actor/weights.safetensors", "step_000001")
    assert snapshot(copied_run) == before

    older = copied_run / "checkpoints" / "step_000001"
    outcome = train(copied_run, "trainer.total_steps=2", f"trainer.resume={older}")
    assert outcome.code == 0, outcome.err
    assert metrics(copied_run) == metrics(finished(train))
    assert checkpoints(copied_run) == ["step_000001", "step_000002", "superseded-step_000002"]
    assert read_checkpoint(copied_run / "checkpoints" / "step_000002").step == 2


def test_a_truncated_checkpoint_is_named(train, copied_run: Path) -> None:
    broken = copied_run / "checkpoints" / "step_000002" / "actor" / "optimizer.safetensors"
    broken.write_bytes(broken.read_bytes()[:100])
    outcome = train(copied_run, "trainer.total_steps=3", "trainer.resume=auto")
    refused(outcome, 1, "actor/optimizer.safetensors", "corrupt")


def test_a_reward_that_is_no_number_stops_and_names_the_sample(train, doubles, tmp_path: Path) -> None:
    scorer = "reward.scorers={dark: {kind: undefined, at: step-2/00001/001}}"
    outcome = train(tmp_path / "run", scorer)
    refused(outcome, 1, "'dark'", "nan", "step-2/00001/001")
    assert sorted(metrics(tmp_path / "run")) == [0, 1]
    assert checkpoints(tmp_path / "run") == ["step_000001"]
    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "step_000001").step == 1


def test_a_scorer_that_fails_stops_and_names_sample_and_cause(train, doubles, tmp_path: Path) -> None:
    outcome = train(tmp_path / "run", "reward.scorers={b: {kind: brittle, at: step-1/00000/001}}")
    refused(outcome, 1, "'b'", "cannot look at", "step-1/00000")


def test_every_group_failing_is_an_error(train, doubles, tmp_path: Path) -> None:
    scorers = "reward.scorers={a: {kind: brittle, at: step-1/00000}, b: {kind: brittle, at: step-1/00001}}"
    outcome = train(tmp_path / "run", scorers, "reward.on_error=drop_group")
    refused(outcome, 1, "no group is left")


def test_a_gradient_that_is_no_number_stops_and_names_the_samples(train, tmp_path: Path) -> None:
    outcome = train(tmp_path / "run", "actor.lr=10", "actor.mini_batch_size=2")
    refused(outcome, 1, "step-1/00001/00", "gradient")
    assert sorted(metrics(tmp_path / "run")) == [0], "no row of a step that went wrong"
    assert checkpoints(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("file", "name", "named"),
    [
        (TRANSFORMER, "proj_out.weight", ("'proj_out.weight'", "NaN")),
        (Path("text_encoder/model.safetensors"), "text_model.final_layer_norm.bias", ("probe/00000/000",)),
    ],
    ids=["transformer", "text encoder"],
)
def test_weights_that_are_no_numbers_are_found_before_training(
    file: Path, name: str, named: tuple[str, ...], train, copied_model: Path, tmp_path: Path
) -> None:
    weights = load_file(copied_model / file)
    weights[name].view(-1)[0] = torch.nan
    save_file(weights, copied_model / file, metadata={"format": "pt"})
    refused(train(tmp_path / "run", f"model.path={copied_model}"), 1, *named)


def test_actor_and_rollout_that_disagree_stop_before_anything_is_kept(train, tmp_path: Path) -> None:
    overrides = ("actor.micro_batch_size=1", "consistency.max_logprob_gap=0", "rollout.width=64")
    refused(train(tmp_path / "run", *overrides), 1, "consistency.max_logprob_gap=0", "log-prob gap")
    assert sorted(metrics(tmp_path / "run")) == [0]
    assert checkpoints(tmp_path / "run") == []


def test_the_traceback_is_in_the_log_file(train, doubles, tmp_path: Path) -> None:
    train(tmp_path / "run", "reward.scorers={b: {kind: brittle, at: step-1/00000/001}}")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback" in log
    assert "cannot look at" in log


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own; the size leaves room for what a run asks for at the start, and little more."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_loses_nothing_and_the_run_goes_on_once_there_is_room(
    train, doubles, small_disk: Path, tmp_path: Path
) -> None:
    def scorer(at: str) -> str:
        return f"reward.scorers={{s: {{kind: filler, at: {at}, fill: {small_disk}}}}}"

    run_dir = small_disk / "run"
    outcome = train(run_dir, scorer("step-2/"), "trainer.loggers=[jsonl,tensorboard]")
    refused(outcome, 1, "no space left", str(run_dir))
    assert sorted(metrics(run_dir)) == [0, 1]
    assert checkpoints(run_dir) == ["step_000001"]
    assert read_checkpoint(run_dir / "checkpoints" / "step_000001").step == 1

    again = train(run_dir, scorer("step-2/"), "trainer.resume=auto")
    refused(again, 1, "MB free")
    assert checkpoints(run_dir) == ["step_000001"]

    (small_disk / "ballast").unlink()
    outcome = train(run_dir, scorer("step-2/"), "trainer.resume=auto", "trainer.total_steps=1")
    assert outcome.code == 0, "what was asked for is done, and there is room to say so: " + outcome.err
    assert (run_dir / "summary.json").is_file()


@pytest.mark.parametrize("step", [1, 2])
def test_a_disk_that_fills_up_while_a_checkpoint_is_written(
    step: int, train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from omni_portable.trainer import saving

    real = saving.save_file

    def full(tensors: dict, path: Path, *rest: object) -> None:
        if f"step_{step:06d}" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(tensors, path, *rest)

    monkeypatch.setattr(saving, "save_file", full)
    outcome = train(tmp_path / "run")
    refused(outcome, 1, "no space left", f"step_{step:06d}", "trainer.resume=auto")
    assert [p.name for p in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["step_000001"][: step - 1]
    assert checkpoints(tmp_path / "run") == ["step_000001"][: step - 1], "no half of one either"
    monkeypatch.undo()
    outcome = train(tmp_path / "run", "trainer.resume=auto")
    assert outcome.code == 0, outcome.err
    assert sorted(metrics(tmp_path / "run")) == [0, 1, 2, 3]
