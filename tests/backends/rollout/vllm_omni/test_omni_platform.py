"""The platform plugin: what it answers here, and that it stays out of the way elsewhere."""

from __future__ import annotations

import pytest
import torch

from omni_backends.rollout.vllm_omni import plugin
from omni_portable.contracts.errors import CapabilityError
from tests.support.engines import require_installed

require_installed("vllm", "vllm_omni")


def test_the_platform_is_ours_where_vllm_runs_on_the_cpu():
    from vllm_omni.platforms import current_omni_platform, resolve_current_omni_platform_cls_qualname

    assert plugin.platform() == plugin.PLATFORM == resolve_current_omni_platform_cls_qualname()
    assert current_omni_platform.is_out_of_tree()
    assert current_omni_platform.get_torch_device(0) == torch.device("cpu")
    assert 0 < current_omni_platform.get_free_memory() <= current_omni_platform.get_device_memory()[1]
    with pytest.raises(CapabilityError, match="no attention kernel 'FLASH_ATTN'"):
        current_omni_platform.get_diffusion_attn_backend_cls("FLASH_ATTN", 64)


def test_the_platform_is_inert_beside_an_accelerator_and_beside_another_vllm(monkeypatch):
    from vllm import platforms

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert plugin.platform() is None
    monkeypatch.undo()
    monkeypatch.setattr(type(platforms.current_platform), "is_cpu", lambda self: False)
    assert plugin.platform() is None


def test_our_pipeline_is_known_and_may_be_registered_again():
    from vllm_omni.diffusion.registry import DiffusionModelRegistry

    plugin.register()
    plugin.register()
    found = DiffusionModelRegistry._try_load_model_cls(plugin.ARCHITECTURE)
    assert (found.__module__, found.__name__) == plugin.PIPELINE
    assert found.supports_request_batch
    assert found.supports_request_cancellation
