"""The command line: exit codes, messages, and nothing heavy before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from omni_portable.cli import main
from omni_portable.cli.quickstart import LONG, RECIPE
from omni_portable.contracts.errors import RewardError
from tests.trainer.synthetic_run import write_run


@pytest.fixture
def trained(monkeypatch):
    """Replaces the trainer; collects the configurations it is given."""
    configs: list = []
    behaviour = types.SimpleNamespace(configs=configs, error=None, finished=True)

    def run(config):
        configs.append(config)
        if behaviour.error is not None:
            raise behaviour.error
        run_dir = write_run(Path(config.trainer.run_dir), finished=behaviour.finished)
        return types.SimpleNamespace(run_dir=run_dir, report=run_dir / "report.html", summary={})

    module = types.ModuleType("omni_portable.trainer.run")
    module.run = run
    monkeypatch.setitem(sys.modules, "omni_portable.trainer.run", module)
    return behaviour


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["--help"], 0),
        (["train", "--help"], 0),
        (["--version"], 0),
        (["recipes"], 0),
        (["train", "no-such-recipe"], 2),
        (["train", RECIPE, "rollout.nn=3"], 2),
        (["train", RECIPE, "--dry-run"], 0),
        (["report", "/no/such/run"], 1),
    ],
)
def test_answers_without_torch(arguments, exit_code):
    result = python(
        "import sys; from omni_portable.cli import main\n"
        f"try: code = main({arguments!r})\n"
        "except SystemExit as stop: code = stop.code\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
        "sys.exit(code)"
    )
    assert result.returncode == exit_code, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["trian"], ["train"], ["report"], ["recipes", "x"], ["train", RECIPE, "--fast"], ["conformance"]]
)
def test_usage_errors(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_train_hands_over_the_configuration_and_prints_the_result(trained, tmp_path, capsys):
    run_dir = tmp_path / "run"
    assert (
        main(["train", RECIPE, f"trainer.run_dir={run_dir}", "--resume", "rollout.n=4", "data.train_batch_size=3"]) == 0
    )
    (config,) = trained.configs
    assert (config.rollout.n, config.trainer.resume) == (4, "auto")
    shown = capsys.readouterr().out
    assert "3 prompts x 4 samples = 12 samples" in shown
    assert "rose from 0.410 to 0.710" in shown
    assert f"{run_dir}/report.html" in shown


def test_dry_run_trains_nothing(trained, capsys):
    assert main(["train", RECIPE, "--dry-run", "actor.lr=0.5"]) == 0
    assert trained.configs == []
    shown = capsys.readouterr().out
    assert "lr: 0.5" in shown
    assert "optimizer step" in shown


def test_dry_run_says_what_is_not_on_this_machine(trained, capsys, tmp_path):
    (tmp_path / "config.yaml").write_text("x")
    given = ["model.path=/nowhere/model", f"data.train={tmp_path}/none.jsonl", f"trainer.run_dir={tmp_path}"]
    assert main(["train", RECIPE, "--dry-run", *given]) == 0
    told = capsys.readouterr().out.partition("a run would stop on this machine:\n")[2].splitlines()
    assert [line.split()[0] for line in told] == ["model.path=/nowhere/model:", f"{given[1]}:", str(tmp_path)]
    assert main(["train", RECIPE, "--dry-run", "model.path=nobody/nothing"]) == 0
    assert "no download of that name in the hub's cache" in capsys.readouterr().out
    assert main(["train", RECIPE, "--dry-run", f"trainer.run_dir={tmp_path}/new"]) == 0
    assert "packages, model folder, prompt files and run directory: as a run needs them" in capsys.readouterr().out


def test_dry_run_says_that_a_teacher_is_not_on_this_machine(capsys):
    recipe = "sd3/diffusion_opd_ocr_tiny"
    for given, what in (("path=/nowhere/teacher", "folder"), ("lora=/nowhere/lora", "folder"), ("path=no/body", "hub")):
        assert main(["train", recipe, "--dry-run", f"model.teachers.ocr.{given}"]) == 0
        told = capsys.readouterr().out.partition("a run would stop on this machine:\n")[2]
        assert f"model.teachers.ocr.{given}: there is no such folder" in told
        assert what in told
    for given in ("path=tiny:nothing", "path=builtin:nothing", "path=builtin:colours"):
        assert main(["train", recipe, "--dry-run", f"model.teachers.ocr.{given}"]) == 2
        assert f"model.teachers.ocr.{given}" in capsys.readouterr().err


def test_configuration_errors_are_messages(capsys):
    assert main(["train", RECIPE, "rollout.num_step=4"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("omni-portable: error: unknown configuration key 'rollout.num_step'")
    assert "rollout.num_steps" in shown


def test_errors_of_the_run_keep_their_exit_code(trained, tmp_path, capsys):
    trained.error = RewardError("the scorer broke", remedy="mend it")
    assert main(["train", RECIPE, f"trainer.run_dir={tmp_path}"]) == 1
    assert "to fix it: mend it" in capsys.readouterr().err


def test_bugs_keep_their_traceback(trained, tmp_path):
    trained.error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        main(["train", RECIPE, f"trainer.run_dir={tmp_path}"])


def test_interrupting_says_how_to_continue(trained, tmp_path, capsys):
    trained.error = KeyboardInterrupt()
    assert main(["train", RECIPE, "trainer.resume=never", f"trainer.run_dir={tmp_path}", "rollout.n=4"]) == 130
    shown = capsys.readouterr().err
    assert f"omni-portable train {RECIPE} trainer.run_dir={tmp_path} rollout.n=4 trainer.resume=auto" in shown
    assert "Traceback" not in shown


def test_interrupting_an_import_exits_like_any_interruption(tmp_path):
    """A dataclass is made by exec() of a string; `python -m` remembers a KeyboardInterrupt that left one."""
    (tmp_path / "command.py").write_text(
        "import sys\n"
        "from omni_portable.cli import doctor, main\n"
        "doctor.handle = lambda arguments: exec('raise KeyboardInterrupt')\n"
        "sys.exit(main(['doctor']))\n"
    )
    done = subprocess.run([sys.executable, "-m", "command"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "interrupted" in done.stderr) == (130, True)


def test_interrupting_quickstart_names_its_run_directory(trained, tmp_path, capsys):
    trained.error = KeyboardInterrupt()
    assert main(["quickstart", "--run-dir", str(tmp_path / "here")]) == 130
    assert f"trainer.run_dir={tmp_path / 'here'} trainer.resume=auto" in capsys.readouterr().err


def test_quickstart_reports_whether_the_target_was_met(trained, tmp_path, capsys):
    assert main(["quickstart", "--run-dir", str(tmp_path / "a"), "trainer.seed=7"]) == 0
    shown = capsys.readouterr().out
    assert "+0.300 ± 0.027" in shown
    assert "target (a rise of at least 3 standard errors): met" in shown
    assert trained.configs[0].trainer.seed == 7
    trained.finished = False
    assert main(["quickstart", "--long", "--run-dir", str(tmp_path / "b"), "rollout.n=4"]) == 0
    assert "not measured" in capsys.readouterr().out
    assert trained.configs[1].rollout.n == 4


def test_quickstart_says_plainly_when_the_target_was_missed(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("omni_portable.trainer.report.outcome.CLEAR", 1000.0)
    assert main(["quickstart", f"trainer.run_dir={tmp_path / 'a'}"]) == 0
    assert "NOT met" in capsys.readouterr().out


def test_quickstart_chooses_a_new_folder_unless_told(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["quickstart"]) == 0
    assert main(["quickstart", "trainer.run_dir=mine"]) == 0
    assert main(["quickstart", "trainer.run_dir=mine", "--run-dir", "it's ${here}"]) == 0
    assert main(["quickstart", "--long", "--run-dir", "x", "trainer.total_steps=3"]) == 0
    folders = [config.trainer.run_dir for config in trained.configs]
    assert folders[0].startswith("runs/quickstart-2")
    assert folders[1:] == ["mine", "it's ${here}", "x"]
    assert [config.trainer.total_steps for config in trained.configs][3] == 3


def test_report(tmp_path, capsys):
    run_dir = write_run(tmp_path / "run")
    assert main(["report", str(run_dir), "--out", str(tmp_path / "x.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "x.html")
    assert (tmp_path / "x.html").stat().st_size > 1000
    assert main(["report", str(tmp_path)]) == 1
    assert str(run_dir) in capsys.readouterr().err


def test_recipes_are_listed_with_what_they_are(capsys):
    assert main(["recipes"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(RECIPE)]
    assert "spell" in line


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which $COMMAND is the command line."""
    variables = {**os.environ, "COMMAND": f"{sys.executable} -m omni_portable.cli", **environment}
    return subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True, env=variables)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_said(unbuffered):
    result = shell("$COMMAND recipes > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert result.returncode == 1
    assert result.stderr == "omni-portable: error: cannot write to standard output: No space left on device.\n"


def test_training_does_not_end_in_silence_when_its_reader_goes_away():
    result = shell("$COMMAND quickstart --run-dir /dev/null/x | true; exit ${PIPESTATUS[0]}")
    assert result.returncode == 1
    assert "cannot write to standard output" in result.stderr
    assert "trainer.resume=auto" in result.stderr


def test_closed_output_is_no_error():
    result = shell("$COMMAND recipes >&-")
    assert (result.returncode, result.stderr) == (0, "")


def test_characters_that_the_terminal_lacks_are_escaped(tmp_path):
    recipe = tmp_path / "übung.yaml"
    recipe.write_text("defaults: [/sd3/flow_grpo_ocr_tiny@_global_, _self_]\n")
    result = shell(f"$COMMAND train {recipe} --dry-run", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert r"\xfcbung" in result.stdout


def test_a_folder_that_was_removed_is_said(tmp_path):
    result = shell(f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir ../gone; $COMMAND doctor --quick")
    assert result.returncode == 1
    assert result.stderr.startswith("omni-portable: error: the folder you are in was removed")


def test_a_reader_that_goes_away_is_no_error():
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m omni_portable.cli recipes | true"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.stderr == ""


def test_conformance_passes_its_arguments_on(tmp_path, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr("omni_portable.conformance.vectors.main", lambda argv: seen.append(argv) or 3)
    assert main(["conformance", "vectors", "cases.json", "--only", "kernel,adv"]) == 3
    assert main(["conformance", "vectors", "cases.json"]) == 3
    assert seen == [["cases.json", "--only=kernel,adv"], ["cases.json"]]


def test_every_packaged_recipe_passes_its_checks():
    from omni_portable.config.loader import list_recipes, load_config

    assert RECIPE in list_recipes()
    for name in list_recipes():
        load_config(name)
    assert load_config(RECIPE, list(LONG)).trainer.total_steps > load_config(RECIPE).trainer.total_steps
