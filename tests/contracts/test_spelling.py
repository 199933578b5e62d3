"""What may have been meant: other cases and separators first, names with the word in them, then the nearest."""

from __future__ import annotations

import pytest

from omni_portable.contracts import registry
from omni_portable.contracts.errors import PluginError
from omni_portable.contracts.spelling import closest, did_you_mean

NAMES = ("dance_grpo", "diffusion_nft", "flow_grpo", "grpo", "omni_nft", "sft", "qwen_vl", "mmk12")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("DanceGRPO", ["dance_grpo"]),
        ("dance-grpo", ["dance_grpo"]),
        ("nft", ["omni_nft", "diffusion_nft"]),
        ("GRPO", ["grpo"]),
        ("mmk", ["mmk12"]),
        ("Qwen2.5-VL", ["qwen_vl"]),
        ("flow_grp", ["flow_grpo"]),
        ("ft", ["sft"]),
        ("", []),
        ("beauty", []),
    ],
)
def test_closest(wanted, expected):
    assert closest(wanted, NAMES) == expected


def test_whole_words_come_before_parts_and_few_are_named():
    assert closest("step", ["num_steps", "step", "stepwise"]) == ["step"]
    assert closest("step", ["num_steps", "one.step"]) == ["one.step"]
    assert len(closest("recipe", [f"recipe{i}" for i in range(9)])) == 3
    assert did_you_mean("nft", NAMES) == "did you mean 'omni_nft' or 'diffusion_nft'?"
    assert did_you_mean("zzz", NAMES) == ""


def test_the_registry_suggests_too():
    with pytest.raises(PluginError, match="did you mean 'omni_nft' or 'diffusion_nft'"):
        registry.spec("algorithm", "nft")
