"""The part of README.md that says what exists: names from the registry, and what each kind was run on. No torch."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from omni_portable.cli import placement, plan, simulate
from omni_portable.config.rules import CHOICES
from omni_portable.contracts.registry import PluginSpec

BEGIN, END = "<!-- made by ci/generate_docs.py: begin -->\n", "<!-- made by ci/generate_docs.py: end -->"
WIDTH = 120
PLANNING = {"plan": plan, "plan placement": placement, "simulate": simulate}
"""Commands of planning -> their modules."""
RUN_ON: Mapping[str, str] = {
    "model": "Tests train a tiny model of each on a CPU; none was run at full size.",
    "algorithm": "Each is trained in the tests.",
    "reward": "Rewards from models and from servers are not there yet.",
    "rollout_engine": "The first two need nothing else. vLLM and vLLM-Omni ([engines]"
    "(docs/engines.md)) are tested in their CPU builds, with tiny models, where they are installed; not run on "
    "accelerators.",
    "train_engine": "The first needs one process; the [others](docs/train-engines.md) are tested with tiny models in "
    "processes on one CPU machine, and were not run on accelerators or several machines.",
    "mode": "All are tested on a CPU, where the last two gain nothing: they pay where rollout and training have "
    "devices of their own.",
    "launcher": "`ray` ([clusters](docs/clusters.md)) is tested on one machine.",
    "data_plane": "`transferqueue` ([data planes](docs/dataplane.md)) is tested on one machine.",
    "planning": "Whether a recipe fits a device that is not here ([planning](docs/planning.md)), and how to split a "
    "cluster ([placement](docs/placement.md)). Memory is estimated for `sd3`; placement is compared with one published "
    "workload.",
    "conformance": "A report per device, reference vectors for the arithmetic. Only a CPU's report exists.",
}
"""Kind -> what its names were run on, or what is missing."""
ORDER = {"rollout_engine": ("native", "dataset"), "train_engine": ("single",), "device": ("cpu",)}
"""Names that come first."""
PLANNED = (
    "BAGEL, HunyuanImage-3.0, BOOGU-Image, Qwen3-TTS, MiniCPM-o",
    "rewards from models and servers",
    "reports from accelerators",
)


def readme_page(specs: Mapping[str, Sequence[PluginSpec]], root: Path) -> str:
    """README.md as it should be; the part from the code alone where there is no such file."""
    path = root / "README.md"
    return with_what_exists(path.read_text(encoding="utf-8") if path.is_file() else f"{BEGIN}{END}\n", specs, root)


def with_what_exists(text: str, specs: Mapping[str, Sequence[PluginSpec]], root: Path) -> str:
    """README.md with the part between the marks made anew.

    Raises:
        ValueError: the marks are not there, once each.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"README.md needs the lines {BEGIN.strip()!r} and {END!r}, once each")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{what_exists(specs, root)}\n{END}{rest.partition(END)[2]}"


def what_exists(specs: Mapping[str, Sequence[PluginSpec]], root: Path) -> str:
    """A list: kind, names, status."""
    models, algorithms = specs["model"], specs["algorithm"]
    made = {
        kind: [spec for spec in models if next(iter(spec.capabilities["artifacts"].values())) == kind] for kind in MADE
    }
    lines = [_devices(specs["device"], root)]
    lines += [_line(MADE[kind], _names("model", found), "") for kind, found in made.items()]
    lines[-1] += f" {RUN_ON['model']}"
    for kind, title in (("diffusion", "algorithms for diffusion"), ("token", "algorithms for tokens")):
        found = [spec for spec in algorithms if spec.capabilities["kind"] == kind]
        lines.append(_line(title, _names("algorithm", found), RUN_ON["algorithm"]))
    lines.append(_line("rewards", _names("reward", specs["reward"]), RUN_ON["reward"]))
    for kind in ("rollout_engine", "train_engine"):
        lines.append(_line(kind.replace("_", " ") + "s", _names(kind, specs[kind]), RUN_ON[kind]))
    lines.append(_line("modes", map(str, CHOICES["trainer.mode"]), RUN_ON["mode"]))
    for kind in ("launcher", "data_plane"):
        lines.append(_line(kind.replace("_", " ") + "s", _names(kind, specs[kind]), RUN_ON[kind]))
    lines.append(_line("planning", PLANNING, RUN_ON["planning"]))
    lines.append(_line("conformance", (), RUN_ON["conformance"]))
    lines.append(_line("not there yet", (), "; ".join(PLANNED) + "."))
    wrap = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(wrap.fill, lines))


MADE = {"image": "image models", "video": "video models (and sound)", "text": "language and omni models"}
"""First artifact of a family -> what it is called."""


def _devices(devices: Sequence[PluginSpec], root: Path) -> str:
    """Those with a conformance report before the others."""
    reports = root / "docs" / "conformance"
    run = [name for name in _names("device", devices) if any(reports.glob(f"{name}*/report.json"))]
    others = ", ".join(f"`{spec.name}`" for spec in devices if spec.name not in run)
    link = "([which parts](docs/planning.md#devices), [reports](docs/conformance/README.md))"
    return _line("devices", run, f"Not run on hardware: {others} {link}.")


def _names(kind: str, specs: Sequence[PluginSpec]) -> list[str]:
    names, first = [spec.name for spec in specs], ORDER.get(kind, ())
    return [*(name for name in first if name in names), *(name for name in names if name not in first)]


def _line(title: str, names: Iterable[str], status: str) -> str:
    text = ", ".join(f"`{name}`" for name in names)
    return f"- **{title}**: " + " ".join(part for part in (f"{text}." if text else "", status) if part)
