"""Estimates of activations against what torch keeps and holds."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKL
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

from omni_portable.contracts.device import AttentionChoice
from omni_portable.contracts.model import ModelLoad
from omni_portable.models.lora import inject_lora
from omni_portable.models.outline import Workload
from omni_portable.models.sd3 import LORA_TARGETS, SD3Options
from omni_portable.models.sd3.adapter import SD3Adapter
from omni_portable.models.sd3.folder import SD3Folder
from omni_portable.models.sd3.outline import outline
from omni_portable.models.sd3.sizes import SD3Sizes
from omni_portable.models.sd3.tiny import build_tiny_sd3
from tests.support.measured_memory import peak_bytes, saved_bytes

ROWS, HEIGHT, WIDTH = 2, 32, 64
T5_TOKENS = 8
KINDS = {
    "sd3": {},
    "sd35": {"qk_norm": "rms_norm", "dual_attention_layers": (0, 1)},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("memory")
    return {
        name: build_tiny_sd3(root / name, layers=3, heads=4, head_dim=16, clip_tokens=24, **arguments)
        for name, arguments in KINDS.items()
    }


class Case:
    """One model ready to run, and the estimate for it."""

    def __init__(self, path, *, dtype="float32", rank=0, targets=LORA_TARGETS, checkpointing=False, attention=""):
        choice = AttentionChoice("transformer", "math", "_native_math", "diffusers", "X", "torch")
        load = ModelLoad(
            path,
            torch.device("cpu"),
            getattr(torch, dtype),
            ("transformer",),
            {"transformer": choice} if attention else {},
            SD3Options(T5_TOKENS),
        )
        self.adapter = SD3Adapter(load)
        self.module = self.adapter.transformer
        if rank:
            inject_lora(self.module, rank=rank, alpha=2.0 * rank, targets=targets, seed=0)
        if checkpointing:
            self.module.enable_gradient_checkpointing()
        self.sizes = outline(str(path), SD3Options(T5_TOKENS), dtype, True).sizes
        self.work = Workload(ROWS, HEIGHT, WIDTH, dtype, rank, targets if rank else (), checkpointing, attention)
        folder, tokens = self.adapter.folder, self.sizes.text_tokens
        self.latents = torch.randn(ROWS, *folder.latent_shape(HEIGHT, WIDTH))
        self.conditioning = {
            "prompt_embeds": torch.randn(ROWS, tokens, folder.transformer["joint_attention_dim"], dtype=load.dtype),
            "pooled_prompt_embeds": torch.randn(ROWS, folder.transformer["pooled_projection_dim"], dtype=load.dtype),
        }

    def forward(self):
        return self.adapter.velocity(self.latents, torch.full((ROWS,), 500.0), self.conditioning, 1.0)

    def train(self):
        self.forward().square().mean().backward()

    def roll_out(self):
        with torch.no_grad():
            self.forward()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_saved_activations(folders, kind, dtype, rank, checkpointing):
    case = Case(folders[kind], dtype=dtype, rank=rank, checkpointing=checkpointing)
    estimated = case.sizes.training_bytes(case.work).saved
    measured = saved_bytes(case.module, case.forward)
    assert 0.9 < estimated / measured < 1.15


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("targets", ["to_q to_out.0", "ff.net.0.proj ff.net.2", "norm1.linear attn.to_v"])
def test_saved_activations_of_other_loras(folders, dtype, targets):
    """The estimate is high where nothing before the feed-forward of the first of the three blocks is trained."""
    case = Case(folders["sd35"], dtype=dtype, rank=4, targets=tuple(targets.split()))
    estimated = case.sizes.training_bytes(case.work).saved
    assert 0.85 < estimated / saved_bytes(case.module, case.forward) < 1.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 8])
def test_attention_that_is_stored(folders, dtype, rank):
    plain, stored = (Case(folders["sd3"], dtype=dtype, rank=rank, attention=family) for family in ("", "math"))
    measured = saved_bytes(stored.module, stored.forward)
    assert 0.9 < stored.sizes.training_bytes(stored.work).saved / measured < 1.15
    assert measured > 1.2 * saved_bytes(plain.module, plain.forward)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_peak_of_training(folders, kind, dtype, rank, checkpointing):
    """Beyond what stands at its start, weights' gradients included, which are made in the first pass."""
    case = Case(folders[kind], dtype=dtype, rank=rank, checkpointing=checkpointing)
    case.train()
    estimate = case.sizes.training_bytes(case.work)
    assert 1 / 1.5 < (estimate.saved + estimate.working) / peak_bytes(case.train) < 1.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 8])
def test_peak_of_rollout(folders, kind, dtype, rank):
    case = Case(folders[kind], dtype=dtype, rank=rank)
    case.roll_out()
    assert 1 / 1.5 < case.sizes.inference_bytes(case.work) / peak_bytes(case.roll_out) < 1.5


def test_estimates_grow_with_the_rows(folders):
    sizes = Case(folders["sd3"]).sizes
    one, four = (Workload(rows, HEIGHT, WIDTH, "float32") for rows in (1, 4))
    assert sizes.inference_bytes(four) == 4 * sizes.inference_bytes(one)
    assert sizes.training_bytes(four).saved == 4 * sizes.training_bytes(one).saved


@pytest.mark.parametrize("channels", [(16, 32, 64, 64), (16, 16, 16), (16, 64), (24,)])
@pytest.mark.parametrize("layers", [1, 2])
def test_peak_of_decoding(channels, layers):
    blocks = len(channels)
    vae = AutoencoderKL(
        latent_channels=4,
        block_out_channels=channels,
        layers_per_block=layers,
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
    )
    size = 48 if blocks == 1 else 128  # a single block attends over all pixels
    latents = torch.randn(1, 4, size >> (blocks - 1), size >> (blocks - 1))

    @torch.no_grad()
    def decode():
        vae.eval().decode(latents, return_dict=False)

    decode()
    estimate = SD3Sizes(SD3Folder(None, {}, {"block_out_channels": channels}, {}, {}), {}, 0).decode_bytes
    assert 1 / 1.5 < estimate(size, size, "float32") / peak_bytes(decode) < 1.5


CLIP = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "projection_dim": 64, "vocab_size": 99}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 160, "num_layers": 3, "num_heads": 4, "vocab_size": 100}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layers", [2, 9])
def test_peak_of_encoding_with_clip(dtype, layers):
    config = CLIP | {"num_hidden_layers": layers, "max_position_embeddings": 77}
    model = CLIPTextModelWithProjection(CLIPTextConfig(**config)).to(getattr(torch, dtype)).eval()
    compare_encoding({"text_encoder": config}, 0, dtype, model, 77, output_hidden_states=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [64, 256])
def test_peak_of_encoding_with_t5(dtype, tokens):
    model = T5EncoderModel(T5Config(**T5, feed_forward_proj="gated-gelu")).to(getattr(torch, dtype)).eval()
    compare_encoding({"text_encoder_3": T5}, tokens, dtype, model, tokens)


def compare_encoding(encoders, t5_tokens, dtype, model, tokens, **arguments):
    @torch.no_grad()
    def encode():
        model(torch.zeros(1, tokens, dtype=torch.int64), **arguments)

    encode()
    estimate = SD3Sizes(SD3Folder(None, {}, {}, {}, encoders), {}, t5_tokens).encode_bytes(dtype)
    assert 1 / 1.5 < estimate / peak_bytes(encode) < 1.5
