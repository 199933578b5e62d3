"""The example packages of the pages work as they are printed, and the glossary knows every metric that a run writes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omni_portable.cli import main
from omni_portable.contracts import registry
from tests.docs.glossary import described, names_in, pattern, undescribed
from tests.docs.pages import ROOT, blocks, commands, install

PACKAGES = {"add-a-reward": "ink_rewards", "add-an-algorithm": "loo_grpo", "add-a-model": "pixel_model"}
ONLY_WHEN_STALE = {"replay/evicted_staleness/mean", "replay/evicted_staleness/max"}


def page(name: str) -> Path:
    return ROOT / "docs" / f"{name}.md"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The three packages are installed; the folder of the model's page is the current one and holds a model."""
    deterministic, here, path = torch.are_deterministic_algorithms_enabled(), Path.cwd(), list(sys.path)
    folders = {name: tmp_path_factory.mktemp(name) for name in PACKAGES}
    for name, folder in folders.items():
        install(page(name), folder)
        sys.path.insert(0, str(folder))
    registry._entry_points.cache_clear()
    os.chdir(folders["add-a-model"])
    from pixel_model.net import PixelNet  # type: ignore[import-not-found]

    torch.manual_seed(0)
    PixelNet().save_pretrained(Path("pixel-folder") / "transformer")  # what pixel_model.make does
    yield Path.cwd()
    os.chdir(here)
    sys.path[:] = path
    registry._entry_points.cache_clear()
    for module in [name for name in sys.modules if name.partition(".")[0] in PACKAGES.values()]:
        del sys.modules[module]
    torch.use_deterministic_algorithms(deterministic)


@pytest.mark.parametrize("name", PACKAGES)
def test_commands_of_the_page(workshop: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = [command for block in blocks(page(name)) for command in commands(block.text)]
    runs = [command[1:] for command in found if command[0] == "omni-portable"]
    assert runs
    for run in runs:
        assert main([*run, "--dry-run"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", ["add-a-reward", "add-an-algorithm"])
def test_snippet_of_the_page(workshop: Path, name: str) -> None:
    snippets = [block.text for block in blocks(page(name)) if block.language == "python" and not block.title]
    assert len(snippets) == 1
    exec(compile(snippets[0], name, "exec"), {})


@pytest.mark.e2e
def test_the_three_together(workshop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of the example family with the example algorithm, reward, guidance and LoRA."""
    rows = [{"prompt": f"a {color} field", "ink": ink} for color, ink in (("red", 0.4), ("white", 0.1), ("black", 1))]
    Path("ink.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = [
        "algorithm={name: loo_grpo, window_size: 2}",
        "~reward.scorers.size",
        "reward.scorers.tone={kind: ink, weight: 2.0}",
        "data.train=ink.jsonl",
        "model.lora.rank=2",
        "rollout.guidance_scale=2",
        "trainer.total_steps=2",
        "trainer.run_dir=runs/together",
    ]
    assert main(["train", "pixel.yaml", *changes]) == 0, capsys.readouterr().err
    last = metrics(Path("runs/together"))[-1]
    assert last["reward/mean"] == pytest.approx(2 * last["reward/tone/score"])
    assert last["rollout_corr/ratio_exact_one"] == 1.0


@pytest.mark.e2e
def test_glossary(workshop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every metric of a run is in the user guide, and every metric that it says each run has is in this one."""
    Path("held_out.txt").write_text("a lake\na hill at noon\n")
    changes = [
        "data.validation=held_out.txt",
        "algorithm.kl_coef=0.1",
        "trainer.total_steps=2",
        "trainer.save_interval=1",
        "trainer.run_dir=runs/glossary",
    ]
    assert main(["train", "pixel.yaml", *changes]) == 0, capsys.readouterr().err
    logged = names_in(Path("runs/glossary"))
    assert undescribed(logged) == []
    unused = {name for name in described("Of every run") if not any(map(pattern(name).fullmatch, logged))}
    assert unused == ONLY_WHEN_STALE


def metrics(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
