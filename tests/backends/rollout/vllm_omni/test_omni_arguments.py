"""Our keys in the engine's own configuration classes; nothing is started."""

from __future__ import annotations

from typing import Any

import pytest

from omni_backends.rollout.vllm_omni import VllmOmniOptions
from omni_backends.rollout.vllm_omni.arguments import ENGINE, EXTENSION, engine_arguments
from omni_backends.rollout.vllm_omni.plugin import ARCHITECTURE
from tests.support.engines import make_setup, require_installed

require_installed("vllm", "vllm_omni")


def stage(**options: Any) -> dict[str, Any]:
    """What vLLM-Omni makes of our arguments for its one stage."""
    from vllm_omni.diffusion.data import DiffusionParallelConfig
    from vllm_omni.engine.omni_engine_base import OmniEngineBase

    arguments = engine_arguments(make_setup("sd3", max_num_seqs=7), VllmOmniOptions(**options))
    (made,) = OmniEngineBase._create_default_diffusion_stage_cfg(arguments)
    return {
        **made["engine_args"],
        "parallel_config": DiffusionParallelConfig.from_dict(made["engine_args"]["parallel_config"]),
    }


def test_every_argument_arrives_in_the_stage() -> None:
    found = stage()
    assert found["max_num_seqs"] == 7
    assert found["dtype"] == "float32"
    assert found["model_class_name"] == ARCHITECTURE
    assert found["engine_backend"] == ENGINE
    assert found["worker_extension_cls"] == EXTENSION
    assert found["distributed_executor_backend"] == "uni"
    assert found["enforce_eager"] is True
    assert found["step_execution"] is False
    assert found["request_batch_max_wait_ms"] > 0
    assert found["custom_pipeline_args"]["family"] == "sd3"
    assert found["parallel_config"].world_size == found["num_gpus"] == 1


@pytest.mark.parametrize("size", [2, 4])
def test_devices_that_share_the_tokens(size: int) -> None:
    found = stage(sequence_parallel_size=size)
    parallel = found["parallel_config"]
    assert (parallel.sequence_parallel_size, parallel.ulysses_degree, parallel.ring_degree) == (size, size, 1)
    assert (parallel.tensor_parallel_size, parallel.cfg_parallel_size, parallel.data_parallel_size) == (1, 1, 1)
    assert parallel.vae_patch_parallel_size == 1
    assert parallel.world_size == found["num_gpus"] == size
    assert found["distributed_executor_backend"] == "mp"


def test_tiles_and_batches_of_single_steps() -> None:
    found = stage(vae_tiling=True, step_execution=True)
    assert found["vae_use_tiling"] is True
    assert (found["step_execution"], found["request_batch_max_wait_ms"]) == (True, 0.0)


def test_the_engine_knows_what_it_is_given() -> None:
    from vllm_omni.diffusion.data import DiffusionParallelConfig, OmniDiffusionConfig
    from vllm_omni.engine.arg_utils import OmniEngineArgs

    given = engine_arguments(make_setup("sd3"), VllmOmniOptions(sequence_parallel_size=2))
    classes = (OmniEngineArgs, OmniDiffusionConfig, DiffusionParallelConfig)
    known = {name for cls in classes for name in cls.__dataclass_fields__}
    assert set(given) - known == {"stage_init_timeout", "init_timeout"}  # of `AsyncOmni` itself
