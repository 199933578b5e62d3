"""Rows as verl and VeRL-Omni write them: prompts as chat messages, the ground truth inside `reward_model`.

| their column | ours |
|---|---|
| prompt: [{role: user, content: TEXT}] | prompt |
| ... {role: system, content: TEXT} | metadata 'system_prompt' |
| negative_prompt: [{role: user, content: TEXT}] | metadata 'negative_prompt' |
| reward_model: {style, ground_truth} | metadata 'ground_truth' |
| images, videos, audios | stay, for `data.media` to name their elements |
| data_source, ability, extra_info | metadata of the same name |

Placeholders of media (<image>, <video>, <audio>) at the beginning of the user message are left out: a model is shown
its media before the text, in the order of `data.media`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from omni_portable.config.shown import shown
from omni_portable.contracts.errors import DataError

MEDIA_COLUMNS = ("images", "videos", "audios")
PLACEHOLDER = r"<(?:image|video|audio)>"
_LEADING = re.compile(rf"(?:\s*{PLACEHOLDER})+\s*")


def is_chat(value: object) -> TypeGuard[list[Mapping[str, Any]]]:
    """Whether a prompt is a list of messages with a role."""
    return isinstance(value, list) and bool(value) and all(isinstance(m, Mapping) and "role" in m for m in value)


def from_verl(row: Mapping[str, Any], prompt_key: str, where: str) -> dict[str, Any]:
    """A flat row from one of verl's; the mapping is the table above, other columns are kept as they are.

    Args:
        where: file and row, for messages.

    Raises:
        DataError: not exactly one user message, an assistant message, a message that is no text, or media amid it.
    """
    flat = {key: value for key, value in row.items() if key != "reward_model"}
    messages = _messages(row[prompt_key], where, prompt_key)
    flat[prompt_key] = user_text(row[prompt_key], where, prompt_key)
    if "system" in messages:
        flat["system_prompt"] = messages["system"]
    if is_chat(row.get("negative_prompt")):
        flat["negative_prompt"] = user_text(row["negative_prompt"], where, "negative_prompt")
    judged = row.get("reward_model") or {}
    if not isinstance(judged, Mapping):
        raise DataError(f"{where}: field 'reward_model' holds {shown(judged)}, not an object with a ground_truth")
    if judged.get("ground_truth") is not None:
        flat["ground_truth"] = judged["ground_truth"]
    return flat


def user_text(messages: list[Mapping[str, Any]], where: str, field: str) -> str:
    """The user's text of a chat, without leading placeholders of media; `DataError` as in :func:`from_verl`."""
    return without_placeholders(_messages(messages, where, field)["user"], where, field)


def without_placeholders(text: str, where: str, field: str) -> str:
    """The text after its leading placeholders of media.

    Raises:
        DataError: a placeholder further on, where media cannot be shown.
    """
    rest = _LEADING.sub("", text, count=1) if _LEADING.match(text) else text
    if found := re.search(PLACEHOLDER, rest):
        raise DataError(
            f"{where}: field '{field}' has '{found.group()}' in the middle of its text",
            remedy="put placeholders first, or leave them out: media are shown before the text",
        )
    return rest


def shown_text(text: str, media: Sequence[str], where: str, field: str) -> str:
    """The text for a model that reads its media where the text marks them, and before it where nothing does: marks at
    the beginning are left out, others stay with all that there are.

    Args:
        media: 'image', 'video' or 'audio' of each medium.

    Raises:
        DataError: marks further on that are not those of the media, each once.
    """
    rest = _LEADING.sub("", text, count=1) if _LEADING.match(text) else text
    marks = [mark[1:-1] for mark in re.findall(PLACEHOLDER, text)]
    if not re.search(PLACEHOLDER, rest):
        return rest
    if sorted(marks) != sorted(media):
        raise DataError(
            f"{where}: field '{field}' marks {marks} in its text, but the row has {list(media)}",
            remedy="mark each medium once, or none of them: then media are shown before the text",
        )
    return text


def _messages(messages: list[Mapping[str, Any]], where: str, field: str) -> dict[str, str]:
    """Role -> text, with exactly one user message and at most one system message."""
    texts: dict[str, str] = {}
    for message in messages:
        role, content = message["role"], message.get("content")
        second = role in list(texts)
        if role not in ("system", "user") or second:
            raise DataError(
                f"{where}: field '{field}' holds {'a second' if second else 'a'} message of role {shown(role)}",
                remedy="give one user message, and at most one system message before it",
            )
        if not isinstance(content, str):
            raise DataError(f"{where}: field '{field}' holds a {role} message whose content is no text")
        texts[role] = content
    if "user" not in texts:
        raise DataError(f"{where}: field '{field}' holds no user message")
    return texts
