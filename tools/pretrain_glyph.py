"""Make glyph-sd3, the packaged tiny text-to-image model, from nothing.

    python tools/pretrain_glyph.py --out omni_portable/assets/glyph-sd3

The result is a diffusers `StableDiffusion3Pipeline` folder of 5 MB; it draws two characters (digits and
capital letters) on a 32 x 48 image from prompts such as `the text "R7"`. Pretraining stops on purpose while
the model still misspells often (`--stop-score`), so that RL with an OCR reward has room to gain.

Three stages, all fp32 on the CPU, all drawn from `--seed`:
1. render every two-character string in a few fonts (those in matplotlib's package data; none is shipped);
2. train a small AutoencoderKL, measure its latents' shift and scale, encode the rendered images once;
3. train the SD3 transformer and both text encoders together on the rectified-flow loss, with the joint text
   sequence that the stock pipeline builds without a T5: CLIP tokens, then `max_sequence_length` zero tokens.

Needs this package and its dependencies (the score is that of the reward `ocr`). The same seed and thread count
give the same weights on the same machine. It takes 11 minutes on 2 free cores (AMD EPYC), where a
second run gave the same bytes of weights.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

from omni_portable.reward.recogniser import Recogniser
from omni_portable.reward.text import normalise, similarity

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
STRINGS = [a + b for a in ALPHABET for b in ALPHABET]
TEMPLATES = ('the text "{}"', 'write "{}"', 'a sign "{}"', '"{}"')
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono-Bold", "DejaVuSerif-Bold")
HEIGHT, WIDTH = 32, 48
CLIP_TOKENS = 16  # model_max_length of both tokenizers
T5_TOKENS = (16,) * 7 + (128,)  # zero tokens per training batch: mostly 16, sometimes many
TEXT_WIDTH = 64
PUNCTUATION = " \"'.,:;!?-+#&()"


@dataclass(frozen=True)
class Options:
    """What the command line chooses."""

    out: Path
    seed: int
    threads: int
    renders: int
    vae_steps: int
    steps: int
    batch: int
    lr: float
    layers: int
    heads: int
    stop_score: float
    eval_every: int
    eval_samples: int
    shift: float


# --------------------------------------------------------------------------------------------------- pictures


def render(text: str, rng: random.Random) -> np.ndarray:
    """Draw `text` dark on light, one slot per character, with a little jitter; (HEIGHT, WIDTH, 3) uint8."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(str(folder / f"{rng.choice(FONTS)}.ttf"), rng.randint(20, 23))
    paper, ink = rng.randint(225, 255), rng.randint(0, 50)
    image = Image.new("RGB", (WIDTH, HEIGHT), (paper,) * 3)
    draw = ImageDraw.Draw(image)
    x, y = rng.uniform(-1.5, 1.5), rng.uniform(-1.5, 1.5)
    for slot, character in enumerate(text):
        draw.text((13 + 22 * slot + x, 24.5 + y), character, font=font, fill=(ink,) * 3, anchor="ms")
    return np.asarray(image)


def to_tensor(images: np.ndarray) -> Tensor:
    """uint8 (N, H, W, 3) to float (N, 3, H, W) in [-1, 1]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().div(127.5).sub(1.0)


def to_pixels(images: Tensor) -> np.ndarray:
    """The inverse of `to_tensor`."""
    return images.add(1.0).mul(127.5).round().clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8).numpy()


# ----------------------------------------------------------------------------------------------------- models


def make_tokenizer() -> CLIPTokenizer:
    """A CLIP tokenizer without merges: one token per character, and its end-of-word twin."""
    characters = "".join(dict.fromkeys(PUNCTUATION.strip() + ALPHABET.lower()))
    tokens = [*characters, *(f"{c}</w>" for c in characters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=CLIP_TOKENS)


def make_text_encoder(tokenizer: CLIPTokenizer, activation: str) -> CLIPTextModelWithProjection:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_WIDTH,
        intermediate_size=2 * TEXT_WIDTH,
        projection_dim=TEXT_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CLIP_TOKENS,
        hidden_act=activation,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModelWithProjection(config)


def make_vae() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        latent_channels=4,
        sample_size=WIDTH,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        force_upcast=False,
    )


def make_transformer(options: Options) -> SD3Transformer2DModel:
    """An MMDiT of width 32 x heads whose blocks start as the identity (zeroed modulation and output)."""
    model = SD3Transformer2DModel(
        sample_size=WIDTH // 2,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=options.layers,
        attention_head_dim=32,
        num_attention_heads=options.heads,
        caption_projection_dim=32 * options.heads,
        joint_attention_dim=2 * TEXT_WIDTH,
        pooled_projection_dim=2 * TEXT_WIDTH,
        pos_embed_max_size=16,
        qk_norm="rms_norm",
    )
    zeroed = [model.norm_out.linear, model.proj_out]
    for block in model.transformer_blocks:
        zeroed += [block.norm1.linear, block.norm1_context.linear]
    for layer in zeroed:
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return model


class Policy(nn.Module):
    """The three trained parts, called the way the stock pipeline calls them."""

    def __init__(self, options: Options, tokenizer: CLIPTokenizer) -> None:
        super().__init__()
        self.transformer = make_transformer(options)
        self.text_encoder = make_text_encoder(tokenizer, "quick_gelu")
        self.text_encoder_2 = make_text_encoder(tokenizer, "gelu")

    def encode(self, ids: Tensor, t5_tokens: int) -> tuple[Tensor, Tensor]:
        """Prompt and pooled embeddings, as the stock pipeline makes them without a T5."""
        outputs = [e(ids, output_hidden_states=True) for e in (self.text_encoder, self.text_encoder_2)]
        clip = torch.cat([o.hidden_states[-2] for o in outputs], dim=-1)
        zeros = clip.new_zeros(len(ids), t5_tokens, clip.shape[-1])
        return torch.cat([clip, zeros], dim=1), torch.cat([o.text_embeds for o in outputs], dim=-1)

    def forward(self, latents: Tensor, sigma: Tensor, text: tuple[Tensor, Tensor]) -> Tensor:
        return self.transformer(
            hidden_states=latents,
            timestep=sigma * 1000.0,
            encoder_hidden_states=text[0],
            pooled_projections=text[1],
            return_dict=False,
        )[0]


# --------------------------------------------------------------------------------------------------- training


def train_vae(vae: AutoencoderKL, images: np.ndarray, options: Options) -> None:
    """Reconstruction plus a light KL term; then write the latents' own shift and scale into the config."""
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=options.vae_steps)
    started = time.time()
    for step in range(1, options.vae_steps + 1):
        x = to_tensor(images[torch.randint(len(images), (32,)).numpy()])
        posterior = vae.encode(x).latent_dist
        error = vae.decode(posterior.sample()).sample - x
        loss = error.square().mean() + 0.3 * error.abs().mean() + 1e-3 * posterior.kl().mean() / 1536
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == options.vae_steps:
            print(f"vae {step}: mse {error.square().mean():.5f}, {time.time() - started:.0f} s", flush=True)
    with torch.no_grad():
        sample = vae.encode(to_tensor(images[:: max(1, len(images) // 1024)])).latent_dist.mean
    vae.register_to_config(scaling_factor=1.0 / sample.std().item(), shift_factor=sample.mean().item())
    vae.eval().requires_grad_(False)


@torch.no_grad()
def encode_images(vae: AutoencoderKL, images: np.ndarray) -> Tensor:
    parts = np.array_split(images, max(1, len(images) // 96))
    means = [vae.encode(to_tensor(part)).latent_dist.mean for part in parts]
    return (torch.cat(means) - vae.config.shift_factor) * vae.config.scaling_factor


@torch.no_grad()
def sample(policy: Policy, vae: AutoencoderKL, ids: Tensor, noise: Tensor, shift: float) -> np.ndarray:
    """Eight plain Euler steps, no guidance, on the stock scheduler's sigmas."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(8)
    text, x = policy.encode(ids, T5_TOKENS[0]), noise
    for sigma, following in zip(scheduler.sigmas[:-1], scheduler.sigmas[1:], strict=True):
        x = x + (following - sigma) * policy(x, sigma.expand(len(x)), text)
    return to_pixels(vae.decode(x / vae.config.scaling_factor + vae.config.shift_factor).sample)


def tokenize(tokenizer: CLIPTokenizer, prompts: Sequence[str]) -> Tensor:
    options = {"padding": "max_length", "max_length": CLIP_TOKENS, "truncation": True, "return_tensors": "pt"}
    return tokenizer(list(prompts), **options).input_ids


def ocr_scores(recogniser: Recogniser, images: np.ndarray, targets: Sequence[str]) -> tuple[list[float], list[str]]:
    """Scores as the reward `ocr` gives them, and the texts that were read."""
    texts = [reading.text for reading in recogniser.read(list(images))]
    folded = [normalise(text, "alphanumeric", case_sensitive=False) for text in texts]
    return [similarity(text, target.lower()) for text, target in zip(folded, targets, strict=True)], texts


class Judge:
    """Mean OCR score of a fixed set of prompts and noises."""

    def __init__(self, options: Options, tokenizer: CLIPTokenizer) -> None:
        rng = random.Random(options.seed + 1)
        self.targets = [rng.choice(STRINGS) for _ in range(options.eval_samples)]
        prompts = [TEMPLATES[i % len(TEMPLATES)].format(t) for i, t in enumerate(self.targets)]
        self._ids = tokenize(tokenizer, prompts)
        generator = torch.Generator().manual_seed(options.seed + 2)
        self._noise = torch.randn(len(self._ids), 4, HEIGHT // 2, WIDTH // 2, generator=generator)
        self._shift = options.shift
        self._recogniser = Recogniser(detect=False, batch_size=8, threads=1)

    def __call__(self, policy: Policy, vae: AutoencoderKL) -> tuple[float, list[float], list[str]]:
        parts = zip(self._ids.split(64), self._noise.split(64), strict=True)
        images = np.concatenate([sample(policy, vae, ids, noise, self._shift) for ids, noise in parts])
        scores, texts = ocr_scores(self._recogniser, images, self.targets)
        return float(np.mean(scores)), scores, texts


def train_policy(
    policy: Policy, vae: AutoencoderKL, tokenizer: CLIPTokenizer, latents: Tensor, options: Options
) -> tuple[Policy, int, float]:
    """Rectified flow with 10 % caption drop; the averaged weights, the steps taken and the score."""
    ids = tokenize(tokenizer, [t.format(s) for s in STRINGS for t in TEMPLATES] + [""]).view(-1, CLIP_TOKENS)
    judge, average = Judge(options, tokenizer), copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=options.lr, betas=(0.9, 0.99), weight_decay=0.01)
    started, running, score = time.time(), 0.0, 0.0
    for step in range(1, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(1.0, step / 100)
        index = torch.randint(len(latents), (options.batch,))
        rows = (index % len(STRINGS)) * len(TEMPLATES) + torch.randint(len(TEMPLATES), (options.batch,))
        rows = torch.where(torch.rand(options.batch) < 0.1, len(ids) - 1, rows)
        clean, noise = latents[index], torch.randn(options.batch, *latents.shape[1:])
        sigma = torch.sigmoid(0.3 + 1.2 * torch.randn(options.batch))
        level = sigma.view(-1, 1, 1, 1)
        text = policy.encode(ids[rows], random.choice(T5_TOKENS))
        velocity = policy((1.0 - level) * clean + level * noise, sigma, text)
        loss = (velocity - (noise - clean)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        decay = min(0.995, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(policy.parameters()), 1.0 - decay)
        running = loss.item() if step == 1 else 0.98 * running + 0.02 * loss.item()
        if step % options.eval_every == 0 or step == options.steps:
            score, scores, texts = judge(average, vae)
            share = [float(np.mean([abs(s - v) < 0.01 for s in scores])) for v in (0.0, 0.5, 1.0)]
            pairs = ", ".join(f"{t}>{r}" for t, r in zip(judge.targets[:12], texts[:12], strict=True))
            print(f"flow {step}: loss {running:.4f}, score {score:.3f}, share at 0/.5/1 {share}, {pairs}, "
                  f"{time.time() - started:.0f} s", flush=True)  # fmt: skip
            if score >= options.stop_score:
                break
    return average, step, score


# -------------------------------------------------------------------------------------------------------- run


def save(out: Path, policy: Policy, vae: AutoencoderKL, tokenizer: CLIPTokenizer, shift: float) -> None:
    pipeline = StableDiffusion3Pipeline(
        transformer=policy.transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=shift),
        vae=vae,
        text_encoder=policy.text_encoder,
        tokenizer=tokenizer,
        text_encoder_2=policy.text_encoder_2,
        tokenizer_2=tokenizer,
        text_encoder_3=None,
        tokenizer_3=None,
    )
    pipeline.save_pretrained(out, safe_serialization=True)


def run(options: Options) -> None:
    started = time.time()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    rng = random.Random(options.seed)
    images = np.stack([render(text, rng) for _ in range(options.renders) for text in STRINGS])
    ceiling = np.mean(ocr_scores(Recogniser(detect=False, batch_size=8, threads=1), images[:512], STRINGS[:512])[0])
    print(f"{len(images)} pictures, score of 512 of them {ceiling:.3f}", flush=True)
    tokenizer, vae = make_tokenizer(), make_vae()
    train_vae(vae, images, options)
    latents = encode_images(vae, images)
    print(f"latents: mean {latents.mean():.3f}, std {latents.std():.3f}", flush=True)
    policy = Policy(options, tokenizer)
    count = sum(p.numel() for p in policy.transformer.parameters())
    print(f"transformer: {count} parameters", flush=True)
    policy, steps, score = train_policy(policy, vae, tokenizer, latents, options)
    save(options.out, policy, vae, tokenizer, options.shift)
    seconds = round(time.time() - started)
    print(json.dumps({"seed": options.seed, "steps": steps, "score": score, "seconds": seconds}), flush=True)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the pipeline to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--renders", type=int, default=6, help="pictures of each string")
    parser.add_argument("--vae-steps", type=int, default=500)
    parser.add_argument("--steps", type=int, default=4000, help="most steps of the flow stage")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=3, help="attention heads of width 32")
    parser.add_argument("--stop-score", type=float, default=0.40, help="stop once the score is this high")
    parser.add_argument("--eval-every", type=int, default=250)
    parser.add_argument("--eval-samples", type=int, default=256)
    parser.add_argument("--shift", type=float, default=1.5, help="the scheduler's static shift")
    run(Options(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
