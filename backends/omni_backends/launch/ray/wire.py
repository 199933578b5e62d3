"""Answers of a worker as bytes: a packed value, or an error of ours with everything it says."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from omni_portable.contracts import errors
from omni_portable.contracts.errors import OmniPortableError
from omni_portable.rollout.codec import pack, unpack
from omni_portable.rollout.distant import Bundles, TensorSource

BUG = "bug"


def answered(call: Callable[[], Any], bundles: Bundles | None = None) -> bytes:
    """What `call` returns or raises, packed; of distant tensors only their places in `bundles`, where there are some.
    The worker's side."""
    try:
        return pack({"value": call()}, bundles)
    except OmniPortableError as error:
        kind, problem, remedy, choices = type(error).__name__, error.problem, error.remedy, list(error.choices)
    except Exception:  # noqa: BLE001 - whatever it is, the other side raises it again
        kind, problem, remedy, choices = BUG, traceback.format_exc(), "", []
    return pack({"error": kind, "problem": problem, "remedy": remedy, "choices": choices})


def value(blob: bytes, worker: str, sources: Sequence[TensorSource] = ()) -> Any:
    """The value of an answer, and sources of its distant tensors. The trainer's side.

    Raises:
        OmniPortableError: of the class that the worker raised, with its words.
        RuntimeError: anything else that it raised, with its traceback.
    """
    answer = unpack(blob, sources)
    if "error" not in answer:
        return answer["value"]
    if answer["error"] == BUG:
        raise RuntimeError(f"in the process of '{worker}':\n{answer['problem']}")
    kind = getattr(errors, answer["error"], OmniPortableError)
    raise kind(answer["problem"], remedy=answer["remedy"], choices=answer["choices"])
