"""`plan placement` and `simulate`: words, JSON, exit codes, and no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from omni_portable.cli import main
from omni_portable.planning.placement.profile import load_profile

PUBLISHED = str(Path(__file__).resolve().parents[1] / "data" / "placement_minicpm_o.json")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_recommendation_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", "placement", "--profile", PUBLISHED, "--devices", "4")
    assert code == 0
    assert out.count("recommended: sync 4+0 (2xTP2)") == 2
    assert out.count("recommended: separate_async 3+1 (1xTP1)") == 1
    assert "compare seconds per prompt, not per step" in out
    assert "which the fitted costs give back within 0.1%" in out


def test_as_json_with_every_split(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--profile", PUBLISHED, "--devices", "16", "--tokens", "300", "2000", "--prompts", "96", "--json")
    code, out, _ = run(capsys, "plan", "placement", *arguments)
    assert code == 0
    found = json.loads(out)
    assert [length["tokens"] for length in found["lengths"]] == [300, 2000]
    options = found["lengths"][0]["options"]
    assert {option["prompts"] for option in options} == {96}
    assert len([option for option in options if option["mode"] == "separate_async"]) == 15
    assert options == sorted(options, key=lambda option: option["seconds_per_prompt"])
    assert any("extrapolated" in note for note in found["notes"])


def test_a_run_can_be_planned_from_and_kept_as_a_profile(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(
        "recipe: r\ntrainer: {mode: sync}\nrollout: {n: 2}\ndata: {train_batch_size: 4}\n"
    )
    row = {"timing_s/step": 5.0, "role_s/rollout/busy": 3.0, "timing_s/update": 2.0}
    lines = "".join(json.dumps({"step": step} | row) + "\n" for step in (1, 2, 3))
    (run_dir / "metrics.jsonl").write_text(lines)
    saved = tmp_path / "profile.json"
    arguments = ("plan", "placement", str(run_dir), "--devices", "4", "--save-profile", str(saved))
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "samples as measured" in out
    assert load_profile(saved).rows[0].rollout_s == 3.0
    code, again, _ = run(capsys, "plan", "placement", "--profile", str(saved), "--devices", "4")
    assert code == 0
    assert again == out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "4"], "measured times come from RUN_DIR or from --profile"),
        (["somewhere", "--profile", PUBLISHED, "--devices", "4"], "measured times come from RUN_DIR or from --profile"),
        (["--profile", "nowhere.json", "--devices", "4"], "the profile nowhere.json cannot be read"),
        (["--profile", PUBLISHED, "--devices", "4", "--measured-devices", "3"], "says what a run used, and no RUN_DIR"),
        (
            ["--profile", PUBLISHED, "--devices", "4", "--max-staleness", "0", "--sync-rounds", "3"],
            "--sync-rounds 3: with --max-staleness 0 every step needs the weights of the last",
        ),
        (["--profile", PUBLISHED, "--devices", "1"], "no placement fits 1 devices"),
    ],
)
def test_what_cannot_be_planned(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, out, err = run(capsys, "plan", "placement", *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("arguments", [[], ["--devices", "0"], ["--devices", "4", "--tokens", "none"], ["--help"]])
def test_wrong_use_of_the_command_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", "placement", *arguments])
    assert stopped.value.code == (0 if arguments == ["--help"] else 2)
    shown = capsys.readouterr()
    assert "omni-portable plan placement" in shown.out + shown.err


@pytest.mark.parametrize("share", ["none", "nan", "0", "1.5"])
def test_a_share_that_is_none_is_named(capsys: pytest.CaptureFixture[str], share: str) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--devices", "8", "--mode", "sync", "--steps", "3", "--lend-below", share])
    assert f"argument --lend-below: {share} is not above 0 and at most 1" in capsys.readouterr().err


def test_a_simulated_run_in_words_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("simulate", "--profile", PUBLISHED, "--devices", "4", "--mode", "separate_async", "--steps", "20")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    for shown in ("separate_async 3+1 (1xTP1) on 4 devices", "seconds per prompt", "staleness of groups", "evicted"):
        assert shown in out
    code, out, _ = run(capsys, *arguments, "--rollout-devices", "2", "--times", "lognormal:0.2", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["workload"]["placement"]["rollout_devices"] == 2
    assert found["outcome"]["seconds_per_prompt"] == pytest.approx(found["planned"]["seconds_per_prompt"], rel=0.2)


def test_lending_is_shown_beside_the_run_without(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("simulate", "--devices", "8", "--rollout-devices", "2", "--mode", "separate_async", "--steps", "20")
    code, alone, _ = run(capsys, *arguments)
    assert code == 0
    assert "note: nothing is lent here" in alone
    code, out, _ = run(capsys, *arguments, "--lend", "2", "--lend-below", "0.9")
    assert code == 0
    assert "replicas on the trainer's devices: 2xTP1, lent below 90% of a step's samples" in out
    head, _, rest = out.partition("without lending\n")
    figures = alone.splitlines()[2:-1]
    assert rest.splitlines()[:-1] == figures, "the run without is the one that is simulated alone"
    assert all(any(line.startswith(figure[:24]) for line in head.splitlines()) for figure in figures)
    assert rest.splitlines()[-1].startswith("lending changes samples per second by +")
    code, out, _ = run(capsys, *arguments, "--lend", "2", "--json")
    found = json.loads(out)
    assert found["outcome"]["lends"] > 0
    assert found["outcome"]["samples_per_s"] > found["without_lending"]["samples_per_s"]
    assert found["without_lending"]["lends"] == 0


def test_without_a_profile_an_example_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "simulate", "--devices", "8", "--mode", "sync", "--steps", "5")
    assert code == 0
    assert out.startswith("example: drawing and training a sample take one device-second each")
    assert "+0.0%" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "separate_async", "--devices", "1"], "separate_async has no placement on 1 devices"),
        (["--mode", "separate_async", "--devices", "4", "--rollout-devices", "4"], "both sides need one at least"),
        (["--mode", "sync", "--devices", "4", "--rollout-devices", "2"], "under sync rollout uses all 4 devices"),
        (["--mode", "sync", "--devices", "100000"], "--devices 100000 is more than is simulated"),
        (["--mode", "sync", "--devices", "2", "--times", "uniform"], "--times 'uniform' is no distribution"),
        (["--mode", "sync", "--devices", "4", "--lend", "1"], "under sync rollout uses the trainer's devices anyway"),
        (
            ["--mode", "separate_async", "--devices", "4", "--rollout-devices", "2", "--lend", "3"],
            "--lend 3: the trainer's 2 devices make 2 replicas of 1",
        ),
        (
            ["--mode", "separate_async", "--devices", "4", "--lend", "1", "--reclaim-at", "0.5"],
            "--reclaim-at 0.5: devices that are lent below 1 would be taken back",
        ),
        (
            ["--mode", "fully_async", "--devices", "2", "--max-staleness", "0", "--sync-rounds", "2"],
            "with --max-staleness 0 every step needs the weights of the last",
        ),
        (["--mode", "sync", "--devices", "8", "--prompts", "100000000"], "take less --prompts, --samples"),
        (["--mode", "sync", "--devices", "8", "--samples", "9" * 30], "more than are simulated"),
        (
            [
                "--mode",
                "separate_async",
                "--devices",
                "8",
                "--prompts",
                "1000",
                "--max-staleness",
                "900",
                "--steps",
                "900",
            ],
            "900 rounds of them under way at a time",
        ),
        (["--mode", "sync", "--devices", "65536", "--steps", "1000000"], "take less --steps or --prompts"),
        (["--mode", "sync", "--devices", "8", "--measured-devices", "4"], "says what a run used, and no RUN_DIR"),
    ],
)
def test_what_cannot_be_simulated(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, out, err = run(capsys, "simulate", "--steps", "3", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_neither_needs_torch() -> None:
    script = (
        "import sys\n"
        "from omni_portable.cli import main\n"
        f"assert main(['plan', 'placement', '--profile', {PUBLISHED!r}, '--devices', '4']) == 0\n"
        "assert main(['simulate', '--devices', '4', '--mode', 'fully_async', '--steps', '4']) == 0\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0
