"""The catalogue: ids are stable, complete, and what the documentation says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from omni_portable.conformance import catalogue
from omni_portable.conformance.catalogue import GROUPS, all_checks, markdown_list, select
from omni_portable.contracts.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
CHECKS = all_checks()


def test_every_group_has_checks_in_order() -> None:
    assert list(dict.fromkeys(check.group for check in CHECKS)) == list(GROUPS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_texts_are_for_people(check: object) -> None:
    made = next(one for one in CHECKS if one is check)
    assert re.fullmatch(r"[a-z-]+\.[a-z0-9-]+", made.id)
    assert made.id.startswith(f"{made.group}.")
    assert made.title.endswith(".")
    assert made.remedy[0].islower()
    assert not made.remedy.endswith(".")
    assert made.title[0].isupper() or made.title.startswith("fp32")


def test_the_page_lists_them_all() -> None:
    assert markdown_list() in PAGE.read_text(encoding="utf-8"), (
        "paste the output of `omni-portable conformance list --markdown` into docs/conformance.md"
    )


def test_quick_is_a_part_of_full() -> None:
    quick, full = select("quick"), select("full")
    assert full == CHECKS
    assert set(quick) < set(full)
    assert {check.group for check in quick} >= {"identity", "precision", "attention", "memory", "noise"}


def test_only_takes_ids_of_any_suite_and_groups_of_the_suite() -> None:
    assert [check.id for check in select("quick", ["memory.cycles"])] == ["memory.cycles"]
    memory = [check.id for check in select("quick", ["memory"])]
    assert "memory.stats" in memory
    assert "memory.cycles" not in memory
    both = [check.id for check in select("full", ["noise", "memory.cycles"])]
    assert both == ["memory.cycles", "noise.recorded", "noise.transfer", "noise.batches"], "in the catalogue's order"


@pytest.mark.parametrize("name", ["memory.stat", "nois", "", "attention.*"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select("full", ["noise", name])
    assert f"--only={name}" in str(caught.value)
    assert "memory" in caught.value.choices


def test_a_close_name_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'memory\.stats'"):
        select("full", ["memory.stat"])


@pytest.mark.parametrize(
    ("change", "said"), [({"id": "noise.batches"}, "two checks"), ({"id": "noises.x"}, "does not start with its group")]
)
def test_faults_of_the_catalogue_are_found(monkeypatch: pytest.MonkeyPatch, change: dict[str, str], said: str) -> None:
    from omni_portable.conformance.checks import noise

    monkeypatch.setattr(noise, "CHECKS", (*noise.CHECKS, replace(noise.CHECKS[0], **change)))
    with pytest.raises(ValueError, match=said):
        catalogue.all_checks()
