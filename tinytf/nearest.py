"""Hints for unknown names."""

import difflib
from collections.abc import Iterable

_LISTED = 12


def did_you_mean(word: str, known: Iterable[str], *others: str, otherwise: str = "") -> str:
    """A one-line hint: the closest known name; else all names and ``others``, if they are few, or ``otherwise``."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    few, names = len(names) <= _LISTED, [*names, *others]
    if not names or (otherwise and not few):
        return otherwise
    return f"known: {', '.join(names)}" if few else f"known: {', '.join(names[:_LISTED])}, … ({len(names)} in all)"
