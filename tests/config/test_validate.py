"""Checks across keys: each refusal names the keys and what would do."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from omni_portable.config.batches import nearby_divisors, resolve_batches
from omni_portable.config.loader import load_config, plan_text
from omni_portable.config.rules import CHOICES, RANGES, lookup
from omni_portable.config.schema import RunConfig
from omni_portable.contracts.errors import CapabilityError, ConfigError


def fails(recipe: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("rollout.n=0", "at least 1"),
        ("actor.eps=0", "at least 1e-30"),
        ("actor.beta1=1", "below 1"),
        ("actor.lr=inf", "finite"),
        ("actor.lr=nan", "finite"),
        ("rollout.sleep_level=3", "at most 2"),
        ("trainer.seed=-1", "at least 0"),
        ("trainer.mode=snyc", "did you mean 'sync'"),
        ("reward.on_error=ignore", "drop_group"),
        ("trainer.progress=loud", "plain"),
        ("consistency.measure=some", "first_mini_batch"),
        ("consistency.batch_shapes=[4,0]", "at least 1"),
        ("device.dtype=bf16", "bfloat16"),
        ("trainer.resume=atuo", "did you mean 'auto'"),
        ("dataplane.max_staleness=1", "trainer.mode=sync"),
        ("trainer.resume=''", "valid choices: never"),
        ("trainer.resume='~nobody-of-that-name'", "cannot be used"),
        ("trainer.loggers=[jsonl,jsonl]", "twice"),
        ("model.path=''", "is empty"),
        ("data.train=' '", "is empty"),
        ("device.threads=100000000000000000000", "at most 4096"),
        ("rollout.num_steps=100000000000000000000", "at most 10000"),
        ("rollout.n=100000000000000000000", "at most 1e+06"),
        ("data.train_batch_size=100000000000000000000", "at most 1e+06"),
        ("reward.timeout_s=1e30", "at most 1e+09"),
    ],
)
def test_single_values(recipe, override, part):
    message = fails(recipe, override)
    assert part in message
    assert override.partition("=")[0] in message


def test_every_rule_names_a_key_that_exists():
    config = RunConfig()
    for key in (*RANGES, *CHOICES):
        lookup(config, key)
    for key, names in CHOICES.items():
        assert lookup(config, key) in names
    for key, bounds in RANGES.items():
        value = lookup(config, key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        assert all(map(bounds.holds, values)), key


@pytest.mark.parametrize(
    ("override", "kind"),
    [
        ("model.family=tyo", "toy"),
        ("algorithm.name=gpro", "grpo"),
        ("rollout.engine=natve", "native"),
        ("actor.engine=sngle", "single"),
        ("dataplane.name=locl", "local"),
        ("launcher.name=locl", "local"),
        ("trainer.loggers=[jsonx]", "jsonl"),
        ("reward.scorers.main.kind=readr", "reader"),
        ("device.name=cpuu", "cpu"),
        ("device.name=ray_gun:g2", "ray_gun:g1"),
        ("device.attention={transfomer: sdpa}", "transformer"),
    ],
)
def test_unknown_names_list_the_valid_ones(recipe, override, kind):
    message = fails(recipe, override)
    assert kind in message
    assert override.partition("=")[2].strip("[]{}").partition(":")[0] in message


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["rollout.n=1"], "rollout.n=2 or more"),
        (["model.family=talker"], "diffusion"),
        (["rollout.engine=texts"], "rollout.engine=texts"),
        (["rollout.engine=sde_only"], "algorithm.step_kind=cps"),
        (["actor.engine=full_only", "model.lora.rank=4"], "actor.engine=full_only"),
        (["model.lora.rank=4", "model.lora.dropout=0.1"], "model.lora.dropout=0"),
        (["rollout.guidance_scale=4.5"], "rollout.guidance_scale=1"),
        (["algorithm.noise_level=0"], "above 0"),
        (["reward.scorers.main.kind=listener"], "image (image)"),
        (["reward.scorers.main.image=picture"], "'picture'"),
    ],
)
def test_parts_that_do_not_fit(recipe, overrides, part):
    with pytest.raises(CapabilityError) as caught:
        load_config(recipe, overrides)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["~reward.scorers.main"], "reward.scorers is empty"),
        (["reward.scorers.main.weight=0"], "nothing to optimise"),
        (["reward.scorers.main.weight=nan"], "finite number"),
        (["reward.scorers.main.weight=much"], "finite number"),
        (["reward.scorers.main.kind=null"], "reward.scorers.main.kind"),
        (["rollout.negative_prompt=blur"], "guidance off"),
        (["model.lora.alpha=4"], "model.lora.rank"),
        (["algorithm.indices=[8]"], "rollout.num_steps=8"),
        (["algorithm.indices=[7]"], "last step"),
        (["algorithm.clip=0"], "in 'algorithm': clip=0"),
        (["model.path=builtin:nothing"], "nothing"),
        (["data.train=builtin:nothing"], "nothing"),
        (["device.name='auto:g1'"], "takes no generation"),
    ],
)
def test_other_contradictions(recipe, overrides, part):
    assert part in fails(recipe, *overrides)


def test_one_sample_per_prompt_is_fine_where_the_algorithm_allows_it(recipe):
    config = load_config(recipe, ["algorithm={name: plain}", "rollout.n=1"])
    assert config.rollout.n == 1


def test_batch_sizes_that_do_not_divide_say_which_would(recipe):
    sizes = ["data.train_batch_size=12", "rollout.n=16"]
    message = fails(recipe, *sizes, "actor.mini_batch_size=50")
    assert "trains on 192 samples" in message
    assert "no whole number of mini-batches of 50" in message
    assert all(f"{size}" in message for size in (32, 48, 64))
    assert "larger than its mini-batch of 8" in fails(
        recipe, *sizes, "actor.mini_batch_size=8", "actor.micro_batch_size=16"
    )
    assert load_config(recipe, [*sizes, "actor.mini_batch_size=48"]).actor.mini_batch_size == 48


def test_nearby_divisors():
    assert nearby_divisors(192, 50, 4) == [32, 48, 64] or nearby_divisors(192, 50, 3) == [32, 48, 64]
    assert nearby_divisors(7, 3) == [1, 7]


def test_resolved_batches(recipe):
    batches = resolve_batches(
        load_config(recipe, ["data.train_batch_size=12", "rollout.n=16", "actor.mini_batch_size=96", "actor.epochs=2"])
    )
    assert (batches.samples, batches.packs, batches.mini_batches, batches.micro_batches) == (192, 6, 2, 3)
    assert batches.optimizer_steps == 4
    assert batches.aligned


@pytest.mark.parametrize("overrides", [["actor.micro_batch_size=16"], ["actor.mini_batch_size=48"]])
def test_sizes_that_cut_rollout_packs_are_not_aligned(recipe, overrides):
    config = load_config(recipe, ["data.train_batch_size=12", "rollout.n=16", *overrides])
    assert not resolve_batches(config).aligned
    assert "near 1" in plan_text(config)


def test_the_plan_in_words(recipe):
    config = load_config(
        recipe,
        ["data.train_batch_size=12", "rollout.n=16", "actor.mini_batch_size=96", "algorithm.indices=[1,2,3]"],
    )
    text = plan_text(config)
    for part in (
        "12 prompts x 16 samples = 192 samples",
        "6 packs of up to 32 x 8 denoising steps = 48 forwards",
        "2 mini-batches of 96 samples = 2 optimizer steps",
        "3 micro-batches of 32 per mini-batch x 3 stochastic steps: 18 forward-backward passes",
        "exactly 1",
        "20 rollouts, 3840 samples, 40 optimizer steps",
        "no validation",
    ):
        assert part in text, text


def test_configuration_loads_without_torch():
    code = (
        "import sys; import omni_portable.config.loader, omni_portable.config.plan; "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_section_that_is_removed_lacks_its_keys(recipe):
    assert "'model.family' has no value" in fails(recipe, "~model")


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["validation.num_steps=-1"], "validation.num_steps=-1"),
        (["validation.height=-8"], "validation.height=-8"),
        (["validation.guidance_scale=4.5"], "validation.guidance_scale=4.5"),
        (["validation.steps=40"], "validation.steps"),
    ],
)
def test_what_validation_cannot_draw_is_refused(recipe, overrides, part):
    assert part in fails(recipe, *overrides)


def test_the_plan_says_where_validation_differs(recipe):
    keys = ["validation.num_steps=40", "validation.height=1024", "data.validation=held_out.txt"]
    assert "before and after training, with num_steps 40, height 1024" in plan_text(load_config(recipe, keys))
    assert "with num_steps" not in plan_text(load_config(recipe, keys[2:]))


def test_the_plan_counts_one_thing_as_one(recipe):
    """No '1 micro-batches', '1 passes'."""
    keys = ["data.train_batch_size=1", "rollout.n=2", "rollout.max_num_seqs=2", "algorithm.indices=[1]"]
    text = plan_text(load_config(recipe, [*keys, "trainer.total_steps=1"]))
    assert re.findall(r"\b1 [a-z-]+(?:es|[^s]s)\b", text) == []
    for part in ("= 1 optimizer step", ": 1 forward-backward pass per rollout", "1 prompt x"):
        assert part in text
