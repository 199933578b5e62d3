"""Qwen3 folders: what loads, what is refused, and whether it computes what the library computes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoTokenizer, Qwen3ForCausalLM

from omni_portable.contracts.errors import ConfigError, DataError, ModelError
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.model import ModelLoad
from omni_portable.contracts.tokens import AutoregressiveAdapter
from omni_portable.models.autoregressive.options import ChatOptions
from omni_portable.models.qwen3.adapter import Qwen3Adapter
from omni_portable.models.qwen3.tiny import build_tiny_qwen3
from tests.support.token_models import folder, load, some_rows


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder("qwen3"), tmp_path / "qwen3"))


def reload(path: Path, **changes) -> Qwen3Adapter:
    return Qwen3Adapter(
        ModelLoad(path, torch.device("cpu"), torch.float32, **({"components": ("transformer",)} | changes))
    )


def edit(path: Path, **changes) -> None:
    config = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (config | changes).items() if v is not None}))


def test_it_computes_what_the_library_computes() -> None:
    adapter = load("qwen3")
    assert isinstance(adapter, AutoregressiveAdapter)
    library = Qwen3ForCausalLM.from_pretrained(folder("qwen3"), dtype=torch.float32)
    rows = some_rows(adapter, "qwen3")
    with torch.no_grad():
        scored = adapter.score(rows, 1.0).log_prob
        for index, row in enumerate(rows):
            ids = torch.cat([row.inputs["ids"], row.response_ids])[None]
            logits = library(input_ids=ids).logits[0, len(row.inputs["ids"]) - 1 : -1]
            expected = logits.log_softmax(-1).gather(-1, row.response_ids[:, None])[:, 0]
            torch.testing.assert_close(scored[index, : len(expected)], expected, atol=2e-6, rtol=0)


def test_prompts_are_put_into_the_chat_template() -> None:
    adapter = load("qwen3", ())
    text = adapter.chat.tokenizer.decode(adapter.build_inputs("hi", {}, "be kind")["ids"])
    assert text == "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert adapter.build_inputs("hi", {})["positions"].tolist() == [
        list(range(len(adapter.build_inputs("hi", {})["ids"])))
    ]
    plain = load("qwen3", (), options=ChatOptions(chat=False, system_prompt="S: "))
    assert plain.chat.tokenizer.decode(plain.build_inputs("hi", {})["ids"]) == "S: hi"


def test_responses_are_read_and_spelled() -> None:
    adapter = load("qwen3", ())
    ids = adapter.response_ids("naïve ☺ stop here")
    assert int(ids[-1]) in adapter.end_ids
    assert adapter.read_response(ids.tolist())["response"].data == "naïve ☺ stop here"
    assert adapter.read_response(ids.tolist(), ("here", "stop"))["response"].data == "naïve ☺ "


def test_special_tokens_in_a_prompt_are_refused() -> None:
    with pytest.raises(DataError, match=r"<\|im_end\|>"):
        load("qwen3", ()).build_inputs("a <|im_end|> b", {})


def test_media_are_refused() -> None:
    image = MediaArtifact("image", "image", torch.zeros(3, 8, 8, dtype=torch.uint8), "CHW")
    with pytest.raises(ConfigError, match="takes no input media"):
        load("qwen3", ()).build_inputs("hi", {"image": image})


def test_what_was_not_loaded_says_so() -> None:
    with pytest.raises(ModelError, match="transformer of .* was not loaded"):
        _ = load("qwen3", ()).transformer
    with pytest.raises(ConfigError, match="no component 'vae'"):
        load("qwen3", ("vae",))


def test_damaged_folders_are_refused(copied: Path) -> None:
    edit(copied / "config.json", architectures=["LlamaForCausalLM"])
    with pytest.raises(ModelError, match="describes a LlamaForCausalLM"):
        reload(copied)
    edit(copied / "config.json", architectures=["Qwen3ForCausalLM"], num_key_value_heads=None)
    with pytest.raises(ModelError, match="num_key_value_heads"):
        Qwen3Adapter.attention_requests(copied, "float32", True)


def test_a_folder_without_a_vocabulary_is_refused(copied: Path) -> None:
    (copied / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="vocabulary"):
        load("qwen3", (), path=copied)


def test_a_tokenizer_without_template_or_end_is_refused(copied: Path) -> None:
    (copied / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        reload(copied)
    assert reload(copied, options=ChatOptions(chat=False)).end_ids
    edit(copied / "tokenizer_config.json", eos_token=None)
    (copied / "generation_config.json").unlink()
    with pytest.raises(ModelError, match="no end token"):
        reload(copied, options=ChatOptions(chat=False))


def test_end_tokens_are_those_of_the_generation_config_too(copied: Path) -> None:
    edit(copied / "generation_config.json", eos_token_id=[7, 256])
    assert reload(copied).end_ids == {7, 256, AutoTokenizer.from_pretrained(copied).eos_token_id}


def test_attention_is_asked_for_and_applied() -> None:
    (request,) = Qwen3Adapter.attention_requests(folder("qwen3"), "float32", training=True)
    assert (request.component, request.head_dim, request.causal, request.grouped_query) == (
        "language_model",
        32,
        True,
        True,
    )
    assert request.backward
    from omni_portable.contracts import registry

    choice = registry.load("device", "cpu")().attention.select(request, "math")
    eager = load("qwen3", attention={"language_model": choice})
    assert eager.transformer.language_model.config._attn_implementation == "eager"
    rows = some_rows(eager, "qwen3")
    with torch.no_grad():
        torch.testing.assert_close(
            eager.score(rows, 1.0).log_prob, load("qwen3").score(rows, 1.0).log_prob, atol=1e-5, rtol=0
        )


def test_tied_and_sharded_folders(tmp_path: Path) -> None:
    path = build_tiny_qwen3(tmp_path / "tied", tied=True, max_shard_size="20KB")
    assert len(list(path.glob("*.safetensors"))) > 1
    policy = reload(path).transformer
    assert policy.lm_head.weight is policy.language_model.embed_tokens.weight
    names = [name for name, _ in policy.named_parameters()]
    assert "lm_head.weight" not in names
    assert names[0] == "model.embed_tokens.weight"


def test_equal_arguments_build_equal_folders(tmp_path: Path) -> None:
    paths = [build_tiny_qwen3(tmp_path / name) for name in "ab"]
    assert paths[0].joinpath("model.safetensors").read_bytes() == paths[1].joinpath("model.safetensors").read_bytes()


def test_exports_are_whole_folders_and_peft_adapters(tmp_path: Path) -> None:
    from omni_backends.training.single.engine import SingleTrainEngine
    from tests.support.engines import make_setup

    full = SingleTrainEngine(make_setup("qwen3", folder("qwen3"), lora_rank=0))
    full.export(tmp_path / "full")
    again = load("qwen3", path=tmp_path / "full")
    rows = some_rows(again, "qwen3")
    with torch.no_grad():
        assert torch.equal(again.score(rows, 1.0).log_prob, load("qwen3").score(rows, 1.0).log_prob)
    lora = SingleTrainEngine(make_setup("qwen3", folder("qwen3"), lora_rank=2))
    lora.export(tmp_path / "lora")
    assert not (tmp_path / "lora" / "pytorch_lora_weights.safetensors").exists()  # diffusers could not load it
    model = PeftModel.from_pretrained(Qwen3ForCausalLM.from_pretrained(folder("qwen3")), tmp_path / "lora")
    assert sum("lora_A" in name for name, _ in model.named_parameters()) == 8
