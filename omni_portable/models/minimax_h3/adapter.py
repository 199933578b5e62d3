"""MiniMax-H3 on diffusers' own classes: video with sound from text, with or without a first and a last frame.

Latents are those of the generated video and sound alone. Given frames are rows of their own in the sequence and part of
the conditioning: they stay as they are through all steps, and no log-prob or loss has an element of theirs.

The model predicts the velocity towards the data and counts time from noise (0) to data (1); here velocities are
d latents / d sigma and sigma runs from 1 to 0. The sound's schedule has another shift than the video's; its latents are
kept in the scale in which both run on one clock (see `models.flow_shift`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers import MiniMaxH3Transformer3DModel

from omni_portable.contracts.errors import ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.rollout import Conditioning, Extent, Schedule
from omni_portable.models.attention import apply_to_transformer, text_encoder_attention
from omni_portable.models.diffusers_adapter import DiffusersAdapter, family_options
from omni_portable.models.flow_shift import ShiftedStream
from omni_portable.models.loading import load_diffusers
from omni_portable.models.minimax_h3 import MiniMaxH3Options
from omni_portable.models.minimax_h3.coders import Coders
from omni_portable.models.minimax_h3.conditioning import given_frames, pad_conditionings, row_conditioning
from omni_portable.models.minimax_h3.folder import read_folder
from omni_portable.models.minimax_h3.layout import LAYOUT
from omni_portable.models.minimax_h3.packing import packed_inputs, positions
from omni_portable.models.minimax_h3.text import TextEncoder
from omni_portable.models.streams import bounds, elements, join, split
from omni_portable.samplers.schedule import flow_match_schedule


class MiniMaxH3Adapter(DiffusersAdapter):
    """One loaded model (see :class:`DiffusersAdapter`); streams 'video' and 'audio'.

    A forward takes one sample, whose length depends on its prompt, so that no bit of a sample depends on its pack.
    """

    family = "minimax_h3"
    layout = LAYOUT
    read_folder = staticmethod(read_folder)

    def __init__(self, load: ModelLoad) -> None:
        self.options = family_options(load, MiniMaxH3Options, self.family)
        self.folder = read_folder(load.path)
        self._shift = self.options.shift or self.folder.shift
        self._sound = ShiftedStream(self._shift / (self.options.audio_shift or self.folder.audio_shift))
        super().__init__(load)

    def encode(
        self, prompts: Sequence[str], media: Sequence[Mapping[str, MediaArtifact]] | None, extent: Extent
    ) -> list[Conditioning]:
        """Per prompt 'prompt_embeds' (tokens, text width), 'text_tags' (tokens,), 'keyframe_rows' (rows, channels) fp32
        of given frames (none without them), the positions of all rows but the text's, and 'counts' (2,).

        Raises:
            ArtifactError: other frames than `model.options.keyframes` asks for, or one of another size.
        """
        text: TextEncoder = self._loaded("text_encoder", self._text)
        given = media if media is not None else [{}] * len(prompts)
        return [self._encode(text, prompt, frames, extent) for prompt, frames in zip(prompts, given, strict=True)]

    def collate(self, conditionings: Sequence[Conditioning]) -> Conditioning:
        """Stack, with zeros after what is shorter; 'counts' says how many rows are real, and only those are read."""
        return pad_conditionings(conditionings)

    def latent_shape(self, extent: Extent) -> tuple[int, ...]:
        """(elements,): the video's tokens, then the sound's; `ConfigError` for a size the model cannot draw."""
        return (elements(self.folder.shapes(extent)),)

    def latent_streams(self, extent: Extent) -> Mapping[str, tuple[int, int]]:
        """'video' and 'audio'."""
        return bounds(self.folder.shapes(extent))

    @torch.no_grad()
    def encode_media(self, media: Mapping[str, MediaArtifact], extent: Extent) -> torch.Tensor:
        """Latents of 'video' and 'audio' (the inverse of :meth:`decode`)."""
        coders: Coders = self._loaded("vae", self._vae)
        streams = coders.encode(media, extent)
        streams["audio"] = streams["audio"] * self._sound.ratio
        return join({name: rows.unsqueeze(0) for name, rows in streams.items()}, self.folder.shapes(extent))[0]

    def velocity(
        self,
        latents: torch.Tensor,
        timesteps: torch.Tensor,
        conditioning: Conditioning,
        guidance_scale: float,
        negative: Conditioning | None = None,
    ) -> torch.Tensor:
        """d latents / d sigma (B, elements) fp32; `timesteps` are sigmas.

        Raises:
            ModelError: a guidance scale other than 1: the model is distilled and knows no negative prompt.
        """
        if guidance_scale != 1.0:
            raise ModelError(
                f"MiniMax-H3 has its guidance in its weights and takes no guidance_scale {guidance_scale}",
                remedy="set rollout.guidance_scale=1",
            )
        shapes = {
            "video": (conditioning["video_positions"].shape[1], self.folder.token_width),
            "audio": (conditioning["audio_positions"].shape[1], int(self.folder.transformer["audio_in_channels"])),
        }
        streams = split(latents, shapes)
        heard = self._sound.to_model(streams["audio"], timesteps)
        predicted = self._forward(streams["video"], heard, timesteps, conditioning)
        sound = self._sound.velocity(heard, predicted["audio"], timesteps)
        return join({"video": predicted["video"], "audio": sound}, shapes)

    @torch.no_grad()
    def decode(self, latents: torch.Tensor, extent: Extent) -> list[dict[str, MediaArtifact]]:
        """Artifacts 'video', uint8 (T, 3, H, W) at 24 frames per second, and 'audio', fp32 (2, samples), on the CPU."""
        coders: Coders = self._loaded("vae", self._vae)
        streams = split(latents, self.folder.shapes(extent))
        streams["audio"] = streams["audio"] / self._sound.ratio
        return [
            coders.decode({name: rows[index] for name, rows in streams.items()}, extent)
            for index in range(latents.shape[0])
        ]

    def schedule(self, num_steps: int, extent: Extent) -> Schedule:
        """Evenly spaced sigmas, shifted; `num_steps` forwards. The stock pipeline counts the final 0 as a step, so that
        its `num_inference_steps` is one more."""
        self.folder.geometry(extent)
        even = torch.linspace(1.0, 0.0, num_steps + 1)[:-1].tolist()
        return flow_match_schedule(num_steps, shift=self._shift, sigmas=even, num_train_timesteps=1)

    def lora_targets(self) -> tuple[str, ...]:
        """All projections of attention and feed-forward, token refiner included (VeRL-Omni's MiniMax-H3 recipes)."""
        return ("to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2")

    def _forward(
        self, video: torch.Tensor, audio: torch.Tensor, sigma: torch.Tensor, conditioning: Conditioning
    ) -> dict[str, torch.Tensor]:
        """Velocities (B, rows, channels) of both streams in the model's own scale, with the house's sign."""
        model: Any = self.transformer
        level = self._sound.level(sigma)
        found: dict[str, list[torch.Tensor]] = {"video": [], "audio": []}
        for row, (text, given) in enumerate(conditioning["counts"].tolist()):
            own = row_conditioning(conditioning, row, text, given)
            inputs = packed_inputs(own, video[row], audio[row], sigma[row], level[row])
            seen, heard = model(**inputs, return_dict=False)
            found["video"].append(-seen[0, given:].float())
            found["audio"].append(-heard[0].float())
        return {name: torch.stack(rows) for name, rows in found.items()}

    def _encode(
        self, text: TextEncoder, prompt: str, media: Mapping[str, MediaArtifact], extent: Extent
    ) -> Conditioning:
        geometry = self.folder.geometry(extent)
        frames = given_frames(media, self.options.keyframes, extent)
        encoded = text.encode(prompt, list(frames.values()))
        rows = torch.zeros(0, self.folder.token_width)
        if frames:
            coders: Coders = self._loaded("vae", self._vae)
            rows = torch.cat([coders.keyframe(frame, anchor) for anchor, frame in frames.items()])
        places = positions(encoded["text_tags"], geometry, list(frames))
        counts = torch.tensor([encoded["text_tags"].shape[0], rows.shape[0]])
        return {
            name: tensor.to(self.torch_device)
            for name, tensor in {**encoded, "keyframe_rows": rows, **places, "counts": counts}.items()
        }

    def _load_transformer(self, load: ModelLoad) -> torch.nn.Module:
        model = load_diffusers(MiniMaxH3Transformer3DModel, load.path / "transformer", load.dtype)
        self.attention_in_use["transformer"] = apply_to_transformer(model, load.attention.get("transformer"))
        return model.to(load.torch_device)

    def _load_text(self, load: ModelLoad) -> TextEncoder:
        kernel = text_encoder_attention(load.attention.get("text_encoder"))
        self.attention_in_use["text_encoder"] = kernel
        options = self.options
        return TextEncoder(self.folder, load, options.text_encoder_layer, options.max_sequence_length, kernel)

    def _load_vae(self, load: ModelLoad) -> Coders:
        coders = Coders(self.folder, load)
        self.attention_in_use["vae"] = coders.kernel
        return coders
