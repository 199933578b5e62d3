"""Qwen3-Omni's thinker: all media, both kinds of folder, and what is trained of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni_portable.contracts.errors import ArtifactError, ConfigError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.models.autoregressive.vision import patches
from omni_portable.models.lora import inject_lora, lora_layers
from omni_portable.models.qwen3_omni.adapter import Qwen3OmniAdapter
from tests.support.token_models import folder, load, prompts, some_rows, video

FAMILY = "qwen3_omni"


def test_it_computes_what_the_library_computes() -> None:
    adapter = load(FAMILY)
    library = adapter.transformer._unregistered[0]
    rows = some_rows(adapter, FAMILY)
    with torch.no_grad():
        scored = adapter.score(rows, 1.0).log_prob
        for index, (row, (_, media)) in enumerate(zip(rows, prompts(FAMILY), strict=True)):
            ids = torch.cat([row.inputs["ids"], row.response_ids])[None]
            given: dict[str, torch.Tensor] = {}
            for artifact in media.values():
                if artifact.modality == "audio":
                    given |= dict(adapter._audio.extract(artifact))
                elif artifact.modality == "image":
                    given |= dict(
                        zip(
                            ("pixel_values", "image_grid_thw"),
                            patches(artifact.data[None], adapter._images),
                            strict=True,
                        )
                    )
                else:
                    pixels, grid = patches(artifact.data, adapter._videos)
                    given |= {
                        "pixel_values_videos": pixels,
                        "video_grid_thw": grid,
                        "video_second_per_grid": torch.tensor([1.0]),
                    }
            library.rope_deltas = None
            logits = library(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **given).logits
            chosen = logits[0, len(row.inputs["ids"]) - 1 : -1].log_softmax(-1).gather(-1, row.response_ids[:, None])
            torch.testing.assert_close(scored[index, : len(chosen)], chosen[:, 0], atol=2e-6, rtol=0)


def test_the_folder_of_the_whole_model_loads_without_its_talker(tmp_path: Path) -> None:
    whole = Path(shutil.copytree(folder(FAMILY), tmp_path / "whole"))
    thinker = json.loads((whole / "config.json").read_text())
    config = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "thinker_config": thinker,
    }
    (whole / "config.json").write_text(json.dumps(config))
    tensors = {f"thinker.{name}": tensor for name, tensor in load_file(whole / "model.safetensors").items()}
    left_out = {"talker.model.norm.weight": torch.ones(4), "code2wav.decoder.0.weight": torch.ones(4)}
    save_file(tensors | left_out, whole / "model.safetensors", metadata={"format": "pt"})
    adapter, alone = load(FAMILY, path=whole), load(FAMILY)
    rows = some_rows(alone, FAMILY)
    with torch.no_grad():
        assert torch.equal(adapter.score(rows, 1.0).log_prob, alone.score(rows, 1.0).log_prob)
    assert Qwen3OmniAdapter.attention_requests(whole, "float32", True)[0].head_dim == 32
    save_file(tensors | {"thinker.extra": torch.ones(1)}, whole / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="unexpected"):
        load(FAMILY, path=whole)


def test_lora_binds_to_the_language_model_alone() -> None:
    adapter = load(FAMILY)
    info = inject_lora(adapter.transformer, rank=2, alpha=4, targets=adapter.lora_targets(), seed=0)
    assert info.expected_modules == 8
    assert adapter.trainable_stage == "thinker"
    for name, module in adapter.transformer._unregistered[0].audio_tower.named_modules():
        assert "lora" not in name.lower(), module
    names = [name for name, _ in lora_layers(adapter.transformer)]
    assert all(name.startswith("model.layers.") for name in names)
    whole = [name for name, _ in adapter.transformer._unregistered[0].named_modules()]
    for target in adapter.lora_targets():  # what a peft folder names must mean one module of the library's model
        assert sum(name == target or name.endswith("." + target) for name in whole) == 1


def test_sound_must_have_the_models_rate() -> None:
    adapter = load(FAMILY)
    wave = torch.zeros(2, 4000)
    with pytest.raises(ArtifactError, match="8000 samples per second, the model hears 16000"):
        adapter.build_inputs("x", {"sound": MediaArtifact("sound", "audio", wave, "CT", sample_rate=8000)})
    with pytest.raises(ArtifactError, match="only 9 samples"):
        adapter.build_inputs("x", {"sound": MediaArtifact("sound", "audio", wave[:, :9], "CT", sample_rate=16000)})
    stereo = MediaArtifact(
        "sound", "audio", torch.stack([torch.ones(4000), -torch.ones(4000)]) * 0.3, "CT", sample_rate=16000
    )
    silent = MediaArtifact("sound", "audio", torch.zeros(1, 4000), "CT", sample_rate=16000)
    left, right = (adapter.build_inputs("x", {"sound": sound})["media_embeds"] for sound in (stereo, silent))
    assert torch.equal(left, right)


def test_videos_take_fractions_of_positions() -> None:
    positions = load(FAMILY).build_inputs("x", {"clip": video(fps=3.0)})["positions"]
    assert positions.dtype == torch.float32
    assert (positions != positions.round()).any()


def test_configurations_without_tokens_of_media_are_refused(tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder(FAMILY), tmp_path / "m"))
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "audio_start_token_id"}))
    with pytest.raises(ModelError, match="audio_start_token_id"):
        load(FAMILY, (), path=copied)
    (copied / "config.json").write_text(json.dumps(config | {"model_type": "qwen3"}))
    with pytest.raises(ModelError, match="no Qwen3-Omni thinker"):
        load(FAMILY, (), path=copied)
    with pytest.raises(ConfigError, match="must be ChatOptions"):
        load(FAMILY, (), options=object())
