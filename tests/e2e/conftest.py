"""A tiny SD3, prompts and a recipe for runs through the command line; every test here carries the marker e2e."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from omni_portable.cli import main
from omni_portable.models.sd3.tiny import build_tiny_sd3
from tests.e2e.doubles import register

STEPS = 4
COMMON = (f"trainer.total_steps={STEPS}", "trainer.save_interval=2")
"""Of the run `whole`, and of those that are compared with it."""
WORDS = ("sun", "map", "tea", "ink", "oak", "fog", "jam", "owl")

RECIPE = """# A run of seconds on a tiny random SD3.
model: {{family: sd3, path: {folder}/sd3}}
device: {{name: cpu, threads: 1}}
algorithm: {{name: flow_grpo, step_kind: cps, noise_level: 0.5, window_mode: fixed, stochastic_steps: [1, 2]}}
rollout: {{n: 2, max_num_seqs: 4, num_steps: 4, height: 32, width: 32}}
actor: {{lr: 1e-3}}
reward: {{scorers: {{size: {{kind: jpeg_incompressibility, kilobytes_per_point: 1.0}}}}}}
data: {{train: {folder}/train.jsonl, validation: {folder}/validation.jsonl, train_batch_size: 2}}
trainer: {{total_steps: 3, save_interval: 1, progress: plain, loggers: [jsonl]}}
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@dataclass(frozen=True)
class Outcome:
    """What a person sees of one command."""

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `sd3`, `train.jsonl`, `validation.jsonl` and `recipe.yaml`."""
    folder = tmp_path_factory.mktemp("workshop")
    build_tiny_sd3(folder / "sd3")
    write_prompts(folder / "train.jsonl", WORDS[:6])
    write_prompts(folder / "validation.jsonl", WORDS[6:])
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder))
    return folder


def write_prompts(path: Path, words: tuple[str, ...]) -> None:
    path.write_text("".join(json.dumps({"prompt": f"the word {w}", "ground_truth": w}) + "\n" for w in words))


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scorers of `doubles` exist, as if a package had registered them."""
    register(monkeypatch.setitem)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs the command in this process; whatever happens, nobody may see a traceback."""

    def run(*argv: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def train(cli: Cli, workshop: Path) -> Cli:
    """`train(run_dir, *overrides)`: the recipe of the workshop into a run directory."""

    def run(run_dir: Path, *overrides: str) -> Outcome:
        return cli("train", workshop / "recipe.yaml", f"trainer.run_dir={run_dir}", *overrides)

    return run


@pytest.fixture
def whole(workshop: Path, train: Cli) -> Path:
    """The run in one process that others must equal; made once."""
    run_dir = workshop / "whole"
    if not run_dir.exists():
        outcome = train(run_dir, *COMMON)
        assert outcome.code == 0, outcome.err
    return run_dir


@pytest.fixture(autouse=True)
def _leave_torch_as_it_was() -> Iterator[None]:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
