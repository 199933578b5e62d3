"""Devices with one answer changed, checks with made-up outcomes, and reports for tests of what is made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from omni_portable.config.loader import load_config
from omni_portable.conformance.check import Check, Group, Measurement, NotRun, Outcome, Result
from omni_portable.conformance.context import Context
from omni_portable.conformance.report import Provenance, Report
from omni_portable.contracts import registry
from omni_portable.contracts.device import Device

RECIPE = "sd3/flow_grpo_ocr_tiny"


class Altered:
    """A part of the product with some attributes replaced; everything else is the original's."""

    def __init__(self, original: Any, **changes: Any) -> None:
        self.__dict__.update(changes)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def cpu(**changes: Any) -> Any:
    """The real CPU device, altered."""
    return Altered(registry.load("device", "cpu")(), **changes)


def context(work: Path, device: Device | None = None, *overrides: str) -> Context:
    """The packaged recipe on the CPU, or on a device that pretends to be it."""
    config = load_config(RECIPE, ["device.name=cpu", *overrides])
    return Context(device or registry.load("device", "cpu")(), config, work)


def check(name: str, run: Callable[[Context], Outcome], group: Group = "noise") -> Check:
    return Check(f"{group}.{name}", group, f"{name} holds.", "quick", run, f"mend {name}")


def measured(*measurements: Measurement) -> Callable[[Context], Outcome]:
    return lambda _: Outcome(measurements, "as made up")


def raising(error: BaseException) -> Callable[[Context], Outcome]:
    def run(_: Context) -> Outcome:
        raise error

    return run


GOOD = Measurement("error", 0.5, "", "<=", 1.0)
BAD = Measurement("error", 2.0, "", "<=", 1.0)
PLAIN = Measurement("speed", 12.0, "images/s")
ABSENT = NotRun("no <second> device")


def result(name: str, status: str, *measurements: Measurement, group: Group = "noise", **changes: Any) -> Result:
    reason = "" if status in ("passed", "recorded") else f"why {name} is {status}"
    made = Result(
        f"{group}.{name}",
        group,
        f"{name} holds.",
        status,
        reason,
        f"mend {name}",
        0.25,
        measurements,  # type: ignore[arg-type]
    )
    return replace(made, **changes)


RESULTS = (
    result("bits", "passed", GOOD, group="identity", facts={"driver": "1.0 <script>"}),
    result("level", "failed", BAD, group="memory", detail="a & b"),
    result("rate", "recorded", PLAIN, group="throughput", series={"reward": (0.1, float("nan"), 0.4)}),
    result("second", "not_run", group="collectives"),
)


def provenance(**changes: Any) -> Provenance:
    made = Provenance(
        state="complete",
        started="2026-01-02T03:04:05Z",
        finished="2026-01-02T03:05:05Z",
        seconds=60.0,
        suite="quick",
        only=(),
        recipe=RECIPE,
        overrides=(),
        seed=0,
        command="omni-portable conformance run --device cpu",
        catalogue=40,
        version="0.1.0",
        commit="0123456789abcdef",
        modified=False,
    )
    return replace(made, **changes)


def report(results: Sequence[Result] = RESULTS, *, name: str = "cpu", generation: str = "", **changes: Any) -> Report:
    identity = {
        "name": name,
        "generation": generation,
        "model": f"<{name}> processor",
        "count": 1,
        "memory_bytes": 2**30,
        "driver": "Linux",
        "libraries": {"torch": "2.13.0"},
    }
    environment = {
        "device": identity,
        "versions": {"torch": "2.13.0"},
        "model": {"dtype": "float32", "path": "m", "attention": {"transformer": {"family": "sdpa"}}},
        "determinism": {"applied": {"a": "b"}, "not_promised": ["equal bits elsewhere"]},
    }
    return Report(provenance(**changes), environment, tuple(results))


class Page(HTMLParser):
    """Checks that elements nest; collects text, references and anchors."""

    VOID = ("meta", "link", "img", "br", "line", "path", "rect", "circle")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.references += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href", "data")]
        self.ids += [str(values["id"])] if "id" in values else []
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data + " "
