"""What is refused before Megatron is asked, and what it is told."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from omni_backends.training.megatron import SPEC, requirements
from omni_backends.training.megatron.engine import MegatronTrainEngine
from omni_backends.training.megatron.options import MegatronOptions
from omni_backends.training.megatron.policy import source_settings
from omni_backends.training.megatron.settings import settings
from omni_portable.contracts.errors import CapabilityError, ConfigError, PluginError
from tests.support.engines import make_setup
from tests.support.token_models import folder


def model(**changes):
    return dict(source_settings(folder("qwen3"))) | changes


def told(config=None, *, tensor_parallel=1, options=None):
    return settings(config or model(), options or MegatronOptions(), tensor_parallel=tensor_parallel, where="FOLDER")


def test_a_model_becomes_megatrons_sizes():
    config = model(vocab_size=261)
    found = told(config, tensor_parallel=2)
    assert (found.layers, found.width, found.feed_forward, found.head_width) == (2, 32, 64, config["head_dim"])
    assert (found.shape.heads, found.shape.groups, found.shape.vocabulary, found.shape.padded) == (4, 2, 261, 262)
    assert found.epsilon == config["rms_norm_eps"]
    assert found.rotary_base == config["rope_parameters"]["rope_theta"]
    assert not found.tied
    assert told(model(tie_word_embeddings=True)).tied
    assert told(options=MegatronOptions(layers="transformer_engine")).shape.fused_norms


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "type 'yarn'"),
    ],
)
def test_what_its_layers_would_not_compute_is_refused(changes, match):
    with pytest.raises(CapabilityError, match=match):
        told(model(**changes))


@pytest.mark.parametrize("size", [3, 4])
def test_layers_that_cannot_be_shared_equally_are_refused(size):
    with pytest.raises(ConfigError, match=f"tensor_parallel is {size}.*num_key_value_heads=2"):
        told(tensor_parallel=size)


def setup_with(family="qwen3", lora=0, **actor):
    setup = make_setup(family, folder(family), lora_rank=lora)
    setup.config.actor = dataclasses.replace(setup.config.actor, engine="megatron", **actor)
    return setup


@pytest.mark.parametrize(
    ("setup", "error", "match"),
    [
        (lambda: setup_with("qwen_vl"), CapabilityError, "model.family=qwen_vl"),
        (lambda: setup_with(lora=4), CapabilityError, "model.lora.rank=4"),
        (lambda: setup_with(options={"layers": "transformer_engine"}), CapabilityError, "does not run on a CPU"),
        (lambda: setup_with(options={"layers": "apex"}), ConfigError, "layers='apex'"),
        (lambda: setup_with(options={"tensor_paralel": 2}), ConfigError, "tensor_paralel"),
    ],
)
def test_a_run_that_cannot_work_ends_before_a_process_starts(setup, error, match):
    with pytest.raises(error, match=match):
        MegatronTrainEngine(setup())


def test_a_missing_or_other_version_is_named(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(requirements, "version", absent)
    with pytest.raises(PluginError, match=r"megatron-core .*not installed"):
        MegatronTrainEngine(setup_with())
    monkeypatch.setattr(requirements, "version", lambda name: "0.12.0")
    with pytest.raises(PluginError, match="0.12.0 is installed"):
        MegatronTrainEngine(setup_with())


def test_the_spec_loads_neither_torch_nor_megatron():
    code = "import sys, omni_backends.training.megatron as m; assert m.SPEC; print('torch' in sys.modules, 'megatron' in sys.modules)"  # noqa: E501
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
    assert SPEC.capabilities["evidence"] == {"cpu": "tests/backends/training/megatron"}
