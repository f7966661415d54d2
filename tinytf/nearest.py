"""Hints for unknown names."""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

_LISTED = 12
_NEAR = 0.65
"""The least share of letters in common, in order; ``tarce`` has 0.8 of ``trace``, and ``text`` 0.5 of ``step``."""
_NEAR_INSIDE = 0.8
"""The least share of a name with another first letter; ``backward`` has 0.67 of ``card``."""


def did_you_mean(word: str, known: Iterable[str], *others: str, otherwise: str = "") -> str:
    """A one-line hint: a known name that is near, or that the word begins or is the begin of.

    Without one, all names and ``others``, if they are few, or ``otherwise``.
    """
    names = list(known)
    if near := _nearest(word, names):
        return f"did you mean {near}?"
    is_short, names = len(names) <= _LISTED, [*names, *others]
    if not names or (otherwise and not is_short):
        return otherwise
    return f"known: {', '.join(names)}" if is_short else f"known: {', '.join(names[:_LISTED])}, … ({len(names)} in all)"


def near_path(path: Path) -> str:
    """A hint that names the file or folder beside a missing one whose name is nearest; empty if none is near."""
    try:
        names = [] if os.path.lexists(path) else sorted(os.listdir(path.parent))
    except (OSError, ValueError):
        return ""
    near = _nearest(path.name, names)
    if near is None or not _nearest(path.stem, [Path(near).stem]):  # an ending in common makes no name near
        return ""
    return f"did you mean {path.parent / near}?"


def _nearest(word: str, names: Iterable[str]) -> str | None:
    bare = {name.lstrip("-").lower(): name for name in names}  # two dashes in common are no letters
    word = word.lstrip("-").lower()
    matches = [
        name
        for name in difflib.get_close_matches(word, bare, n=3, cutoff=_NEAR)
        if name[:1] == word[:1] or difflib.SequenceMatcher(None, name, word).ratio() >= _NEAR_INSIDE
    ]
    begun = (name for name in bare if len(word) > 1 and (name.startswith(word) or _begins(name, word)))
    return bare[matches[0]] if matches else bare.get(next(begun, ""))


def _begins(name: str, word: str) -> bool:
    """Whether a word begins with a name that is more than half of it; ``qwertz`` begins with ``q``, which is not."""
    return word.startswith(name) and 2 * len(name) > len(word)
