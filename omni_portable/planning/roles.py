"""Memory of each role on one device, as items; the arithmetic of the train and rollout engines, in numbers.

All counts follow what the engines do: fp32 LoRA matrices on a frozen base, or fp32 masters beside narrower parameters;
AdamW with two fp32 moments; copies of the policy in fp32; one (micro-batch, step) forward and backward at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from omni_portable.config.drawing import validation_changes, validation_rollout
from omni_portable.config.teachers import pooled
from omni_portable.contracts import registry
from omni_portable.planning.plan import Item, Phase, Role
from omni_portable.planning.setting import FLOAT, Setting

TRAINING: tuple[Phase, ...] = ("training",)
UPDATE: tuple[Phase, ...] = ("training", "optimizer_step")
ROLLOUT: tuple[Phase, ...] = ("rollout",)

LATENT_COPIES = 8
"""fp32 tensors of the latents' size in one denoising step: latents, noise, velocity, its halves, mean, next latents."""


def actor(setting: Setting) -> Role:
    """The train engine: the transformer alone, which is given conditioning with its trajectories."""
    items = [*_asleep(setting, "weights"), *_asleep(setting, "optimizer"), *_passes(setting)]
    return Role("actor", "sharded" if setting.shards > 1 else "replicated", tuple(items))


def _asleep(setting: Setting, tag: str) -> Iterator[Item]:
    """What the actor holds under a tag; not there while rollout draws, where the tag sleeps then."""
    sleeps = tag in setting.config.trainer.actor_sleeps
    for item in _held(setting, tag):
        phases = tuple(phase for phase in item.phases if phase not in ROLLOUT)
        detail = f"{item.detail} (asleep while rollout draws)"
        yield replace(item, detail=detail, phases=phases) if sleeps and set(ROLLOUT) & set(item.phases) else item


def _held(setting: Setting, tag: str) -> Iterator[Item]:
    """By tag of a train engine's sleep; copies of the policy go with the optimizer."""
    if tag == "weights":
        yield from _weights(setting, setting.shards)
        yield from _teachers(setting)
    else:
        yield from _optimizer(setting)
        yield from _policies(setting)


def rollout(setting: Setting) -> Role:
    """The rollout engine with its own copy of every part; its transformer sleeps during training where asked to."""
    asleep = setting.config.rollout.sleep_level > 0
    awake: tuple[Phase, ...] = ("rollout", "weight_sync")
    items = [
        Item(item.name, item.bytes, item.detail + (" (asleep while the actor trains)" if asleep else ""), awake)
        if asleep
        else item
        for item in _weights(setting, shards=1)
    ]
    for component, name in (("text_encoder", "text encoders"), ("vae", "vae")):
        parts = [part for part in setting.outline.parts if part.component == component]
        elements, wide = sum(part.elements for part in parts), sum(part.wide for part in parts)
        detail = f"{' + '.join(part.name for part in parts)}: {elements:,} x {setting.itemsize} bytes ({setting.dtype})"
        detail += f", {wide:,} of them in float32" if wide else ""
        if parts:
            items.append(Item(name, sum(part.bytes(setting.dtype) for part in parts), detail))
    return Role("rollout", "replicated", (*items, *_generation(setting)))


def buffer(setting: Setting) -> Role:
    """Trajectories, until they are trained on."""
    batches = setting.batches
    stored = batches.samples * (2 * setting.stored_steps + 1) * setting.latents * FLOAT
    prompts = batches.prompts * setting.sizes.conditioning_elements() * setting.itemsize * setting.guided
    detail = (
        f"{batches.samples} samples x (2 x {setting.stored_steps} + 1) latents in fp32, and conditioning of "
        f"{batches.prompts} prompts"
    )
    return Role("buffer", "replicated", (Item("trajectories", stored + prompts, detail),))


def host(setting: Setting) -> tuple[Item, ...]:
    """What lies in the host's memory: trajectories, and a copy of what sleeps at level 1, per device."""
    items = buffer(setting).items
    if setting.config.rollout.sleep_level == 1:
        copied = sum(item.bytes for item in _weights(setting, shards=1))
        items += (Item("sleeping weights", copied, "copy of the rollout engine's transformer", UPDATE),)
    resting = [item for tag in setting.config.trainer.actor_sleeps for item in _held(setting, tag)]
    if copied := sum(item.bytes for item in resting if set(ROLLOUT) & set(item.phases)):
        items += (
            Item("sleeping actor", copied, f"copy of its {' and '.join(setting.config.trainer.actor_sleeps)}", ROLLOUT),
        )
    return items


def _weights(setting: Setting, shards: int) -> Iterator[Item]:
    elements = setting.model_elements
    yield Item(
        "weights",
        _share(elements * setting.itemsize, shards),
        f"transformer: {elements:,} x {setting.itemsize} bytes ({setting.dtype}){_over(shards)}",
    )
    if setting.lora_rank:
        count = setting.trained
        detail = f"rank {setting.lora_rank}: {count:,} x {FLOAT} bytes (float32){_over(shards)}"
        yield Item("lora", _share(count * FLOAT, shards), detail)


def _optimizer(setting: Setting) -> Iterator[Item]:
    trained, shards = setting.trained, setting.shards
    count = f"{trained:,} trained x"
    if setting.masters:
        detail = f"{count} {FLOAT} bytes (float32){_over(shards)}"
        yield Item("masters", _share(trained * FLOAT, shards), detail)
    detail = f"AdamW, two moments: {count} {2 * FLOAT} bytes (float32){_over(shards)}"
    yield Item("optimizer", _share(trained * 2 * FLOAT, shards), detail)
    yield Item("gradients", _share(trained * FLOAT, shards), f"{count} {FLOAT} bytes (float32){_over(shards)}", UPDATE)
    yield Item(
        "optimizer temporaries",
        _share(trained * FLOAT, shards),
        f"one fp32 value per trained parameter while AdamW steps{_over(shards)}",
        ("optimizer_step",),
    )


def _policies(setting: Setting) -> Iterator[Item]:
    kept = {
        "ema": setting.config.actor.ema_decay > 0,
        "old policy": setting.requires.old_policy,
        "reference policy": setting.requires.reference_policy and not setting.lora_rank,
    }
    for name, is_kept in kept.items():
        if is_kept:
            detail = f"{setting.trained:,} trained x {FLOAT} bytes (float32){_over(setting.shards)}"
            yield Item(name, _share(setting.trained * FLOAT, setting.shards), detail)
    if setting.requires.fake_score:
        count = f"{setting.trained:,} trained x {3 * FLOAT} bytes (float32){_over(setting.shards)}"
        detail = f"weights and two moments: {count}"
        yield Item("fake network", _share(setting.trained * 3 * FLOAT, setting.shards), detail)
    if kept["ema"] and setting.masters:
        detail = f"the average in {setting.dtype}, while it is handed over"
        yield Item("published copy", setting.trained * setting.itemsize, detail, ("weight_sync",))


def _teachers(setting: Setting) -> Iterator[Item]:
    """Frozen transformers that every rank holds whole; a teacher in another folder is taken to be of the same size.
    Those of a pool are on this device where all roles share a process."""
    config, count = setting.config, len(setting.config.model.teachers)
    if pooled(config):
        apart = registry.spec("launcher", config.launcher.name).capabilities.get("multi_process")
        count = 0 if apart else count * config.teacher.workers
    if count:
        one = setting.model_elements * setting.itemsize
        detail = f"{count} of the student's size: {setting.model_elements:,} x {setting.itemsize} bytes each"
        yield Item("teachers", count * one, f"{detail} ({setting.dtype})")


def _passes(setting: Setting) -> Iterator[Item]:
    """Activations and inputs of one micro-batch."""
    size = setting.batches.micro_batch_size
    estimate = setting.sizes.training_bytes(setting.work(size))
    rows = f"micro-batch of {size}" + (" x 2 for guidance" if setting.guided == 2 else "")
    kept = "blocks' inputs (checkpointing)" if setting.config.actor.gradient_checkpointing else "saved for backward"
    yield Item("activations", estimate.saved, f"{rows}, {kept}", TRAINING)
    yield Item("backward pass", estimate.working, f"{rows}, gradients of activations and what is recomputed", TRAINING)
    inputs = size * 2 * setting.stored_steps * setting.latents * FLOAT + _conditioning(setting, size)
    yield Item("batch", inputs, f"latents of {setting.stored_steps} steps and conditioning of {size} samples", TRAINING)
    if setting.shards > 1:
        block = setting.outline.trainable_parameters // max(1, setting.outline.blocks) * setting.itemsize
        yield Item("gathered blocks", 2 * block, "whole weights of this block and the next", TRAINING)


def _generation(setting: Setting) -> Iterator[Item]:
    """Latents, and the largest of encoding, denoising and decoding."""
    config, size = setting.config.rollout, setting.batches.pack_size
    latents = size * LATENT_COPIES * setting.latents * FLOAT + _conditioning(setting, size)
    yield Item("latents", latents, f"{size} samples x {LATENT_COPIES} in fp32, and their conditioning", ROLLOUT)
    stages = {
        f"denoising a pack of {size}" + (" x 2" if setting.guided == 2 else ""): setting.sizes.inference_bytes(
            setting.work(size)
        ),
        "encoding a prompt": setting.sizes.encode_bytes(setting.dtype),
        f"decoding to {config.height} x {config.width} pixels": setting.sizes.decode_bytes(
            config.height, config.width, setting.dtype
        ),
    }
    stages |= _validation(setting)
    largest = max(stages, key=lambda stage: stages[stage])
    yield Item("activations", stages[largest], f"{largest}, the largest of its stages", ROLLOUT)
    if cache := setting.sizes.kv_cache_bytes(setting.work(size)):
        yield Item("kv cache", cache, f"keys and values of {size} sequences", ROLLOUT)


def _validation(setting: Setting) -> dict[str, int]:
    """Stages of validation, where it draws other samples than training does (in more steps they take no more)."""
    config = setting.config
    changes = {key: value for key, value in validation_changes(config).items() if key != "num_steps"}
    if not changes or not config.data.validation:
        return {}
    drawn = validation_rollout(config)
    known = config.data.max_validation_prompts * config.trainer.validation_samples
    pack = min(drawn.max_num_seqs, known or drawn.max_num_seqs)
    what = "validation with " + ", ".join(f"{key} {value:g}" for key, value in changes.items())
    return {
        f"denoising a pack of {pack} in {what}": setting.sizes.inference_bytes(setting.work(pack, drawn)),
        f"decoding in {what}": setting.sizes.decode_bytes(drawn.height, drawn.width, setting.dtype),
    }


def _conditioning(setting: Setting, samples: int) -> int:
    """On the device; under guidance both halves and the tensor that joins them."""
    per_sample = setting.sizes.conditioning_elements() * setting.itemsize
    return samples * per_sample * (4 if setting.guided == 2 else 1)


def _share(size: int, shards: int) -> int:
    return -(-size // shards)


def _over(shards: int) -> str:
    return f" / {shards} devices" if shards > 1 else ""
