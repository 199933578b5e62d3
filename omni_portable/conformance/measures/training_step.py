"""One training step of the packaged model, as checksums: what must not change from one run to the next."""

from __future__ import annotations

import torch

from omni_portable.conformance.context import Context
from omni_portable.models.extents import extent_of
from omni_portable.models.setup import load_adapter
from omni_portable.models.weights import checksums
from omni_portable.samplers.noise import normal

PROMPTS = ("a red A", "two letters", "the word CAT", "x")
LEARNING_RATE = 1e-3


def step_checksums(context: Context, seed: int) -> dict[str, str]:
    """Losses before and after one AdamW step, every gradient and every weight after it: name -> checksum.

    The step is a fresh copy's: forward and backward through the packaged model's transformer, mean squared velocity as
    the loss. Noise depends on `seed`; so does whatever the device draws.
    """
    packaged = context.packaged
    if packaged.config.device.deterministic:
        context.device.determinism.enable(seed)
    else:
        context.device.manual_seed(seed)
    adapter = load_adapter(packaged.setup, ("transformer", "text_encoder"))
    size = extent_of(packaged.config.rollout)
    noise = normal(seed, (len(PROMPTS), *adapter.latent_shape(size)))
    latents = noise.to(packaged.model.load.torch_device)
    schedule = adapter.schedule(packaged.config.rollout.num_steps, size)
    times = [schedule.sigmas[row] * schedule.timestep_scale for row in range(len(PROMPTS))]
    timesteps = torch.tensor(times, dtype=torch.float32, device=latents.device)
    conditioning = adapter.collate(adapter.encode(PROMPTS, None, size))

    def loss() -> torch.Tensor:
        return adapter.velocity(latents, timesteps, conditioning, 1.0).pow(2).mean()

    weights = dict(adapter.trainable_tensors())
    optimizer = torch.optim.AdamW([tensor for tensor in weights.values() if tensor.requires_grad], lr=LEARNING_RATE)
    before = loss()
    before.backward()
    gradients = {f"gradient of {name}": w.grad for name, w in weights.items() if w.grad is not None}
    found = checksums({"loss before": before, **gradients}.items())
    optimizer.step()
    return found | checksums({"loss after": loss(), **weights}.items())
