"""The pages of models and algorithms: what they take from specs, docstrings and recipes."""

from __future__ import annotations

import re

import pytest

from ci.docs_algorithms import algorithm_page, index_page, needed, parts, uses_advantages, without_arguments
from ci.docs_models import POSSIBLE, models_of, models_page, refusal, status
from omni_portable.config.catalogue import TESTED, catalogue
from omni_portable.contracts import registry

ENTRIES = catalogue(family="sd3")
ALGORITHMS = [registry.spec("algorithm", name) for name in registry.names("algorithm")]


def algorithm(name):
    return registry.spec("algorithm", name)


def family(name):
    return registry.spec("model", name)


@pytest.mark.parametrize("spec", ALGORITHMS, ids=lambda spec: spec.name)
def test_every_page_has_its_objective_and_a_source(spec):
    """'L = ...' with its symbols, before anything else, without sending the reader to another algorithm for it."""
    page = algorithm_page(spec, [], [], [])
    objective = page.partition("## Objective")[2].partition("\n## ")[0]
    assert re.search(r"^    .*\bL +=.*(\^2|max\(|log |sigmoid|mean|-A|L_s)", objective, re.MULTILINE), objective
    assert re.search(r"arXiv \d{4}\.\d{5}|Source: |VeRL-Omni", objective)
    assert [line for line in objective.splitlines() if len(line) > 120] == []
    if re.search(r"-A\b|\bA e\b|\(A /", objective):
        assert re.search(r"\bA +=", objective), "what A is, is said"
    assert re.findall(r"^(?:Args|Raises|Returns):", page, re.MULTILINE) == []
    assert "All samples, in order." not in page


def test_arguments_are_left_out_of_docstrings():
    text = "x^2.\n\nArgs:\n    x: a.\n        more.\n\n    y: b.\n\nRaises:\n    E: c.\n\nSource: somebody."
    assert without_arguments(text) == "x^2.\n\nSource: somebody."
    assert without_arguments("Args:\n    x: a.\n") == ""


def test_advantages_are_shown_where_they_are_used():
    without = {spec.name for spec in ALGORITHMS if not uses_advantages(spec)}
    assert without == {"sft", "diffusion_dpo", "token_dpo", "diffusion_opd", "token_opd", "dmd2"}
    for spec in ALGORITHMS:
        shown = any(part.name.rpartition(".")[2] in ("group_advantages", "advantages") for part in parts(spec))
        assert not (shown and spec.name in without), spec.name


def test_own_parts_come_first_and_inherited_ones_follow():
    names = [part.name for part in parts(algorithm("omni_nft"))]
    assert names[:2] == ["OmniNFT", "OmniNFT.loss"]
    assert {"diffusion_nft_loss", "nft_reward_probability", "draw_noise_levels", "group_advantages"} <= set(names)
    assert "flow_grpo_loss" in [part.name for part in parts(algorithm("mix_grpo"))]
    dppo = [part.name for part in parts(algorithm("flow_dppo"))]
    assert "flow_dppo_loss" in dppo
    assert "flow_grpo_loss" not in dppo


def test_needs_by_default():
    assert needed(algorithm("diffusion_opd")) == ["teacher"]
    assert needed(algorithm("token_dpo")) == ["reference_policy", "preference_pairs"]
    assert needed(algorithm("sft")) == []


def test_status_of_pairs():
    assert status(family("sd3"), algorithm("flow_grpo"), ENTRIES) == TESTED
    assert status(family("sd3"), algorithm("omni_nft"), ENTRIES) == POSSIBLE
    assert status(family("sd3"), algorithm("gspo"), ENTRIES).startswith("impossible because algorithm.name=gspo")
    assert refusal("qwen_image", "diffusion_opd", "image") == "", "a teacher can be added"
    assert models_of(algorithm("gspo"), [family("sd3"), family("qwen3")], ENTRIES) == [
        "possible, not tested: `qwen3`",
        "impossible because the algorithm trains autoregressive models, but the model is diffusion: `sd3`",
    ]


def test_one_note_for_all_pairs_of_the_same_kinds():
    page = models_page([family("sd3"), family("flux")], [algorithm("gspo"), algorithm("ppo")], ENTRIES)
    assert page.count("impossible (1)") == 4
    assert "impossible (2)" not in page


def test_the_index_ends_with_the_comparison(tmp_path):
    assert "## Comparison" not in index_page(ALGORITHMS, ENTRIES, tmp_path)
    (tmp_path / "docs" / "algorithms").mkdir(parents=True)
    (tmp_path / "docs" / "algorithms" / "_comparison.md").write_text("## Comparison\n\nBy hand.\n")
    assert index_page(ALGORITHMS, ENTRIES, tmp_path).endswith("## Comparison\n\nBy hand.\n")
