"""Given responses: taken as they are, checked as pairs, and drawn where none is given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from omni_backends.rollout.dataset.kinds import dataset_engine
from omni_backends.rollout.dataset.tokens import DatasetTokenEngine
from omni_portable.contracts.errors import ArtifactError, DataError
from omni_portable.contracts.media import MediaArtifact
from tests.support.engines import make_setup
from tests.support.token_models import folder, token_request


def build() -> DatasetTokenEngine:
    engine = dataset_engine(make_setup("qwen3", folder("qwen3"), engine="dataset"))
    assert isinstance(engine, DatasetTokenEngine)
    return engine


def given(index: int, text: str, **changes: Any) -> Any:
    target = {"response": MediaArtifact("response", "text", text, "str")}
    return token_request(index, group_id="g", prompt="q", target=target, **changes)


def run(requests: list[Any]) -> Any:
    return list(asyncio.run(build().generate(requests)).trajectories)


def test_given_responses_are_taken_and_others_drawn() -> None:
    chosen, drawn, rejected = run([given(0, "yes"), token_request(9, prompt="q"), given(1, "no")])
    assert [chosen.finish_reason, rejected.finish_reason] == ["given", "given"]
    assert drawn.finish_reason in ("stop", "length")
    assert chosen.response_ids.tolist() == build()._adapter.response_ids("yes").tolist()
    assert chosen.artifacts["response"].data == "yes"
    assert chosen.log_probs.isnan().all()
    assert torch.equal(chosen.prompt_ids, drawn.prompt_ids)
    assert (chosen.batch_size, chosen.batch_row, rejected.batch_row) == (2, 0, 1)


def test_equal_sides_and_long_ones_are_refused() -> None:
    with pytest.raises(DataError, match="responses 0 and 1 of prompt 'p0' .* are equal"):
        run([given(0, "yes"), given(1, "yes")])
    with pytest.raises(DataError, match="more than rollout.max_new_tokens=3"):
        run([given(0, "yes", max_new_tokens=3), given(1, "no")])


def test_a_target_that_is_no_response_is_refused() -> None:
    target = {"caption": MediaArtifact("caption", "text", "x", "str")}
    with pytest.raises(ArtifactError, match="'response'"):
        run([token_request(0, target=target)])
