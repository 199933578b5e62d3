"""The pages of models and algorithms: what they take from specs, docstrings and recipes."""

from __future__ import annotations

import pytest

from ci.docs_algorithms import index_page, needed, parts
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
def test_every_algorithm_has_an_equation(spec):
    """Something is computed: a difference, a ratio or a power stands in one of its docstrings."""
    texts = [part.text for part in parts(spec)]
    assert any(sign in text for text in texts for sign in ("^2", "exp(", "log ", "clip(", "sigmoid", "x_fake")), texts


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
