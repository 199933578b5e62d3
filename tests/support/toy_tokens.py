"""A language model of eight tokens whose logits are a function of its weights and of everything said so far, in the
real engine: what it draws can be checked token by token."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from omni_backends.rollout.native_tokens.engine import NativeTokenEngine
from omni_portable.contracts.media import MediaArtifact
from omni_portable.contracts.tokens import TokenInputs, TokenRequest, TokenRow, TokenScores
from omni_portable.models.autoregressive.sampling import choose, uniforms
from omni_portable.models.weights import make_stream
from tests.support.engines import make_setup

VOCABULARY = 8
END = 0


class ToyModel(torch.nn.Module):
    """One number per token."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(VOCABULARY))


@functools.lru_cache(maxsize=100_000)
def _features(history: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash(history) % 2**62)
    return torch.randn(VOCABULARY, generator=generator)


def logits(w: torch.Tensor, history: Sequence[int]) -> torch.Tensor:
    """(V,) after a prompt and what was said."""
    return _features(tuple(history)) + w


class _Decoding:
    def __init__(self, model: ToyModel, prompts: Sequence[TokenInputs]) -> None:
        self._model, self._said = model, [prompt["ids"].tolist() for prompt in prompts]
        for prompt in prompts:
            assert prompt["positions"].tolist() == [list(range(len(prompt["ids"])))]

    def logits(self) -> torch.Tensor:
        return torch.stack([logits(self._model.w, said) for said in self._said])

    def advance(self, ids: torch.Tensor) -> None:
        for said, token in zip(self._said, ids.tolist(), strict=True):
            said.append(token)


class ToyAdapter:
    """See `contracts.tokens.AutoregressiveAdapter`."""

    family, trainable_stage, end_ids = "toy", "language_model", frozenset({END})

    def __init__(self) -> None:
        self.transformer = ToyModel()

    def build_inputs(self, prompt: str, media: Mapping[str, MediaArtifact], system_prompt: str = "") -> TokenInputs:
        ids = torch.tensor([VOCABULARY + ord(character) for character in prompt])
        return {"ids": ids, "positions": torch.arange(len(ids))[None]}

    def begin(self, prompts: Sequence[TokenInputs]) -> _Decoding:
        return _Decoding(self.transformer, prompts)

    def score(self, rows: Sequence[TokenRow], temperature: float, **_: bool) -> TokenScores:
        scores = torch.zeros(len(rows), max(len(row.response_ids) for row in rows))
        for index, row in enumerate(rows):
            found = replayed(self.transformer.w, row.inputs, row.response_ids.tolist(), temperature)
            scores[index, : len(found)] = found
        return TokenScores(scores, scores != 0)

    def read_response(self, ids: Sequence[int], stop: Sequence[str] = ()) -> dict[str, MediaArtifact]:
        text = "".join(chr(ord("a") + token) for token in ids if token != END)
        for each in stop:
            text = text.partition(each)[0]
        return {"response": MediaArtifact("response", "text", text, "str")}


def replayed(w: torch.Tensor, inputs: TokenInputs, ids: Sequence[int], temperature: float) -> torch.Tensor:
    """(L,) log-probs of a whole response under one set of weights."""
    prompt = inputs["ids"].tolist()
    rows = torch.stack([logits(w, prompt + list(ids[:at])) for at in range(len(ids))])
    return torch.log_softmax(rows / temperature, dim=-1).gather(-1, torch.tensor(ids)[:, None])[:, 0].detach()


def drawn_token(w: torch.Tensor, request: TokenRequest, inputs: TokenInputs, before: Sequence[int]) -> int:
    """What weights draw at one position, given everything before it."""
    row = logits(w, inputs["ids"].tolist() + list(before))[None].detach()
    draw = uniforms(request)[len(before) : len(before) + 1]
    settings = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
    return int(choose(row, draw, **settings)[0])  # type: ignore[arg-type]


class ToyEngine(NativeTokenEngine):
    """The native engine around :class:`ToyAdapter`."""

    def __init__(self, **rollout: Any) -> None:
        super().__init__(make_setup("qwen3", lora_rank=0, **rollout))

    def _load_model(self, setup: Any, components: tuple[str, ...]) -> Any:
        return ToyAdapter()


def toy_weights(number: int) -> torch.Tensor:
    """Another set for every number; 0 are those that an engine begins with."""
    return number * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(number))


def toy_stream(w: torch.Tensor) -> Any:
    return make_stream("full", [("w", w)], None)
