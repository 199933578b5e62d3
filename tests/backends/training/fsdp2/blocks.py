"""A toy family with repeated blocks that ranks in other processes can load, and samples that make a rank go wrong."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from omni_portable.config.schema import RunConfig
from omni_portable.contracts import registry
from omni_portable.contracts.algorithm import Requires, TrainBatch
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.registry import PluginSpec
from omni_portable.contracts.rollout import Trajectory
from omni_portable.models.setup import EngineSetup
from tests.backends.training.toy import SHAPE, make_trajectories
from tests.support.toy_adapter import WIDTH, ToyAdapter

SPEC = PluginSpec(
    "blocks",
    "test double",
    "tests.backends.training.fsdp2.blocks:BlocksAdapter",
    capabilities={"kinds": ("diffusion",), "guidance": True},
)
TEACHER = "blocks-teacher"
"""Name of a folder whose model is another than the one of all other folders."""
WIDE = "blocks-wide-"
"""Name of a folder, with a width behind it, whose model has four square matrices of it more."""
RAISE, DIE = 12345.0, 66666.0
"""First latent of a sample that makes the rank which scores it raise, or kill itself."""


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.ones(1, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.scale * self.down(torch.tanh(self.up(hidden)))


class BlocksTransformer(nn.Module):
    """As `ToyTransformer`, with blocks in the middle; widths that two or three processes do not share out evenly."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            size = math.prod(SHAPE)
            self.to_q, self.prompt, self.out = nn.Linear(size, 10), nn.Linear(WIDTH, 10), nn.Linear(10, size)
            self.blocks = nn.ModuleList(Block(10) for _ in range(3))
            self.unused = nn.Linear(2, 2)
        self.checkpointing = False

    def enable_gradient_checkpointing(self) -> None:
        self.checkpointing = True

    def forward(self, latents: torch.Tensor, timesteps: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        dtype = self.to_q.weight.dtype
        hidden = self.to_q(latents.flatten(1).to(dtype)) + self.prompt(tokens.mean(1).to(dtype))
        hidden = hidden + (timesteps[:, None] / 1000).to(dtype)
        for block in self.blocks:
            again = self.checkpointing and torch.is_grad_enabled()
            hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False) if again else block(hidden)
        output: torch.Tensor = self.out(hidden).reshape(latents.shape).float()
        return output


class BlocksAdapter(ToyAdapter):
    def __init__(self, load: ModelLoad) -> None:
        super().__init__(load, "blocks")
        self.transformer = BlocksTransformer().to(load.torch_device, load.dtype).eval()
        if load.path.name.startswith(WIDE):
            width = int(load.path.name.removeprefix(WIDE))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(width)
                wide = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))
            self.transformer.wide = wide.to(load.torch_device, load.dtype).eval()
        if load.path.name == TEACHER:
            with torch.no_grad():
                for parameter in self.transformer.parameters():
                    parameter.mul_(0.7)

    def lora_targets(self) -> tuple[str, ...]:
        return ("to_q", "up", "down")

    def tensor_parallel_plan(self) -> dict[str, ParallelStyle]:
        return {
            name: style
            for index in range(3)
            for name, style in (
                (f"blocks.{index}.up", ColwiseParallel()),
                (f"blocks.{index}.down", RowwiseParallel()),
            )
        }

    def velocity(self, latents, timesteps, conditioning, guidance_scale, negative=None) -> torch.Tensor:
        first = latents.flatten(1)[:, 0]
        if bool((first == RAISE).any()):
            raise ArithmeticError("a sample that nobody can score")
        if bool((first == DIE).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().velocity(latents, timesteps, conditioning, guidance_scale, negative)


@contextmanager
def blocks_plugin(folder: Path) -> Iterator[Path]:
    """The family 'blocks' as an installed package in `folder` would register it: other processes must find it too."""
    info = folder / "blocks_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: blocks-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[omni_portable.models]\nblocks = tests.backends.training.fsdp2.blocks:SPEC\n"
    )
    sys.path.insert(0, str(folder))
    registry._entry_points.cache_clear()
    yield folder
    sys.path.remove(str(folder))
    registry._entry_points.cache_clear()


def build_engine(config, setup: EngineSetup):
    """The train engine of an actor's role."""
    from omni_backends.training.fsdp2.engine import Fsdp2TrainEngine

    return Fsdp2TrainEngine(setup)


def blocks_setup(
    *,
    world: int = 2,
    lora: int = 0,
    requires: Requires | None = None,
    dtype: torch.dtype = torch.float32,
    model: str = "blocks",
    **actor,
) -> EngineSetup:
    config = RunConfig()
    config.model.family, config.model.path = "blocks", model
    config.model.lora.rank = lora
    config.rollout.max_num_seqs = 4
    config.actor.lr, config.actor.world_size, config.actor.rank_timeout_s = 1e-2, world, 120.0
    config.device.threads = 1
    for name, value in actor.items():
        assert hasattr(config.actor, name)
        setattr(config.actor, name, value)
    load = ModelLoad(Path(model), torch.device("cpu"), dtype)
    return EngineSetup(config, registry.load("device", "cpu")(), load, requires or Requires())


def blocks_trajectories(count: int, **options) -> list[Trajectory]:
    return make_trajectories(count, adapter=BlocksAdapter(blocks_setup().load), **options)


def blocks_batch(count: int, weights: Sequence[float] | None = None, **options) -> TrainBatch:
    return TrainBatch(
        blocks_trajectories(count, **options),
        torch.linspace(-1.0, 1.3, count),
        weights=None if weights is None else torch.tensor(weights, dtype=torch.float32),
    )
