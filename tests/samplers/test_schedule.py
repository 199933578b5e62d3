"""Schedules equal diffusers' scheduler to the last bit, and refuse what they cannot do."""

import json
import math

import numpy as np
import pytest
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import calculate_shift
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_portable.contracts.errors import ConfigError, ModelError
from omni_portable.samplers.schedule import dynamic_shift, flow_match_schedule, schedule_from_config

steady = settings(deadline=None, max_examples=60)


def stock(num_steps, config, **kwargs):
    scheduler = FlowMatchEulerDiscreteScheduler(**config)
    scheduler.set_timesteps(num_steps, **kwargs)
    return scheduler


@pytest.mark.parametrize("num_steps", [1, 2, 3, 8, 10, 28, 40, 50])
@pytest.mark.parametrize("shift", [1.0, 1.5, 3.0, 1.1, 6.7])
def test_static_shift_is_bit_equal(num_steps, shift):
    scheduler = stock(num_steps, {"shift": shift})
    ours = flow_match_schedule(num_steps, shift=shift)
    assert list(ours.sigmas) == scheduler.sigmas.tolist()
    timesteps = scheduler.sigmas[:-1] * ours.timestep_scale
    assert timesteps.tolist() == scheduler.timesteps.tolist()


@steady
@given(st.integers(1, 60), st.floats(0.3, 12.0))
def test_static_shift_is_bit_equal_everywhere(num_steps, shift):
    assert (
        list(flow_match_schedule(num_steps, shift=shift).sigmas) == stock(num_steps, {"shift": shift}).sigmas.tolist()
    )


@pytest.mark.parametrize("curve", ["exponential", "linear"])
@steady
@given(st.integers(1, 50), st.floats(0.3, 3.0))
def test_dynamic_shift_is_bit_equal(curve, num_steps, mu):
    config = {"use_dynamic_shifting": True, "time_shift_type": curve}
    ours = flow_match_schedule(num_steps, mu=mu, time_shift=curve)
    assert list(ours.sigmas) == stock(num_steps, config, mu=mu).sigmas.tolist()


@steady
@given(st.integers(2, 50), st.floats(0.3, 2.5), st.floats(0.01, 0.2))
def test_terminal_shift_with_uniform_spacing_is_bit_equal(num_steps, mu, terminal):
    config = {"use_dynamic_shifting": True, "shift_terminal": terminal}
    sigmas = np.linspace(1.0, 1 / num_steps, num_steps)
    expected = stock(num_steps, config, mu=mu, sigmas=sigmas).sigmas.tolist()
    ours = flow_match_schedule(num_steps, mu=mu, shift_terminal=terminal, spacing="uniform")
    assert list(ours.sigmas) == expected
    assert ours.sigmas[-2] == pytest.approx(terminal, abs=1e-6)


def test_explicit_sigmas_are_bit_equal():
    given_sigmas = [1.0, 0.83, 0.41, 0.07]
    expected = stock(4, {"shift": 2.5}, sigmas=given_sigmas).sigmas.tolist()
    assert list(flow_match_schedule(4, shift=2.5, sigmas=given_sigmas).sigmas) == expected


@steady
@given(st.integers(16, 16384), st.floats(0.1, 1.0), st.floats(1.0, 2.0))
def test_mu_is_the_pipelines_mu(tokens, base, top):
    assert dynamic_shift(tokens, base_shift=base, max_shift=top) == calculate_shift(tokens, 256, 4096, base, top)


@pytest.mark.parametrize("config", [{"shift": 3.0}, {"use_dynamic_shifting": True, "max_shift": 1.16}])
def test_a_saved_scheduler_config_describes_the_same_schedule(config, tmp_path):
    FlowMatchEulerDiscreteScheduler(**config).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "scheduler_config.json").read_text())
    mu = calculate_shift(1024, 256, 4096, 0.5, 1.16) if config.get("use_dynamic_shifting") else None
    assert list(schedule_from_config(saved, 12, tokens=1024).sigmas) == stock(12, config, mu=mu).sigmas.tolist()


@pytest.mark.parametrize("option", ["use_karras_sigmas", "invert_sigmas", "stochastic_sampling"])
def test_unsupported_scheduler_options_are_refused(option):
    with pytest.raises(ModelError, match=option):
        schedule_from_config({option: True}, 8)


def test_other_schedulers_and_missing_token_counts_are_refused():
    with pytest.raises(ModelError, match="DDIMScheduler"):
        schedule_from_config({"_class_name": "DDIMScheduler"}, 8)
    with pytest.raises(ModelError, match="token count"):
        schedule_from_config({"use_dynamic_shifting": True}, 8)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_steps": 0},
        {"num_steps": 4, "shift": 0.0},
        {"num_steps": 4, "shift": 1e9},
        {"num_steps": 3, "sigmas": [1.0, 0.5]},
        {"num_steps": 2, "sigmas": [0.5, 0.7]},
        {"num_steps": 2, "sigmas": [1.2, 0.7]},
        {"num_steps": 4, "spacing": "cosine"},
        {"num_steps": 4, "mu": 0.5, "time_shift": "cubic"},
    ],
)
def test_impossible_schedules_are_refused(arguments):
    with pytest.raises(ConfigError):
        flow_match_schedule(**arguments)


@pytest.mark.parametrize(
    "config",
    [
        {"shift": "x"},
        {"shift": None},
        {"shift": math.nan},
        {"num_train_timesteps": 0},
        {"shift_terminal": []},
        {"use_dynamic_shifting": True, "base_shift": True},
    ],
)
def test_scheduler_options_that_are_no_numbers_are_refused(config):
    with pytest.raises(ModelError, match=f"'{list(config)[-1]}'"):
        schedule_from_config(config, 8, tokens=16)
