"""One pipeline for all families inside vLLM-Omni: the engine's transformer, the adapter's conventions, our sampler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from omni_backends.rollout.vllm_omni.bridges import family_bridge
from omni_backends.rollout.vllm_omni.drawing import Answer, Drawer
from omni_backends.rollout.vllm_omni.messages import KEY
from omni_backends.rollout.vllm_omni.model import decode_load
from omni_backends.rollout.vllm_omni.policy import bridged, make_transformers
from omni_portable.contracts import registry
from omni_portable.contracts.errors import CapabilityError, ConfigError
from omni_portable.models.diffusers_adapter import DiffusersAdapter


class PolicyPipeline(nn.Module):
    """What vLLM-Omni runs as `model_class_name=OmniPortablePolicy`.

    Args:
        od_config: the engine's configuration; `custom_pipeline_args` says which model of ours (see `model`).
        prefix: of parameter names, unused.
    """

    supports_request_batch: ClassVar[bool] = True
    supports_request_cancellation: ClassVar[bool] = True
    supports_step_execution: ClassVar[bool] = True
    dummy_run_num_frames: ClassVar[int] = 0
    """No warm-up request: it would not be one of ours."""
    _dit_modules: ClassVar[list[str]] = ["transformer", "transformer_2"]
    _encoder_modules: ClassVar[list[str]] = []
    _vae_modules: ClassVar[list[str]] = []

    def __init__(self, *, od_config: Any, prefix: str = "") -> None:
        super().__init__()
        from vllm_omni.diffusion.distributed.utils import get_local_device
        from vllm_omni.diffusion.model_loader.diffusers_loader import DiffusersPipelineLoader

        self.od_config = od_config
        self.device: torch.device = get_local_device()
        settings: Mapping[str, Any] = od_config.custom_pipeline_args
        load = replace(
            decode_load(settings["load"], self.device, settings["family"]), components=("text_encoder", "vae")
        )
        bridge = family_bridge(settings["family"])
        self.transformers = make_transformers(bridge, od_config, load.path)
        for name, module in self.transformers.items():
            keep_unpacked(module)
            self.add_module(name, module)
        self.weights_sources = [
            DiffusersPipelineLoader.ComponentSource(
                model_or_path=str(load.path), subfolder=name, revision=None, prefix=f"{name}."
            )
            for name in self.transformers
        ]
        self.adapter: DiffusersAdapter = registry.load("model", settings["family"])(load)
        self.adapter.attach_transformer(bridged(bridge, self.transformers))
        check_parallel(od_config, self.transformers)
        if od_config.vae_use_tiling:
            self.adapter.tile_vae()
        self.drawer = Drawer(
            self.adapter, self.device, int(settings["prompt_cache_size"]), int(settings["decode_batch_size"])
        )
        self.lora_adapter: Any | None = None
        """What the hook of the engine's LoRA manager returns: set by weight updates."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """The engine's own mapping of a checkpoint onto its fused layers; names as they came in."""
        parts: dict[str, list[tuple[str, torch.Tensor]]] = {name: [] for name in self.transformers}
        for name, tensor in weights:
            component, _, path = name.partition(".")
            parts[component].append((path, tensor))
        loaded: set[str] = set()
        for component, found in parts.items():
            module: Any = self.transformers[component]
            loaded |= {f"{component}.{name}" for name in module.load_weights(found)}
            if not hasattr(module, "stacked_params_mapping"):
                fused = self.adapter.layout.fused
                module.stacked_params_mapping = [(f".{whole}", f".{part}", of) for part, (whole, of) in fused.items()]
        return loaded

    def forward(self, batch: Any) -> list[Any]:
        """Draw a batch of whole requests (`DiffusionRequestBatch`); one `DiffusionOutput` each."""
        from vllm_omni.diffusion.cancellation import check_request_cancellation

        messages = [message_of(params) for params in batch.sampling_params_list]
        return [output_of(answer) for answer in self.drawer.whole(messages, check_request_cancellation)]

    def prepare_encode(self, state: Any, **_: Any) -> Any:
        """Set up one request of step-level execution; our own state of it is `state.extra['sample']`."""
        sample = self.drawer.start(message_of(state.sampling))
        state.extra["sample"] = sample
        state.latents = sample.latents.unsqueeze(0).clone()
        schedule = sample.request.schedule
        state.timesteps = torch.tensor(schedule.sigmas[:-1], device=self.device) * schedule.timestep_scale
        state.step_index = 0
        return state

    def denoise_step(self, input_batch: Any, *, states: Sequence[Any] | None = None, **_: Any) -> torch.Tensor:
        """One step of all requests; what the engine calls a prediction are the next latents."""
        if states is None:
            raise ConfigError("vLLM-Omni formed a step without the states of its requests")
        samples = [state.extra["sample"] for state in states]
        self.drawer.advance(samples)
        return torch.stack([sample.latents for sample in samples])

    def step_scheduler(self, state: Any, noise_pred: torch.Tensor, **_: Any) -> None:
        """Take over what :meth:`denoise_step` drew for one request."""
        state.latents = noise_pred.clone()
        state.step_index += 1

    def post_decode(self, state: Any, **_: Any) -> Any:
        """The finished request's `DiffusionOutput`."""
        return output_of(self.drawer.finish(state.extra["sample"]))

    def _load_diffusion_lora_adapter(self, *, lora_request: Any, lora_path: str, dtype: torch.dtype) -> Any:
        """Hook of the engine's LoRA manager: the adapter that a weight update staged, in place of files."""
        if self.lora_adapter is None:
            raise ConfigError(f"no LoRA was sent for '{lora_request.lora_name}'")
        return self.lora_adapter


def message_of(sampling_params: Any) -> Mapping[str, Any]:
    """Our request in the engine's sampling parameters.

    Raises:
        ConfigError: a request that is not one of ours.
    """
    message = (sampling_params.extra_args or {}).get(KEY)
    if message is None:
        raise ConfigError(f"the engine runs rollout requests only; this one has no extra_args['{KEY}']")
    found: Mapping[str, Any] = message
    return found


def output_of(answer: Answer) -> Any:
    """`DiffusionOutput` that carries an answer through the engine's formatting unchanged."""
    from vllm_omni.diffusion.data import DiffusionOutput

    return DiffusionOutput(output={"payload": {"trajectory": answer}, "metadata": {}}, to_cpu=True)


def keep_unpacked(module: nn.Module) -> None:
    """Make vLLM's linear layers keep their weights as loaded, on every device.

    On the CPU they are otherwise packed for its matrix kernels and dropped, which leaves nothing to update and other
    rounding than the actor's.
    """
    from vllm.model_executor.layers.linear import LinearBase

    for child in module.modules():
        if isinstance(child, LinearBase):
            child.skip_weight_relayout = True


def check_parallel(od_config: Any, transformers: Mapping[str, nn.Module]) -> None:
    """Refuse (`CapabilityError`) sequence parallelism for a transformer that the engine cannot share among devices.

    The engine itself would warn and go on without it.
    """
    size = od_config.parallel_config.sequence_parallel_size
    without = [name for name, module in transformers.items() if getattr(module, "_sp_plan", None) is None]
    if size > 1 and without:
        raise CapabilityError(
            f"rollout.options.sequence_parallel_size={size}: vLLM-Omni has no plan to share the tokens of "
            f"{type(transformers[without[0]]).__name__}",
            remedy="set rollout.options.sequence_parallel_size=1",
        )
