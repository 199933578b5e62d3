"""What is refused before VeOmni is asked, and what it is told."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from omni_backends.training.veomni import SPEC, requirements
from omni_backends.training.veomni.engine import VeOmniTrainEngine
from omni_backends.training.veomni.options import VeOmniOptions
from omni_backends.training.veomni.sequence import enable_sequence_parallel
from omni_backends.training.veomni.settings import settings
from omni_portable.config.schema import ActorConfig
from omni_portable.contracts.errors import CapabilityError, ConfigError, PluginError
from tests.backends.training.veomni.tiny import wan
from tests.support.engines import make_setup
from tests.support.token_models import folder


def told(*, dtype="float32", lora=False, options=None, **actor):
    config = ActorConfig(**({"world_size": 4} | actor))
    return settings(config, options or VeOmniOptions(), dtype=dtype, lora=lora, device_type="cpu", pinned=False)


def test_sizes():
    found = told(world_size=8, sequence_parallel=2, options=VeOmniOptions(replicate=2))
    assert (found.data, found.replicate, found.shard, found.sequence) == (4, 2, 2, 2)


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"sharding": "keep"}, "reshard", False),
        ({"sharding": "full"}, "reshard", True),
        ({"offload": "cpu"}, "offload", True),
        ({"reduce_dtype": "bfloat16"}, "reduce_dtype", "bfloat16"),
        ({"dtype": "bfloat16"}, "mixed", True),
        ({"dtype": "bfloat16", "lora": True}, "mixed", False),
        ({"options": VeOmniOptions(forward_prefetch=False)}, "prefetch", False),
    ],
)
def test_keys(changes, key, value):
    assert getattr(told(**changes), key) == value


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="at least 2 processes"):
        told(world_size=1)
    with pytest.raises(ConfigError, match="replicate=3 does not divide the 4 processes"):
        told(options=VeOmniOptions(replicate=3))
    with pytest.raises(ConfigError, match="replicate=0"):
        VeOmniOptions(replicate=0)


def test_sequences_are_only_split_where_veomni_can():
    with pytest.raises(CapabilityError, match="model.family=ltx2"):
        enable_sequence_parallel("ltx2", torch.nn.Linear(1, 1), 2, torch.device("cpu"))
    with pytest.raises(CapabilityError, match="does not divide the 2 heads"):
        enable_sequence_parallel("wan22", wan(), 3, torch.device("cpu"))


def setup_with(family="qwen3", lora=0, **actor):
    setup = make_setup(family, folder(family), lora_rank=lora)
    setup.config.actor = dataclasses.replace(setup.config.actor, engine="veomni", **({"world_size": 2} | actor))
    return setup


@pytest.mark.parametrize(
    ("setup", "error", "match"),
    [
        (lambda: setup_with(world_size=1), ConfigError, "at least 2 processes"),
        (lambda: setup_with(options={"replicas": 2}), ConfigError, "replicas"),
        (
            lambda: setup_with(lora=4, options={"export_own": True}),
            CapabilityError,
            "model.lora.rank trains an adapter",
        ),
    ],
)
def test_a_run_that_cannot_work_ends_before_a_process_starts(setup, error, match):
    with pytest.raises(error, match=match):
        VeOmniTrainEngine(setup())


def test_a_family_without_a_class_has_no_files_in_its_layout():
    setup = setup_with(options={"weights": "/nowhere"})
    setup.config.model.family = "sd3"
    with pytest.raises(CapabilityError, match="no model class of its own for model.family=sd3"):
        VeOmniTrainEngine(setup)


def test_a_missing_or_other_version_is_named(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(requirements, "version", absent)
    with pytest.raises(PluginError, match=r"veomni .*not installed"):
        VeOmniTrainEngine(setup_with())
    monkeypatch.setattr(requirements, "version", lambda name: "0.1.4")
    with pytest.raises(PluginError, match="0.1.4 is installed"):
        VeOmniTrainEngine(setup_with())


def test_the_spec_loads_neither_torch_nor_veomni():
    code = "import sys, omni_backends.training.veomni as m; assert m.SPEC; print('torch' in sys.modules, 'veomni' in sys.modules)"  # noqa: E501
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
    assert SPEC.capabilities["evidence"] == {"cpu": "tests/backends/training/veomni"}
