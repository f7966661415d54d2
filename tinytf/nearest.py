"""Hints for unknown names."""

import difflib
from collections.abc import Iterable

_LISTED = 12


def did_you_mean(word: str, known: Iterable[str], *others: str, otherwise: str = "") -> str:
    """A one-line hint: the closest known name; else all names and ``others``, if they are few, or ``otherwise``."""
    names = list(known)
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if matches:
        return f"did you mean {matches[0]}?"
    is_short, names = len(names) <= _LISTED, [*names, *others]
    if not names or (otherwise and not is_short):
        return otherwise
    return f"known: {', '.join(names)}" if is_short else f"known: {', '.join(names[:_LISTED])}, … ({len(names)} in all)"
