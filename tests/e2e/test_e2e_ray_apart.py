"""A model that sees, distilled from a teacher in a process of its own and trained by two ranks in the cluster: tensors
that are kept out of the trainer's process change no number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_portable.models.qwen_vl.tiny import build_tiny_qwen3_vl
from tests.e2e.conftest import Cli
from tests.e2e.rundirs import differences, equal_tensors, metrics
from tests.support.media import png

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

SMALL = (
    "data.validation=''",
    "data.train_batch_size=2",
    "rollout.n=2",
    "rollout.max_num_seqs=2",
    "rollout.max_new_tokens=4",
    "actor.mini_batch_size=0",
    "actor.engine=fsdp2",
    "actor.world_size=2",
    "teacher.placement=pool",
    "trainer.total_steps=2",
    "trainer.validate_interval=0",
    "trainer.progress=plain",
    "trainer.loggers=[jsonl]",
    "device.threads=1",
)


def test_what_is_kept_out_of_the_trainer_changes_nothing(
    cluster: object, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that it equals, bit for bit, has rollout and teacher in the trainer's process."""
    for seed, name in enumerate(("student", "teacher")):
        build_tiny_qwen3_vl(tmp_path / name, seed=seed)
    data = write_prompts(tmp_path)
    models = (f"model.path={tmp_path}/student", f"model.teachers={{knowing: {{path: '{tmp_path}/teacher'}}}}")

    def run(name: str, *overrides: str) -> None:
        own = (*models, f"data.train={data}", f"trainer.run_dir={tmp_path}/{name}")
        outcome = cli("train", "qwen_vl/token_opd_colours_tiny", *SMALL, *own, *overrides)
        assert outcome.code == 0, outcome.err

    run("here")
    passed = watched(monkeypatch)
    run("apart", "launcher.name=ray", "launcher.options.objects_from_kib=1")
    assert passed["teachers"] > 0, "samples go to the teacher by reference"
    assert passed["ranks"] > passed["teachers"], "to ranks, what the teacher said goes with them"
    assert passed["brought"] == 0
    assert differences(metrics(tmp_path / "here"), metrics(tmp_path / "apart")) == []
    assert metrics(tmp_path / "apart")[2]["actor/distill_kl_loss"] > 0
    assert equal_tensors(tmp_path / "here" / "export", tmp_path / "apart" / "export")


def write_prompts(folder: Path) -> Path:
    """Four questions about pictures, each of which is 64 embeddings of 128 bytes to the model."""
    rows = []
    for index in range(4):
        (folder / f"{index}.png").write_bytes(png(index, 128, 128))
        rows.append({"prompt": "Which colour?", "ground_truth": "red", "image": f"{index}.png"})
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "train.jsonl"


def watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many bundles of tensors are handed on, and to whom, and how many of samples are brought to this process."""
    from omni_backends.launch.ray import ranks, teachers
    from omni_backends.launch.ray.tensors import reference_of
    from omni_backends.launch.ray.worker import Worker

    counts = {"ranks": 0, "teachers": 0, "brought": 0}
    bring = Worker.bring

    def handing(to: str) -> Any:
        def handed(source: object) -> Any:
            counts[to] += 1
            return reference_of(source)

        return handed

    def brought(worker: Worker, reference: Any) -> Any:
        counts["brought"] += not worker.label.startswith("actor-")  # ranks give the weights of an export
        return bring(worker, reference)

    monkeypatch.setattr(ranks, "reference_of", handing("ranks"))
    monkeypatch.setattr(teachers, "reference_of", handing("teachers"))
    monkeypatch.setattr(Worker, "bring", brought)
    return counts
