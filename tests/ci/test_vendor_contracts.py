"""The contract check: what it finds in our source, what it reads from packages, and that every kind of drift fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.vendor_contracts import cli, contract, exceptions, fetch, offline, online, outsiders, store, tables
from ci.vendor_contracts.check import findings
from ci.vendor_contracts.exceptions import Absent, Exceptions, Unchecked
from ci.vendor_contracts.offline import Report
from ci.vendor_contracts.packages import STACKS, pins, version_of
from ci.vendor_contracts.tables import Spelling
from ci.vendor_contracts.usage import Call
from omni_backends.training.megatron import requirements as megatron
from omni_backends.training.veomni import requirements as veomni
from omni_portable.contracts.device import PackageNeed
from tests.ci.contract_trees import entry, found, library, records, write

ROOT = Path(__file__).resolve().parents[2]


def named(source: str) -> list[tuple[str, str]]:
    return [(use.name, str(use.call) if use.call else "read") for use in found(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch_npu\ntorch_npu.npu.f(1, a=2)", [("torch_npu", "read"), ("torch_npu.npu.f", "(1, a=)")]),
        ("import torch\ntorch.cuda.f(*x)\ntorch.zeros(1)", [("torch.cuda.f", "(...)")]),
        ("import vllm.config as c\nc.X", [("vllm.config", "read"), ("vllm.config.X", "read")]),
        ("from vllm import LLM as L\nL(**k)", [("vllm.LLM", "read"), ("vllm.LLM", "(...)")]),
        (
            "def f():\n from vllm.a import C\n c = C.get()\n with c.pool(tag=1): pass",
            [("vllm.a.C", "read"), ("vllm.a.C.get", "()"), ("vllm.a.C.get().pool", "(tag=)")],
        ),
        ("import torch\ntry: pass\nexcept torch.cuda.E: pass", [("torch.cuda.E", "read")]),
        ("import torch\ndef f(torch): torch.cuda.x()", []),
        ("import torch\ng = lambda torch: torch.cuda.x()\n[torch.cuda.y for torch in z]", []),
        ("import torch\nx = torch.cuda.a\nx = 1\nx.b()", [("torch.cuda.a", "read")]),
        (
            "import torch\nclass D(torch.cuda.B):\n  x = torch.cuda.c()",
            [("torch.cuda.B", "read"), ("torch.cuda.c", "()")],
        ),
        ("import importlib\nimportlib.import_module('torch_npu')", [("torch_npu", "read")]),
        (
            "async def f():\n import vllm\n (await vllm.g()).h()",
            [("vllm", "read"), ("vllm.g().h", "()"), ("vllm.g", "()")],
        ),
        ("import vllm_like\nvllm_like.f()", []),
        (
            "from vllm import C\ndef f(c: C, d: 'C | None'):\n c.run(1)\n d.halt()",
            [("vllm.C", "read")] * 2 + [("vllm.C().run", "(1)"), ("vllm.C().halt", "()")],
        ),
        (
            "import ray\ndef f():\n a = ray.get_actor('x')\n ray.get(a.go.remote()).done()",
            [("ray", "read"), ("ray.get_actor", "(1)"), ("ray.get", "(1)")],
        ),
        ("from . import torch_npu\ntorch_npu.f()", []),
    ],
)
def test_uses_found_in_source(source: str, expected: list[tuple[str, str]]) -> None:
    assert named(source) == expected


HELD = """
from vllm import Engine
class Mine:
    lock: Engine
    def __init__(self, other):
        self.name, self.engine = "x", Engine(1)
        self.changing = Engine(2)
        self.late = None
        self.other = other
    async def go(self):
        self.late = Engine(3)
        self.changing = self.name
        await self.engine.run(a=1)
        self.late.stop()
        self.lock.take()
        self.changing.unknown()
        self.other.unknown()
class Yours:
    def go(self):
        self.engine.unknown()
"""


def test_attributes_that_hold_one_vendors_object_are_followed_inside_the_class() -> None:
    calls = {name: form for name, form in named(HELD) if form != "read"}
    assert calls == {
        "vllm.Engine": "(1)",
        "vllm.Engine().run": "(a=)",
        "vllm.Engine().stop": "()",
        "vllm.Engine().take": "()",
    }


def test_a_package_that_no_manifest_covers_fails_the_check(tmp_path: Path) -> None:
    files = {
        "backends/omni_backends/a.py": "import os\nimport numpy\nfrom . import b\nfrom newcomer.part import x\n",
        "backends/omni_backends/b.py": "import importlib\ndef f(): importlib.import_module('late.one')\n",
        "devices/omni_devices/c.py": "import torch_npu\nimport omni_portable\n",
    }
    write(tmp_path, files)
    first, second = outsiders.unlisted(tmp_path)
    assert "backends/omni_backends/a.py:4: the package 'newcomer' is in no manifest" in first
    assert "backends/omni_backends/b.py:2: the package 'late' is in no manifest" in second
    assert outsiders.unlisted(ROOT) == []


def test_a_name_that_the_manifest_lacks_fails_the_check(tmp_path: Path) -> None:
    write(tmp_path, {"backends/omni_backends/a.py": "import ray\nray.init()\n"})
    write(tmp_path, contract.manifests(contract.entries(tmp_path)))
    write(tmp_path, {"backends/omni_backends/a.py": "import ray\nray.init()\nray.newer()\n"})
    (problem,) = contract.stale(tmp_path, contract.manifests(contract.entries(tmp_path)))
    assert "tests/contracts/ray.json is stale" in problem
    assert '"name": "ray.newer"' in problem


def test_versions_that_nothing_pins_are_those_of_the_adapters() -> None:
    named = {package.distribution: package.version for package in STACKS["cpu"] if package.version}
    assert named["veomni"] in veomni.SUPPORTED
    assert named["megatron-core"] in megatron.SUPPORTED


def test_a_protocol_stands_for_all_its_methods() -> None:
    source = """
from typing import Protocol
class Module(Protocol):
    def seed(self, value: int, other: int = 0) -> None: ...
    limit: int
def module() -> Module:
    import torch
    return torch.cuda
def other() -> int:
    import torch_npu
    npu: Module = torch_npu.npu
    return 1
"""
    uses = [(use.name, str(use.call) if use.call else "read") for use in found(source)]
    for name in ("torch.cuda", "torch_npu.npu"):
        assert (f"{name}.seed", "(value=, other=)") in uses
        assert (f"{name}.limit", "read") in uses


def test_names_asked_for_with_hasattr_may_be_missing() -> None:
    uses = found("import torch_npu\nif hasattr(torch_npu.npu, 'new'): torch_npu.npu.new(1)\ntorch_npu.npu.old()")
    assert {use.name: use.probed for use in uses} == {
        "torch_npu": False,
        "torch_npu.npu": False,
        "torch_npu.npu.new": True,
        "torch_npu.npu.old": False,
    }


def test_entries_are_grouped_and_belong_to_the_devices_of_their_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "devices/omni_devices/ascend/a.py": "import torch_npu\ndef f(): torch_npu.npu.g()",
            "devices/omni_devices/common/b.py": "import torch\ntorch.cuda.g()\ntorch.cuda.g(1)",
            "backends/omni_backends/c.py": "x = 1",
        },
    )
    entries = {one.name: one for one in contract.entries(tmp_path)}
    assert entries["torch_npu.npu.g"].stacks == ("ascend",)
    assert entries["torch.cuda.g"].stacks == ("cpu", "cuda", "rocm", "ascend")
    assert entries["torch.cuda.g"].record()["used"] == ["()", "(1)"]
    assert entries["torch_npu.npu.g"].record()["where"] == ["devices/omni_devices/ascend/a.py:f"]


def test_manifests_go_stale_with_the_source_but_not_with_its_lines(tmp_path: Path) -> None:
    source = "devices/omni_devices/ascend/a.py"
    write(tmp_path, {source: "import torch_npu\ntorch_npu.npu.f(1)\n"})
    write(tmp_path, contract.manifests(contract.entries(tmp_path)))
    write(tmp_path, {source: "# moved\n\nimport torch_npu\ntorch_npu.npu.f(1)\n"})
    assert contract.stale(tmp_path, contract.manifests(contract.entries(tmp_path))) == []
    write(tmp_path, {source: "import torch_npu\ntorch_npu.npu.f(1, 2)\n"})
    (problem,) = contract.stale(tmp_path, contract.manifests(contract.entries(tmp_path)))
    assert "tests/contracts/torch_npu.json is stale" in problem
    write(tmp_path, {source: ""})
    (problem,) = contract.stale(tmp_path, contract.manifests(contract.entries(tmp_path)))
    assert "nothing uses this package" in problem


def test_drift_names_our_file_and_line() -> None:
    stored = records(library({"torch_npu/__init__.py": "def f(a): ..."}), ["torch_npu.f"])
    wanted = [entry("torch_npu.f", Call(1), Call(0, ("b",))), entry("torch_npu.g", None)]
    wrong_parameter, missing = findings(wanted, "ascend", stored)
    assert wrong_parameter.where == missing.where == "devices/omni_devices/ascend/x.py:7"
    assert wrong_parameter.verdict.outcome == missing.verdict.outcome == "drift"
    assert "torch_npu.f(a) does not take (b=)" in wrong_parameter.verdict.reason
    assert missing.verdict.reason == "torch_npu has no 'g'"
    assert findings(wanted, "cuda", stored) == []


def sorted_report(files: str, *allowed: Unchecked, probed: bool = False) -> Report:
    """What the report says of `torch_npu.C().x`, in a package with this source."""
    report, used = Report(), set[Unchecked]()
    one = entry("torch_npu.C().x")
    if probed:
        one = contract.Entry(one.name, tuple(found("import torch_npu\nhasattr(torch_npu.C(), 'x')")[1:2]))
    stored = records(library({"torch_npu/__init__.py": files}), [one.name])
    offline._sort(findings([one], "ascend", stored), Exceptions(allowed, ()), used, {}, report)
    return report


def test_the_unknown_needs_an_exception() -> None:
    unknown = "from elsewhere import B\nclass C(B): ..."
    report = sorted_report(unknown)
    assert report.unchecked == []
    assert "add an exception with the reason" in report.problems[0]
    report = sorted_report(unknown, Unchecked("torch_npu.C().x", "compiled"))
    assert report.problems == []
    assert report.unchecked == ["torch_npu.C().x (ascend): compiled"]
    assert sorted_report(unknown, Unchecked("torch_npu.C().x", "compiled", ("cuda",))).problems


def test_an_exception_hides_no_drift() -> None:
    drift = "class C: ..."
    assert "has no 'x'" in sorted_report(drift, Unchecked("torch_npu.C().x", "compiled")).problems[0]
    assert sorted_report(drift, probed=True).problems == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[unchecked]]\nname = "a"\n', "has no reason"),
        ('[[unchecked]]\nname = "a"\nreason = " "\n', "has no reason"),
        ('[[unchecked]]\nname = "a"\nreason = "b"\nwhy = "c"\n', "unknown key why"),
        ('[[other]]\nname = "a"\n', "unknown table other"),
    ],
)
def test_exceptions_that_are_no_exceptions(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, {exceptions.FILE: text})
    with pytest.raises(ValueError, match=message):
        exceptions.read(tmp_path)


REGISTRIES = {"diffusers": ["native"], "transformers": ["sdpa"], "vllm": ["FLASH_ATTN"], "vllm_omni": ["TORCH_SDPA"]}


def test_names_of_kernels_must_exist() -> None:
    good = [
        Spelling("diffusers", "native", "cuda", "sdpa", "vae"),
        Spelling("vllm", "FLASH_ATTN", "cuda", "f", "language_model"),
    ]
    bad = Spelling("vllm_omni", "SDPA", "cuda", "sdpa", "transformer")
    assert tables.unknown(good, "cuda", REGISTRIES) == []
    (problem,) = tables.unknown([*good, bad], "cuda", REGISTRIES)
    assert "family 'sdpa' for transformer is 'SDPA' in vllm_omni" in problem
    assert tables.unknown([bad], "rocm", REGISTRIES) == []
    (problem,) = tables.unknown([], "cuda", {**REGISTRIES, "vllm": [tables.NO_ROLLOUT_KERNEL]})
    assert "stands for having none" in problem


def test_registries_are_read_from_the_libraries_sources() -> None:
    members = "(Enum):\n  ONE = 'two'\n  THREE = ('f' + 'our')\n"
    by_value = "class AttentionBackendName(str, Enum):\n  NATIVE = 'native'\n"
    mapping = "class AttentionInterface:\n  _global_mapping = {'sdpa': f, 'paged|sdpa': g}\n"
    omni = "vllm_omni/diffusion/attention/backends/registry.py"
    files = {
        "diffusers/models/attention_dispatch.py": by_value,
        "transformers/modeling_utils.py": mapping,
        "vllm/v1/attention/backends/registry.py": f"class AttentionBackendEnum{members}",
        omni: f"class DiffusionAttentionBackendEnum{members}",
    }
    names = tables.registry_names(library(files))
    assert names["diffusers"] == ["native"]
    assert names["transformers"] == ["eager", "paged|sdpa", "sdpa"]
    assert names["vllm"] == names["vllm_omni"] == ["ONE", "THREE"]
    with pytest.raises(LookupError, match="AttentionBackendName"):
        tables.registry_names(library({"diffusers/models/attention_dispatch.py": ""}))


NEED = PackageNeed("Vendor_Kernel", ">=2,<3", "a kernel", "pip install vendor-kernel")


def test_a_device_must_want_what_its_constraints_pin() -> None:
    assert tables.disagreements([("cuda", NEED)], "cuda", {"vendor-kernel": "2.1rc1"}) == []
    assert tables.disagreements([("cuda", NEED)], "cuda", {"other": "9"}) == []
    assert tables.disagreements([("cuda", NEED)], "rocm", {"vendor-kernel": "3.0"}) == []
    (problem,) = tables.disagreements([("cuda", NEED)], "cuda", {"vendor-kernel": "3.0"})
    assert "wants Vendor_Kernel>=2,<3, but the constraints pin 3.0" in problem


@pytest.mark.parametrize(
    ("versions", "allowed", "problem"),
    [
        (["2.1rc1"], [], ""),
        (["1.9", "1.8"], [], "is not on the index, which has 1.9"),
        ([], [], "is not on the index, which has nothing"),
        ([], [Absent("vendor-kernel", "private")], ""),
        ([], [Absent("vendor-kernel", "private", ("rocm",))], "is not on the index"),
        (["2.5"], [Absent("vendor-kernel", "private")], "the exception for vendor-kernel is unnecessary"),
    ],
)
def test_packages_must_be_on_the_index(
    monkeypatch: pytest.MonkeyPatch, versions: list[str], allowed: list[Absent], problem: str
) -> None:
    monkeypatch.setattr(online, "published", lambda name: versions)
    problems = online.missing_packages([("cuda", NEED)], allowed)
    assert bool(problems) == bool(problem)
    assert problem in "".join(problems)


def test_stored_signatures_must_be_of_the_pinned_versions() -> None:
    pinned = {package.distribution: "1.0" for package in STACKS["cuda"]} | {"vllm": "0.30.0"}
    sources = [
        {"distribution": package.distribution, "version": version_of(package, pinned)} for package in STACKS["cuda"]
    ]
    assert offline._outdated("cuda", sources, pinned) == []
    problems = offline._outdated("cuda", sources, {**pinned, "vllm": "0.31.0"})
    assert [problem.partition(" is of ")[2].partition(":")[0] for problem in problems] == [
        "other versions than vllm 0.31.0",
        "vllm 0.30.0, which is not asked for",
    ]


def test_pins_are_public_versions(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"dockerfiles/constraints/rocm.txt": "# note\nTorch==2.12.0+git1 # why\nx>=1\nA_b==1.0 ; python_version>'3'\n"},
    )
    assert pins(tmp_path, "rocm") == {"torch": "2.12.0", "a-b": "1.0"}


def test_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(offline, "report", lambda root: Report([], ["x: compiled"], 3, 4))
    assert cli.main([], tmp_path) == 0
    assert "not checked: x: compiled" in capsys.readouterr().out
    monkeypatch.setattr(offline, "report", lambda root: Report(["a.py:1 drifted"], [], 3, 4))
    assert cli.main([], tmp_path) == 1
    assert "FAILS a.py:1 drifted" in capsys.readouterr().out

    def unreachable(root: Path, update: bool) -> list[str]:
        raise fetch.FetchError("no wheel of x 1")

    monkeypatch.setattr(online, "problems", unreachable)
    assert cli.main(["--download"], tmp_path) == 3
    assert "no wheel of x 1" in capsys.readouterr().err


@pytest.mark.parametrize("stack", STACKS)
def test_signatures_have_provenance(stack: str) -> None:
    for source in store.read(ROOT, stack)["sources"]:
        assert len(source["sha256"]) == 64
        assert source["version"] in source["file"]


def test_the_code_base_keeps_its_contracts() -> None:
    report = offline.report(ROOT)
    assert report.problems == []
    assert report.agreed + len(report.unchecked) >= report.total > 100
