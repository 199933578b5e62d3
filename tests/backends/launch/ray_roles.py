"""Roles that a worker process builds in tests."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import replace

import torch

from omni_portable.contracts.errors import RewardError, WeightSyncError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.reward import ComposedReward
from omni_portable.contracts.rollout import RolloutResult
from omni_portable.contracts.teacher import TeacherOutput
from tests.rollout.router_fakes import Replica


def build_replica(config, opened=False):
    """A replica that draws at once where it is `opened`; else what it draws never comes back."""
    print("a line of output", flush=True)
    replica = Replica("there")
    if opened:
        replica.open.set()
    return replica


class Painter(Replica):
    """Draws a picture of 75 KiB, as bright as the request's number says, and a text, from 128 KiB of latents."""

    async def generate(self, requests):
        result = await super().generate(requests)
        bright = [int(t.request.request_id[1:]) for t in result.trajectories]
        drawn = [
            replace(t, artifacts=picture(number), latents=painted_latents(number))
            for t, number in zip(result.trajectories, bright, strict=True)
        ]
        return RolloutResult(drawn, result.aborted)


def painted_latents(brightness):
    return torch.full((2, 16, 32, 32), float(brightness))


def picture(brightness):
    data = torch.full((3, 160, 160), brightness, dtype=torch.uint8)
    return {
        "image": MediaArtifact("image", "image", data, "CHW"),
        "response": MediaArtifact("response", "text", f"as bright as {brightness}", "str"),
    }


def build_painter(config):
    painter = Painter("there")
    painter.open.set()
    return painter


class Knowing:
    """A teacher that says twice the latents, and of their brightness something small."""

    async def teach_async(self, trajectories):
        assert all(type(one.latents) is torch.Tensor for one in trajectories)
        return [TeacherOutput("a", velocity=2 * t.latents, log_prob=t.latents[0, 0, 0]) for t in trajectories]


def build_knowing(config):
    return Knowing()


class Looking:
    """Scores with the brightness of the picture."""

    async def score_async(self, samples):
        total = [float(sample.artifacts["image"].data.float().mean()) for sample in samples]
        said = [{"said": sample.artifacts["response"].data} for sample in samples]
        return ComposedReward(total, {"looking/score": total}, said, [], {"looking": 0.1})


def build_looking(config):
    return Looking()


class Counting:
    """Scores with the length of the prompt; dies, or fails, where a prompt says so and a file is not there yet."""

    def __init__(self, mark):
        self.mark = mark

    async def score_async(self, samples):
        for sample in samples:
            if sample.prompt == "fail":
                raise RewardError("the scorer 'words' failed", remedy="mend it", choices=("a", "b"))
            if sample.prompt == "bug":
                raise ZeroDivisionError("in the scorer")
            if sample.prompt == "die" and not os.path.exists(self.mark):
                open(self.mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        total = [float(len(sample.prompt)) for sample in samples]
        return ComposedReward(total, {"words/score": total}, [{} for _ in samples], [], {"words": 0.1})


def build_counting(config, mark=""):
    return Counting(mark)


class Owner:
    """What it has put is lost with it."""

    def put(self):
        import ray

        return [ray.put([bytes(1 << 20)])]


def build_native(config, fails_at=()):
    """The native engine over the toy family; writing weights for the n-th time breaks off in the middle, for each n of
    `fails_at` (putting the old ones back counts, too)."""
    from importlib.metadata import EntryPoint

    from omni_backends.rollout.native import weights
    from omni_backends.rollout.native.engine import NativeRolloutEngine
    from omni_portable.contracts import registry
    from tests.support.engines import make_setup

    point = EntryPoint("toy", "tests.support.toy_adapter:SPEC", registry.GROUPS["model"])
    registry._entry_points("model")["toy"] = point
    apply, updates = weights.apply_tensors, []

    def breaking(module, tensors):
        updates.append(tensors)
        if len(updates) not in fails_at:
            return apply(module, tensors)
        first, second, *_ = tensors
        apply(module, {first: tensors[first]})
        raise WeightSyncError(f"the tensor '{second}' could not be written: no memory is left")

    weights.apply_tensors = breaking
    return NativeRolloutEngine(make_setup(lora_rank=0))


class Stuck:
    """Scores with the length of the prompt; holds the interpreter, where a file is not there yet."""

    def __init__(self, mark):
        self.mark = mark

    async def score_async(self, samples):
        if not os.path.exists(self.mark):
            open(self.mark, "w").close()
            ctypes.PyDLL(None).sleep(100_000)
        total = [float(len(sample.prompt)) for sample in samples]
        return ComposedReward(total, {"words/score": total}, [{} for _ in samples], [], {"words": 0.1})


def build_stuck(config, mark):
    return Stuck(mark)
