"""The nearest known name to one that is not known."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *others: str) -> str:
    """One line for a hint: the closest known name; else all names (and ``others``), where they are at most 12."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"known: {', '.join([*names, *others])}" if len([*names, *others]) > 0 and len(names) <= 12 else ""
