"""`omni-portable conformance`: files, exit codes, and errors before anything runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from omni_portable.cli.main import main
from omni_portable.conformance import catalogue
from omni_portable.conformance.check import Check
from omni_portable.conformance.report_file import read_report, to_json
from tests.conformance.conformance_doubles import (
    ABSENT,
    BAD,
    GOOD,
    PLAIN,
    Page,
    check,
    measured,
    raising,
    report,
    result,
)
from tests.support.processes import hear_signals

FILES = ("report.json", "report.html", "junit.xml", "log.txt")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch):
    """Let the catalogue hold these checks only."""

    def put(*checks: Check) -> None:
        monkeypatch.setattr(catalogue, "all_checks", lambda: checks)

    return put


def run(out: Path, *arguments: str) -> int:
    return main(["conformance", "run", "--device", "cpu", "--out", str(out), *arguments])


def test_a_real_group_makes_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out"
    assert run(out, "--only", "noise") == 0
    found = read_report(out)
    assert (found.verdict, len(found.results)) == ("passed", 3)
    assert found.device == "cpu"
    assert found.provenance.recipe == "sd3/flow_grpo_ocr_tiny"
    assert found.provenance.state == "complete"
    assert found.provenance.catalogue == len(catalogue.all_checks())
    assert found.environment["model"]["attention"]["transformer"]["family"] == "sdpa"
    assert "torch.manual_seed" in found.environment["determinism"]["applied"]
    Page((out / "report.html").read_text())
    assert ET.parse(out / "junit.xml").getroot().attrib["tests"] == "3"
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    printed = capsys.readouterr().out
    assert "noise.recorded" in printed
    assert "3 passed, 0 failed, 0 recorded, 0 not run" in printed


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([check("a", measured(GOOD))], 0),
        ([check("a", measured(GOOD)), check("b", raising(ABSENT)), check("c", measured(PLAIN))], 0),
        ([check("a", measured(GOOD)), check("b", measured(BAD))], 1),
        ([check("a", measured(GOOD)), check("b", raising(RuntimeError("x")))], 1),
        ([check("a", raising(ABSENT))], 1),
        ([check("a", measured(PLAIN))], 1),
    ],
)
def test_exit_codes(tmp_path: Path, made_up, checks: list[Check], code: int) -> None:
    made_up(*checks)
    assert run(tmp_path) == code


def test_lines_tell_what_to_do(tmp_path: Path, made_up, capsys: pytest.CaptureFixture[str]) -> None:
    made_up(check("a", measured(GOOD)), check("b", raising(ABSENT)), check("c", raising(ZeroDivisionError("by zero"))))
    assert run(tmp_path) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("passed noise.a") and line.endswith("error 0.5 <= 1") for line in lines)
    assert "no <second> device" in lines
    assert any(line.startswith("FAILED noise.c") for line in lines)
    assert "unexpected ZeroDivisionError: by zero" in lines
    assert "to fix it: mend c" in lines
    assert "Traceback" in (tmp_path / "log.txt").read_text()


def test_an_interruption_keeps_what_there_is(tmp_path: Path, made_up, capsys: pytest.CaptureFixture[str]) -> None:
    made_up(check("a", measured(GOOD)), check("b", raising(KeyboardInterrupt())), check("c", measured(GOOD)))
    assert run(tmp_path) == 130
    found = read_report(tmp_path)
    assert [(one.status, one.reason) for one in found.results] == [
        ("passed", ""),
        ("not_run", "interrupted"),
        ("not_run", "interrupted"),
    ]
    assert (found.verdict, found.provenance.state) == ("incomplete", "interrupted")
    assert all((tmp_path / name).is_file() for name in FILES)
    assert "did not reach its end" in capsys.readouterr().out


def test_ctrl_c_of_a_real_process(tmp_path: Path) -> None:
    """The first checks take seconds; the signal comes while they run."""
    command = [sys.executable, "-m", "omni_portable.cli", "conformance", "run", "--device", "cpu", "--only"]
    process = subprocess.Popen(
        [*command, "noise,collectives", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,
    )
    assert process.stdout is not None
    try:
        while "checks" not in (line := process.stdout.readline()):
            assert line, "the run ended before its first check"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    if (tmp_path / "report.json").exists():
        assert read_report(tmp_path).verdict == "incomplete"


def test_a_reader_that_goes_away_is_no_success(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "omni_portable.cli", "conformance", "run", "--device", "cpu", "--only", "noise"]
    process = subprocess.Popen([*command, "--out", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=120) == 1
    assert "report.json" in said


def test_a_killed_run_leaves_a_report_that_says_so_and_nothing_of_an_earlier_one(tmp_path: Path, made_up) -> None:
    seen = []

    def look(_: object):
        seen.append((read_report(tmp_path), {path.name for path in tmp_path.iterdir()}))
        return measured(GOOD)(None)  # type: ignore[arg-type]

    made_up(check("a", measured(GOOD)))
    run(tmp_path)
    made_up(check("a", look), check("b", look))
    run(tmp_path)
    assert [[one.status for one in found.results] for found, _ in seen] == [["not_run"] * 2, ["passed", "not_run"]]
    for found, files in seen:
        assert found.results[1].reason == "the run ended before this check"
        assert (found.verdict, found.provenance.state) == ("incomplete", "running")
        assert files == {"report.json", "log.txt"}


def test_nothing_of_an_earlier_report_is_left_where_the_device_cannot_be_described(
    tmp_path: Path, made_up, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    made_up(check("a", measured(GOOD)))
    assert run(tmp_path) == 0
    monkeypatch.setattr("omni_portable.conformance.session.describe", dies)
    assert run(tmp_path) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


def test_one_folder_is_for_one_run(tmp_path: Path, made_up, capsys: pytest.CaptureFixture[str]) -> None:
    codes = []

    def again(_: object):
        codes.append(run(tmp_path))
        return measured(GOOD)(None)  # type: ignore[arg-type]

    made_up(check("a", again))
    assert run(tmp_path) == 0
    assert codes == [2]
    assert "in use by another conformance run" in capsys.readouterr().err
    assert read_report(tmp_path).provenance.state == "complete"
    made_up(check("a", measured(GOOD)))
    assert run(tmp_path) == 0


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_replaced_is_refused_first(
    tmp_path: Path, made_up, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    made_up(check("a", raising(AssertionError("ran"))))
    (tmp_path / name).mkdir()
    assert run(tmp_path) == 2
    assert f"cannot write {tmp_path / name}: Is a directory" in capsys.readouterr().err


def test_no_room_for_temporary_files_is_refused_first(
    tmp_path: Path, made_up, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(check("a", raising(AssertionError("ran"))))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert run(tmp_path / "out") == 2
    assert "set TMPDIR" in capsys.readouterr().err


def test_a_folder_whose_name_is_no_text(tmp_path: Path, made_up) -> None:
    made_up(check("a", measured(GOOD)))
    out = tmp_path / os.fsdecode(b"caf\xe9")
    assert run(out) == 0
    assert "caf\\xe9" in read_report(out).provenance.command
    assert main(["conformance", "compare", str(out), str(out), "--out", str(out / "compared")]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "nobody"], "no device 'nobody' is registered"),
        (["--device", "cpu:x9"], "device 'cpu' has no generations"),
        (["--recipe", "sd3/flow_grpo_ocr_tinny"], "no recipe"),
        (["--only", "nois"], "--only=nois"),
        (["--device", "cpu:x9"], "write --device cpu"),
        (["device.name=cpu"], "takes its device from --device"),
        (["+device.name=cpu"], "takes its device from --device"),
        (["device={name: cuda}"], "override other keys of the section one by one"),
        (["device=1"], "override other keys of the section one by one"),
        (["~device"], "override other keys of the section one by one"),
        (["rollout.nn=3"], "rollout.nn"),
    ],
)
def test_bad_usage_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    out = tmp_path / "out"
    assert run(out, *arguments) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments",
    [["--suite", "half"], ["--what"], [], ["--out", ""], *(["--out", "x", "--only", text] for text in ("", " ", ","))],
)
def test_the_command_line_is_checked(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["conformance", "run", *arguments])
    assert caught.value.code == 2


def test_an_absent_device_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from omni_devices.cpu.device import CpuDevice

    monkeypatch.setattr(CpuDevice, "available", staticmethod(lambda: (False, "no processor")))
    assert run(tmp_path / "out") == 2
    assert "--device cpu: device 'cpu' is not present: no processor" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_first(
    tmp_path: Path, made_up, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up(check("a", raising(AssertionError("ran"))))
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file" / "out") == 2
    assert "--out=" in capsys.readouterr().err


def test_an_earlier_report_is_replaced(tmp_path: Path, made_up) -> None:
    made_up(check("a", measured(BAD)))
    assert run(tmp_path) == 1
    made_up(check("b", measured(GOOD)))
    assert run(tmp_path) == 0
    assert [one.id for one in read_report(tmp_path).results] == ["noise.b"]
    assert "noise.a" not in (tmp_path / "log.txt").read_text()


def test_the_command_of_the_report_repeats_the_run(tmp_path: Path, made_up) -> None:
    import shlex

    made_up(check("a", measured(GOOD)))
    assert run(tmp_path / "a b", "--only", "noise", "rollout.n=4", "--suite", "full") == 0
    command = shlex.split(read_report(tmp_path / "a b").provenance.command)
    assert command[0] == "omni-portable"
    assert main(command[1:]) == 0
    again = read_report(tmp_path / "a b").provenance
    assert (again.suite, again.only, again.overrides) == ("full", ("noise",), ("rollout.n=4",))


def test_the_recipe_decides_dtype_and_seed(tmp_path: Path, made_up) -> None:
    made_up(check("a", measured(GOOD)))
    assert run(tmp_path, "device.dtype=bfloat16", "trainer.seed=5") == 0
    found = read_report(tmp_path)
    assert found.environment["model"]["dtype"] == "bfloat16"
    assert found.provenance.seed == 5


def test_a_kernel_that_is_not_here_is_in_the_report(tmp_path: Path, made_up) -> None:
    made_up(check("a", measured(GOOD)))
    assert run(tmp_path, "device.attention.transformer=flash_attention_2") == 0
    assert "flash_attention_2" in read_report(tmp_path).environment["model"]["error"]


def test_list_shows_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [one.id for one in catalogue.all_checks()]


def write(folder: Path, name: str, made) -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(to_json(made))
    return str(path)


def test_compare_reads_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path, "a/report.json", report())
    second = write(tmp_path, "b.json", report([result("bits", "passed", GOOD, group="identity")], name="other"))
    out = tmp_path / "out"
    assert main(["conformance", "compare", str(tmp_path / "a"), second, "--out", str(out)]) == 0
    assert "identity.bits" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"compare.html", "compare.json"}
    assert json.loads((out / "compare.json").read_text())["reports"][1]["label"] == "other"
    assert main(["conformance", "compare", first, second]) == 0


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": "x"}', None])
def test_compare_refuses_what_is_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    good, bad = write(tmp_path, "good.json", report()), tmp_path / "bad.json"
    if content is not None:
        bad.write_bytes(content)
    out = tmp_path / "out"
    assert main(["conformance", "compare", good, str(bad), "--out", str(out)]) == 2
    assert "bad.json" in capsys.readouterr().err
    assert not out.exists()


def test_compare_survives_a_reader_that_goes_away(tmp_path: Path) -> None:
    first, out = write(tmp_path, "a.json", report()), tmp_path / "out"
    command = [sys.executable, "-m", "omni_portable.cli", "conformance", "compare", first, first, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert {path.name for path in out.iterdir()} == {"compare.html", "compare.json"}


def test_compare_says_what_to_do_where_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path, "a.json", report())
    (tmp_path / "out" / "compare.html").mkdir(parents=True)
    assert main(["conformance", "compare", first, first, "--out", str(tmp_path / "out")]) == 1
    assert (
        "compare.html: Is a directory\n  to fix it: free some space, or choose another --out" in capsys.readouterr().err
    )


@pytest.mark.parametrize("arguments", [["compare", "a", ""], ["compare", "a", "b", "--out", ""], ["vectors", ""]])
def test_empty_paths_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["conformance", *arguments])
    assert caught.value.code == 2


def test_compare_needs_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "compare", write(tmp_path, "a.json", report())]) == 2
    assert "two reports" in capsys.readouterr().err


def test_errors_come_without_torch(tmp_path: Path) -> None:
    probe = (
        "import sys\nfrom omni_portable.cli.main import main\n"
        "code = main(['conformance', 'run', '--device', 'nobody', '--out', sys.argv[1]])\n"
        "assert code == 2, code\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, str(tmp_path)], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
