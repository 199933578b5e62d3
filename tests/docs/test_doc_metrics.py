"""The glossary of metrics is complete and holds nothing that nobody logs, as far as string literals tell; what runs
really write is compared by the tests that train (tests/e2e)."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.glossary import described, names_in_code, undescribed
from tests.docs.pages import ROOT, prose

COUNTERS = "perf/rollout/"
"""Below it engines count by names of their own (`RolloutStatistics.count`)."""
PER_STREAM = "actor/<metric>/<stream>"


def test_every_name_in_the_code_is_described() -> None:
    found = names_in_code()
    assert len(found) > 80
    assert undescribed(name for name in found if "<" not in name) == []
    for name in (name for name in found if "<part>" in name):  # something that it can become
        wanted = re.compile(re.sub("<part>", ".+", name))
        assert any(wanted.fullmatch(entry) for entry in described()), name


def test_every_described_name_is_in_the_code() -> None:
    patterns = [re.compile(re.sub("<part>", ".+", name)) for name in names_in_code()]
    unknown = [name for name in described() if not any(p.fullmatch(name) for p in patterns)]
    assert [name for name in unknown if not name.startswith(COUNTERS) and name != PER_STREAM] == []


def test_no_name_is_described_twice() -> None:
    assert len(described()) == len(set(described()))


def test_run_directory_table_names_every_file_that_the_trainer_writes() -> None:
    """Names of files that stand in the trainer's code."""
    table = prose(ROOT / "docs" / "user-guide.md").partition("## The run directory")[2].partition("\n## ")[0]
    code = "".join(path.read_text(encoding="utf-8") for path in Path(ROOT, "omni_portable", "trainer").rglob("*.py"))
    files = set(re.findall(r'"([a-z_]+\.(?:jsonl|json|yaml|txt|html|lock))"', code))
    assert {"metrics.jsonl", "timeline.jsonl", "summary.json"} <= files
    inside = {"trainer.json", "inputs.json", "manifest.json", "samples.jsonl", "adapter_config.json", "config.json"}
    assert sorted(name for name in files - inside if f"`{name}`" not in table) == []
