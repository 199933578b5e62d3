"""Calls to every worker, every answer checked: an engine's call may return errors as values, or too few answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_backends.sync.report import Call
from omni_portable.contracts.errors import EngineEndedError, OmniPortableError, WeightSyncError


def call_workers(call: Call, method: str, arguments: dict[str, Any]) -> list[Mapping[str, Any]]:
    """The answers of all workers.

    Raises:
        EngineEndedError: the engine's process is gone.
        WeightSyncError: the call failed, a worker did not answer, or one answered with an error; names the worker.
    """
    try:
        answers = call(method, arguments)
    except (EngineEndedError, WeightSyncError):
        raise
    except Exception as error:
        cause = error.problem if isinstance(error, OmniPortableError) else repr(error)
        raise WeightSyncError(f"the rollout workers could not be called ({method}): {cause}") from error
    if not isinstance(answers, list) or not answers:
        raise WeightSyncError(f"no rollout worker answered {method}, but there was {answers!r:.200}")
    for rank, answer in enumerate(answers):
        if not isinstance(answer, Mapping) or "ok" not in answer:
            raise WeightSyncError(f"rollout worker {rank} answered {method} with {answer!r:.500}")
        if not answer["ok"]:
            raise WeightSyncError(f"rollout worker {rank}, {method}: {answer.get('error') or 'no reason given'}")
    return answers


def same_answer(answers: list[Mapping[str, Any]], key: str) -> Any:
    """What all workers said about `key`.

    Raises:
        WeightSyncError: they differ, or one said nothing; names it.
    """
    for rank, answer in enumerate(answers):
        if key not in answer or answer[key] != answers[0].get(key):
            raise WeightSyncError(
                f"rollout worker {rank} says {key}={answer.get(key)!r:.200}, worker 0 says {answers[0].get(key)!r:.200}"
            )
    return answers[0][key]
