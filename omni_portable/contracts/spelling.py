"""Which known names somebody may have meant who wrote an unknown one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

AT_MOST = 3
"""Names that are suggested at once."""
_SHORTEST = 3
"""Characters from which on a word is looked for inside names."""
_NO_LETTER = re.compile(r"[^0-9a-z]+")


def closest(wanted: str, known: Iterable[str]) -> list[str]:
    """The names, best first; none where nothing is near.

    Names that differ in upper case and separators alone win ('DanceGRPO' -> 'dance_grpo'), then those that contain
    what was written, as a word of theirs if possible ('nft' -> 'diffusion_nft'), then the one that is spelled most
    alike.
    """
    names = list(dict.fromkeys(known))
    plain = {name: bare(name) for name in names}
    target = bare(wanted)
    same = [name for name in names if plain[name] == target]
    if same:
        return same[:AT_MOST]
    containing = [name for name in names if target in plain[name]] if len(target) >= _SHORTEST else []
    whole = [name for name in containing if wanted.casefold() in _NO_LETTER.split(name.casefold())]
    if containing:
        return sorted(whole or containing, key=lambda name: (len(name), name))[:AT_MOST]
    alike = difflib.get_close_matches(target, list(plain.values()), n=1)
    return [name for name in names if plain[name] in alike][:1]


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """:func:`closest` as a remedy, or an empty string."""
    found = " or ".join(f"'{name}'" for name in closest(wanted, known))
    return f"did you mean {found}?" if found else ""


def bare(text: str) -> str:
    """Without upper case, spaces, '_' and '-', for comparisons."""
    return re.sub(r"[ _-]+", "", text.casefold())
