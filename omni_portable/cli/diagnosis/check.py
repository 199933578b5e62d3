"""One finding of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omni_portable.contracts.errors import OmniPortableError

UNUSABLE = (Exception, SystemExit)
"""What a broken plugin, library or driver raises when it is loaded or asked: anything. Here it is a finding."""

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, what was found, and what to change where it is not right."""

    name: str
    status: Status
    found: str
    remedy: str = ""

    def line(self) -> str:
        label = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}[self.status]
        tail = f"\n       to fix it: {self.remedy}" if self.remedy else ""
        return f"{label}  {self.name}: {self.found}{tail}"


def one_line(error: BaseException) -> str:
    text = error.problem if isinstance(error, OmniPortableError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())


def remedy_of(error: BaseException, otherwise: str) -> str:
    return (error.remedy if isinstance(error, OmniPortableError) else "") or otherwise
